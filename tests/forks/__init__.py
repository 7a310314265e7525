"""Our programs started as forks of a process that has imported what others wrote.

Half of what a start costs is Django, Celery, pydantic and their kind, or torch, always the same. `server` imports
them once in a test run, nothing of ours, and forks for each program that is asked for: it gets its own arguments,
environment, folder and files, and imports ours as any start does. Web and sentinel of a test's `Stack` start from
one that has imported them too, and read their settings themselves.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("program.py")
START_S = 60.0
_lock = threading.Lock()
_addresses: dict[str, str] = {}


def address(kind: str = "server") -> str:
    """The socket of this test run's server of that kind, started when it is first asked for; `server.IMPORTED`
    has the kinds."""
    with _lock:
        if kind not in _addresses:
            folder = tempfile.TemporaryDirectory(prefix="holdfast-forks-")
            atexit.register(folder.cleanup)
            path = f"{folder.name}/s"
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(path)
                listener.listen(64)
                own = {"OMP_NUM_THREADS": "1", "HOLDFAST_STATE_DIR": f"{folder.name}/state"}
                # It ends when its standard input does, and what it has forked ends with it.
                server = subprocess.Popen(
                    [sys.executable, "-m", "tests.forks.server", str(listener.fileno()), kind],
                    cwd=ROOT, env=os.environ | own, stdin=subprocess.PIPE,
                    pass_fds=[listener.fileno()], start_new_session=True,
                )  # fmt: skip
            atexit.register(_end, server)
            _addresses[kind] = path
        return _addresses[kind]


def command(*argv: str, kind: str = "trainer") -> list[str]:
    """What is started instead of [sys.executable, *argv]: see `program`."""
    return [sys.executable, "-I", "-S", str(PROGRAM), address(kind), *argv]


def _end(server: "subprocess.Popen[bytes]") -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()


class Forked:
    """What `subprocess.Popen` would be, for as much of it as tests use."""

    def __init__(
        self, argv: list[str], *, env: dict[str, str], cwd: Path, output: IO[bytes], kind: str = "server"
    ) -> None:
        """`argv` without the interpreter; a session of its own, both outputs to `output`."""
        self.args = argv
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._line.settimeout(START_S)
        self._line.connect(address(kind))
        asked = {"argv": argv, "env": env, "cwd": str(cwd)}
        with open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), output.fileno(), output.fileno()]
            socket.send_fds(self._line, [json.dumps(asked).encode() + b"\n"], files)
        # Unbuffered: of a program that ends at once its code may come with its number, and is for `wait`.
        with self._line.makefile("rb", buffering=0) as answers:
            self.pid: int = json.loads(answers.readline())["pid"]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its code if it has ended."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its code, negative for the signal that ended it."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                told = self._line.recv(64)
            except (BlockingIOError, TimeoutError) as error:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from error
            # Without a word its server is gone, and it with that.
            self.returncode = int(json.loads(told)["code"]) if told else -int(signal.SIGKILL)
            self._line.close()
        return self.returncode
