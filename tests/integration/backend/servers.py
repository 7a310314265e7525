"""Real processes for the tests: Redis, web, sentinel, worker. Each is ended by its own pid."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from django.conf import settings
from django.db import connection

from controlplane.demo.ports import free_port
from tests.forks import Forked

ROOT = Path(__file__).resolve().parents[3]
START_S = 30.0
STOP_S = 10.0
PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """In the child: a test run that is killed leaves nothing behind (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def database_url() -> str:
    """The test database as other processes name it."""
    values = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite://{values['NAME']}"
    user = values["USER"] + (f":{values['PASSWORD']}" if values["PASSWORD"] else "")
    host = values["HOST"]
    if host.startswith("/"):
        return f"postgresql://{user}@localhost:{values['PORT'] or 5432}/{values['NAME']}?host={host}"
    return f"postgresql://{user}@{host}:{values['PORT'] or 5432}/{values['NAME']}"


class Process:
    """One child process with its log in a file; `kind`: of the server that forks it, if it is ours."""

    def __init__(
        self, name: str, argv: list[str], env: dict[str, str], directory: Path, *, kind: str = "server"
    ) -> None:
        self.name, self.argv, self.env, self.kind = name, argv, env, kind
        self.log = directory / f"{name}.log"
        self.child: subprocess.Popen[bytes] | Forked | None = None

    def start(self) -> None:
        """Start it (again); a program of ours as a fork (`tests.forks`), where nothing is to be loaded before it."""
        with self.log.open("ab") as log:
            if self.argv[0] == sys.executable and "LD_PRELOAD" not in self.env:
                env = os.environ | self.env
                self.child = Forked(self.argv[1:], env=env, cwd=ROOT, output=log, kind=self.kind)
                return
            self.child = subprocess.Popen(
                self.argv, env=os.environ | self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_die_with_parent,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL, with its children."""
        self._signal(signal.SIGKILL)
        if self.child is not None:
            self.child.wait(STOP_S)

    def tell_to_stop(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        self.tell_to_stop()
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """After `tell_to_stop`; SIGKILL if it takes too long."""
        if self.child is None:
            return
        try:
            self.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP, with its children: they live, and do nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: they continue where they stood."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.child is not None and self.child.poll() is None:
            os.killpg(self.child.pid, number)

    def tail(self, lines: int = 40) -> str:
        """The end of its log, for failure messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class RedisServer:
    """A real redis-server on a private port."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port("127.0.0.1")
        self.url = f"redis://127.0.0.1:{self.port}/0"
        binary = shutil.which("redis-server") or "redis-server"
        argv = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
        self.process = Process("redis", argv, {}, directory)

    def start(self) -> None:
        """Start and wait until it answers."""
        self.process.start()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 0.2):
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(self.process.tail())

    def stop(self) -> None:
        """End it at once: nothing in it is worth a save."""
        self.process.kill()


class Stack:
    """Web and sentinel (and a worker if asked) on the test's own database."""

    def __init__(self, directory: Path, redis_url: str, *, port: int | None = None) -> None:
        self.directory = directory
        self.port = port or free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {
            "HOLDFAST_PROFILE": "test",
            "DJANGO_SETTINGS_MODULE": "controlplane.config.settings.test",
            "HOLDFAST_STATE_DIR": str(directory),
            "HOLDFAST_DATABASE_URL": database_url(),
            "HOLDFAST_REDIS_URL": redis_url,
            # The test's own process gives commands too, and shares what is sealed in Redis.
            "HOLDFAST_SIGNING_KEY_FILE": str(settings.SIGNING_KEY_FILE),
            "HOLDFAST_DEMO": "true",
            # The agents here are scripted: there is no training that a reference run could repeat.
            "HOLDFAST_REFERENCE_RUNS": "off",
            "HOLDFAST_FRAME_INTERVAL_S": "0.2",
            "HOLDFAST_REFERENCE_DIR": str(settings.REFERENCE_DIR),
            # Several runs share this machine.
            "HOLDFAST_METRICS_BIND": "127.0.0.1:0",
            "PYTHONUNBUFFERED": "1",
        }
        web = [
            sys.executable, "-m", "controlplane.config.serve", "--host", "127.0.0.1", "--port", str(self.port),
            "--timeout-graceful-shutdown", "2",
        ]  # fmt: skip
        celery = [sys.executable, "-m", "celery", "-A", "controlplane.config.celery"]
        worker = [*celery, "worker", "--concurrency", "1", "--loglevel", "warning"]
        sentinel = [sys.executable, "manage.py", "sentinel"]
        self.web = Process("web", web, self.env, directory, kind="backend")
        self.sentinel = Process("sentinel", sentinel, self.env, directory, kind="backend")
        self.worker = Process("worker", worker, self.env, directory)

    def start(self, *, worker: bool = False) -> None:
        """Start and wait until the web process answers."""
        self.web.start()
        self.sentinel.start()
        if worker:
            self.worker.start()
        self.wait_for_web()

    def wait_for_web(self) -> None:
        """Until it answers anything at all."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/agent/v1/enroll", timeout=1.0)
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(self.web.tail())

    def stop(self) -> None:
        """End what runs, all at once."""
        running = (self.worker, self.sentinel, self.web)
        for process in running:
            process.tell_to_stop()
        for process in running:
            process.wait_for_end()

    def logs(self) -> str:
        """Ends of all logs, for failure messages."""
        parts = [p for p in (self.web, self.sentinel, self.worker) if p.log.exists()]
        return "\n".join(f"--- {p.name}\n{p.tail()}" for p in parts)
