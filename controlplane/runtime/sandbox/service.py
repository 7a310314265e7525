"""Starts programs in the sandbox, for all of the server that has to do with a job's files:
verification, examinations, reference runs, copies.

A program sees its inputs, which the caller opened, and the installed code; it gets an
environment of a few names, and no right to anything else (`plan.MEANS` names each means).
What this machine does not allow is logged once and shown by `manage.py sandbox_check`; with
`HOLDFAST_SANDBOX=require` nothing is run without it. Never reads what a program has written:
callers decode it, by strict types and up to a size.
"""

import contextlib
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from django.conf import settings

from controlplane.runtime.logs import get
from controlplane.runtime.sandbox.plan import (
    LOG,
    NOT_ISOLATED,
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    REPORT,
    Limits,
    Plan,
    Report,
)

LAUNCHER = "controlplane.runtime.sandbox.launcher"
PACKAGES = ("controlplane", "trainer")
CODE_LINKS = "code"
"""Where the packages are found: the folder that they lie in may hold anything, and is not seen."""
CODE = Path(__file__).resolve().parents[3]
GRACE_S = 10.0
"""Beyond the limit on time, which the launcher keeps: then it is ended itself."""
GIB = 1 << 30

_log = get(__name__)
_told: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`module` is run with `arguments`; placeholders as `plan` has them. `inputs` are open
    descriptors, still the caller's. `place` is a folder of the server's: log, report and the
    files named by `outputs` are put there. `server_user` and `network` are for what fetches bytes
    from a store and parses none of them."""

    module: str
    arguments: Sequence[str]
    place: Path
    inputs: Sequence[int] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    limits: Limits | None = None
    nice: int = 0
    server_user: bool = False
    network: bool = False
    writable: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    shown: Sequence[str] = ()


class Sandboxed:
    """A program under way; `place` as in its task."""

    def __init__(self, process: subprocess.Popen[bytes], place: Path, wall_s: float) -> None:
        self._process, self.place = process, place
        self._until_s = time.monotonic() + wall_s + GRACE_S
        self.pid = process.pid

    def poll(self) -> int | None:
        """Its exit code (see `plan`), None while it runs."""
        if self._process.poll() is None and time.monotonic() > self._until_s:
            self.end()
        code = self._process.poll()
        if code is not None:
            _tell(self.place)
        return code

    def wait(self) -> int:
        """Its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._until_s - time.monotonic()))
        if self._process.poll() is None:
            self.end()
        _tell(self.place)
        return self._process.wait()

    def end(self) -> None:
        """At once, with all that it has started."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        self._process.kill()
        self._process.wait()


def start(task: Task) -> Sandboxed:
    """Returns at once. Raises OSError where not even the launcher can be started."""
    limits = task.limits or default_limits()
    place = os.open(task.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        plan = _plan(task, limits, place)
        with tempfile.TemporaryFile() as told:
            told.write(msgspec.json.encode(plan))
            told.seek(0)
            writable = () if task.writable is None else (task.writable,)
            process = subprocess.Popen(
                [sys.executable, "-m", LAUNCHER],
                stdin=told,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                pass_fds=(*task.inputs, place, *writable),
            )
    finally:
        os.close(place)
    return Sandboxed(process, task.place, limits.wall_s)


def run(task: Task) -> int:
    """Start it and wait; its exit code. Raises OSError."""
    under_way = start(task)
    try:
        return under_way.wait()
    except BaseException:  # The caller's own limit on time: nothing stays behind.
        under_way.end()
        raise


def default_limits(*, wall_s: float = 300.0) -> Limits:
    """As the settings say."""
    return Limits(
        wall_s=wall_s,
        cpu_s=int(wall_s * (os.cpu_count() or 1)) + 1,
        memory_bytes=settings.SANDBOX_MEMORY_BYTES,
        disk_bytes=settings.SANDBOX_DISK_BYTES,
    )


def report_of(place: Path) -> Report | None:
    """What was applied to the run whose folder this is; None while that is not known."""
    try:
        return msgspec.json.decode((place / REPORT).read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def why_not_run(place: Path) -> str:
    """For people; empty where the program was run."""
    with contextlib.suppress(OSError):
        last = (place / LOG).read_text(errors="replace").strip().rpartition("\n")[2]
        return last if last.startswith("not run: ") else ""
    return ""


def ended(code: int) -> str:
    """What an exit code of the launcher means, for people."""
    known = {OUT_OF_TIME: "it ran out of time", OUT_OF_MEMORY: "it ran out of memory", NOT_ISOLATED: "it was not run"}
    return known.get(code, f"it ended with code {code}")


def own_uid() -> int | None:
    """The user of sandboxed programs, where the server may choose one. Raises KeyError for an unknown name."""
    if os.geteuid() != 0:
        return None
    name: str = settings.SANDBOX_USER
    return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid


def _user(task: Task) -> int | None:
    """Who runs it. What a job's user keeps for itself is read as that user, never as root: the
    program is that user's own in any case, and sees nothing but its inputs."""
    if os.geteuid() != 0:
        return os.geteuid()
    for descriptor in task.inputs:
        found = os.fstat(descriptor)
        if found.st_uid != 0 and not found.st_mode & stat.S_IROTH:
            return found.st_uid
    return own_uid()


def _plan(task: Task, limits: Limits, place: int) -> Plan:
    prefix = Path(os.path.realpath(sys.prefix))
    python = str(prefix / "bin" / Path(sys.executable).name)
    programs = {str(prefix), os.path.realpath(sys.base_prefix), *(str(CODE / name) for name in PACKAGES), *task.shown}
    return Plan(
        argv=[python, "-m", task.module, *task.arguments],
        inputs=list(task.inputs),
        files=dict(task.files),
        links={**task.links, **{f"{CODE_LINKS}/{name}": str(CODE / name) for name in PACKAGES}},
        outputs=list(task.outputs),
        place=place,
        programs=sorted(path for path in programs if not path.startswith("/usr/")),
        environment={**_environment(), "PYTHONPATH": f"{{scratch}}/{CODE_LINKS}", **task.environment},
        limits=limits,
        # Root gives its rights up by becoming somebody; another user has none to give.
        uid=None if task.server_user else _user(task),
        nice=task.nice,
        network=task.network,
        writable=task.writable,
        required=settings.SANDBOX == "require",
    )


def _environment() -> dict[str, str]:
    """All that a program knows of the server's, the launcher included."""
    return {
        "PATH": f"{os.path.realpath(sys.prefix)}/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(CODE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "LANG": "C.UTF-8",
        "USER": "sandbox",
        "OMP_NUM_THREADS": "1",
    }


def _tell(place: Path) -> None:
    """In the log of the server, each missing means once in the life of this process."""
    report = report_of(place)
    for means, why in sorted(report.missing.items()) if report else ():
        if means not in _told:
            _told.add(means)
            _log.warning("sandbox is not complete on this machine", means=means, why=why)
