"""Which versions a launch would run with: of the built-in trainer, or of the job's own program.

The interpreter that the job's command names is asked for the versions of what is installed,
with the environment that its ranks will have; it imports none of it. It runs as the ranks do,
for a few seconds at most, and again only after something was installed beside it. Where there
is no such interpreter (a shell line, another language, a container) or no answer, nothing is
known: `core.health` judges what is known.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from agents.errors import LaunchError
from agents.ranks.launch import Standing, clean_environment, start
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.launch_checks import interpreter_of

Libraries = tuple[tuple[str, str], ...]

# What each library is called where it is installed from.
NAMES = (("torch", ("torch",)), ("nccl", ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")))
ANSWER_S = 5.0
_MAX_REMEMBERED = 64
_MAX_ANSWER_BYTES = 256 * 1024
_REAP_S = 2.0
_QUESTION = """
import json, os, sys
from importlib import metadata
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps([versions, [path for path in sys.path if os.path.isabs(path)]]))
"""


@dataclass(frozen=True, slots=True)
class _Answer:
    """`stamps`: when the interpreter and each place where it looks for libraries last changed."""

    libraries: Libraries
    stamps: tuple[tuple[str, int], ...]

    def holds(self) -> bool:
        """Nothing was installed or removed since."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps)


def own_libraries() -> Libraries:
    """(name, version) of what the built-in trainer would run with here; "" for absent ones."""
    return tuple((library, _version(names)) for library, names in NAMES)


class Interpreters:
    """Those that jobs have named, each asked once for as long as its answer holds."""

    def __init__(self, *, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, ...], _Answer] = {}

    def libraries_of(self, launch: ReplicaLaunch, standing: Standing) -> tuple[str, Libraries]:
        """(interpreter, its libraries) of a launch with an entrypoint; ("", ()): not known."""
        environment = clean_environment(os.environ, standing) | launch.env
        named = interpreter_of(list(launch.entrypoint or ()))
        path = shutil.which(named, path=environment.get("PATH")) if named else None
        if path is None:
            return "", ()
        path = os.path.abspath(path)
        matters = [name for name in sorted(environment) if name.startswith("PYTHON") or name == "HOME"]
        key = (path, str(standing.user), *(f"{name}={environment[name]}" for name in matters))
        with self._lock:
            known = self._answers.get(key)
        if known is None or not known.holds():
            known = _ask(path, environment, standing, self._answer_s)
            if known is None:
                return "", ()
            with self._lock:
                self._answers[key] = known
                while len(self._answers) > _MAX_REMEMBERED:
                    del self._answers[next(iter(self._answers))]
        return path, known.libraries


def _ask(path: str, environment: Mapping[str, str], standing: Standing, answer_s: float) -> _Answer | None:
    """None: no answer in time, or none that can be understood."""
    wanted = [name for _, names in NAMES for name in names]
    try:
        process = start(
            [path, "-c", _QUESTION, *wanted],
            environment,
            standing,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        said = _said(process, time.monotonic() + answer_s)
        # Whatever a site's own start-up prints comes before.
        versions, places = json.loads(said.splitlines()[-1])
        libraries = tuple((library, _first(versions, names)) for library, names in NAMES)
        stamps = tuple((place, _stamp(place)) for place in (path, *places))
    except (OSError, ValueError, TypeError, LookupError, RecursionError, LaunchError):
        return None
    return _Answer(libraries, stamps)


def _said(process: "subprocess.Popen[bytes]", until_s: float) -> bytes:
    """All that it says. It is a program of the job's: it gets no more memory and no more time than an answer needs, and
    its group ends with it. Raises ValueError where that was not enough."""
    assert process.stdout is not None, "opened with a pipe"
    said = b""
    try:
        with process.stdout as pipe:
            while len(said) <= _MAX_ANSWER_BYTES and (left_s := until_s - time.monotonic()) > 0:
                if not select.select([pipe], [], [], left_s)[0]:
                    break
                part = os.read(pipe.fileno(), _MAX_ANSWER_BYTES)
                if not part:
                    return said
                said += part
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
    raise ValueError("no answer in time, or none that ends")


def _first(versions: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((str(versions[name]) for name in names if name in versions), "")


def _stamp(path: str) -> int:
    """When it last changed, in ns; 0 for one that is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _version(names: tuple[str, ...]) -> str:
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""
