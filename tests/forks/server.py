"""`python -m tests.forks.server FD KIND`: forks a program for each connection to the listening socket FD.

A connection brings one line of JSON, {argv, env, cwd}, with three open files. It is told the pid, and the exit
code when there is one. If it is closed before, the program is killed.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
_SERVER = (
    "asyncio", "celery.app.base", "celery.bin.celery", "celery.bin.worker", "celery.concurrency.prefork",
    "celery.worker.worker", "channels.layers", "cryptography.x509", "django.contrib.staticfiles.handlers",
    "django.core.handlers.asgi", "django.core.management", "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base", "django.db.migrations.loader", "django.db.models", "django.forms", "h11",
    "httpx", "kombu.transport.redis", "msgspec", "numpy", "psycopg_pool", "pydantic_settings", "redis.asyncio",
    "stamina", "structlog", "typer.main", "typer.rich_utils", "uvicorn", "uvloop",
    "websockets.asyncio.server", "websockets.sync.client", "whitenoise", "xxhash", "yaml", "zstandard",
)  # fmt: skip
# Megatron is imported by ours, after they have told torch how.
_TRAINER = ("msgspec", "numpy", "torch", "torch.distributed", "torch.distributed.checkpoint", "xxhash")
# Of ours what web and sentinel run. None of it looks at settings or environment when it is imported
# (`tests/house/test_forks.py`); the settings themselves are the child's own: see `with_own_settings`.
_BACKEND = (
    "controlplane.config.celery", "controlplane.config.urls", "controlplane.live.agent_socket",
    "controlplane.live.browser_socket", "controlplane.live.process", "controlplane.sentinel.process",
)  # fmt: skip
IMPORTED = {"server": _SERVER, "trainer": _TRAINER, "backend": _SERVER}
"""By kind. Nothing that reads settings, or how it is to measure (prometheus_client), when it is imported. The
backend has then imported `_BACKEND` too, so it is for programs that measure by themselves: not for a worker."""
SETTINGS = "controlplane.config.settings.test"


def become(asked: dict[str, Any], files: list[int]) -> list[str]:
    """In the child: as a start of `python argv...` would find itself. What is to be run."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout, sys.stderr = _written(1, by_line=os.isatty(1)), _written(2, by_line=True)
    argv = asked["argv"]
    named = argv[0] not in ("-m", "-c")
    first = os.path.dirname(os.path.realpath(argv[0])) if named else "" if argv[0] == "-c" else asked["cwd"]
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [first, *filter(None, path.split(os.pathsep)), *sys.path[1:]]
    sys.argv = argv if named else [argv[0], *argv[2:]] if argv[0] == "-c" else argv[1:]
    return list(argv[:2])


def _written(number: int, *, by_line: bool) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    through = bool(os.environ.get("PYTHONUNBUFFERED"))
    errors = "backslashreplace" if number == 2 else None
    return io.TextIOWrapper(raw, errors=errors, line_buffering=by_line, write_through=through or by_line)


def import_ours() -> None:
    """Django's applications are ready, and nothing is connected."""
    os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
    import django

    django.setup()
    for name in _BACKEND:
        importlib.import_module(name)


def with_own_settings() -> None:
    """In the child: what was read of the settings and the clock is forgotten, and read by whoever asks next."""
    import django.core.cache
    import django.db
    from asgiref.local import Local
    from django.conf import settings
    from django.utils.functional import empty

    from controlplane.config import env
    from controlplane.recovery import proof
    from controlplane.runtime import logs

    for name in [name for name in sys.modules if name.startswith("controlplane.config.settings.")]:
        del sys.modules[name]
    env.load.cache_clear()
    settings.__dict__.clear()
    settings._wrapped = empty
    for handler in (django.db.connections, django.core.cache.caches):
        handler.__dict__.pop("settings", None)
        handler._settings = None
        handler._connections = Local(handler.thread_critical)
    proof._Places.free_s = time.monotonic()
    env.start_or_say_why()
    logs.configure(settings.LOG_LEVEL)


class Server:
    """Serves until its standard input ends. In a child `serve` returns what to become."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.ready = selectors.DefaultSelector()
        self.ready.register(listener, selectors.EVENT_READ, self.accept)
        self.ready.register(0, selectors.EVENT_READ, self.end)

    def serve(self) -> tuple[dict[str, Any], list[int]]:
        while True:
            for key, _ in self.ready.select():
                if key.fileobj in self.ready.get_map() and (child := key.data()):
                    return child  # type: ignore[no-any-return]

    def end(self) -> None:
        os._exit(0)

    def accept(self) -> tuple[dict[str, Any], list[int]] | None:
        line, _ = self.listener.accept()
        told, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
        while told and not told.endswith(b"\n"):
            more = line.recv(1 << 20)
            told = told + more if more else b""
        if not told:
            line.close()
            return None
        pid = os.fork()
        if not pid:
            self.ready.close()
            return json.loads(told), files
        for file in files:
            os.close(file)
        line.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        alive = os.pidfd_open(pid)
        self.ready.register(alive, selectors.EVENT_READ, lambda: self.ended(pid, alive, line))
        self.ready.register(line, selectors.EVENT_READ, lambda: self.left(pid, line))
        return None

    def left(self, pid: int, line: socket.socket) -> None:
        """Whoever started it is gone."""
        self.ready.unregister(line)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def ended(self, pid: int, alive: int, line: socket.socket) -> None:
        self.ready.unregister(alive)
        os.close(alive)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if line in self.ready.get_map():
            self.ready.unregister(line)
        with contextlib.suppress(OSError):
            line.sendall(json.dumps({"code": code}).encode())
        line.close()


def main() -> list[str]:
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    for name in IMPORTED[sys.argv[2]]:
        importlib.import_module(name)
    if sys.argv[2] == "backend":
        import_ours()
    gc.collect()
    gc.freeze()
    return become(*Server(socket.socket(fileno=int(sys.argv[1]))).serve())


if __name__ == "__main__":
    kind = sys.argv[2]
    run = main()
    if kind == "backend":
        with_own_settings()
    if run[0] == "-m":
        runpy.run_module(run[1], run_name="__main__", alter_sys=True)
    elif run[0] == "-c":
        exec(compile(run[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(os.path.abspath(run[0]), run_name="__main__")
