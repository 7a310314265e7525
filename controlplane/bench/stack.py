"""The production shape on this machine: PostgreSQL, Redis with its append-only file, web processes, sentinel, worker,
beat. In a directory of its own, on free loopback ports, with the settings of `deploy/systemd`; all of it ends with
the block. The processes are those of `demo.processes`, kept by `demo.supervisor` as systemd would.

What is not there is the proxy that ends TLS: agents take the web processes by turns as it would hand them out, and
requests carry the header that it would set.
"""

import contextlib
import logging
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.config.guards import private_file
from controlplane.demo.ports import free_port, redis_binary
from controlplane.demo.private_postgres import Cluster, private_cluster
from controlplane.demo.processes import (
    Addresses,
    ProcessSpec,
    beat_process,
    redis_process,
    sentinel_process,
    web_process,
    worker_process,
)
from controlplane.demo.supervisor import Supervisor

log = logging.getLogger("holdfast.bench")
HOST = "127.0.0.1"
WORKERS = 4
READY_TIMEOUT_S, COMMAND_TIMEOUT_S = 120.0, 180.0
POLL_S = 0.2
MAX_FILES = 65_536
REPOSITORY = Path(__file__).resolve().parents[2]
AS_SHIPPED: tuple[str, ...] = ()
"""PostgreSQL's own defaults: a commit is on disk before it is acknowledged."""
KEPT_REDIS = ("--appendonly", "yes")
RESTART_S = 1.0
"""As RestartSec of the units."""


class StackError(RuntimeError):
    """It did not start; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many there are of each process. Of several sentinels each leads one shard."""

    webs: int = 1
    sentinels: int = 1
    workers: int = 1
    beats: int = 1

    def names(self) -> tuple[str, ...]:
        """Of all of them: the first is called as where it is alone."""
        kinds = (("sentinel", self.sentinels), ("worker", self.workers), ("beat", self.beats))
        others = (name if at == 1 else f"{name}-{at}" for name, of in kinds for at in range(1, of + 1))
        return (*(f"web-{at}" for at in range(1, self.webs + 1)), *others)


ONE_OF_EACH = Shape()


class Stack:
    """Started by `standing`."""

    def __init__(self, directory: Path, cluster: Cluster, shape: Shape, *, interval_s: float) -> None:
        self.directory, self._cluster, self._shape = directory, cluster, shape
        self._redis_port, self._redis_password = free_port(HOST), secrets.token_urlsafe(16)
        self._web_ports = [free_port(HOST) for _ in range(shape.webs)]
        self.metrics: dict[str, str] = {}
        self.servers = [f"http://{HOST}:{port}" for port in self._web_ports]
        self.names = shape.names()
        self.env = self._environment(cluster.url("holdfast"), interval_s)
        self.supervisor = Supervisor(
            env=self.env, logs=directory / "logs", requests=directory / "requests", node_state=lambda node: directory
        )
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self.supervisor.run, args=(self._stop.is_set,), daemon=True)

    def start(self) -> None:
        """Keys, tables, then every process. Raises StackError."""
        self.manage("create_signing_key")
        self.manage("migrate", "--verbosity", "0")
        redis = redis_process(
            binary=redis_binary(),
            addresses=self._addresses(self._web_ports[0]),
            directory=self.directory,
            password_file=private_file(self.directory / "redis.conf", f"requirepass {self._redis_password}\n"),
        )
        # Of an option that is given twice Redis takes the last one.
        self.supervisor.start(replace(redis, argv=(*redis.argv, *KEPT_REDIS)))
        for name, port in zip(self._named("web"), self._web_ports, strict=True):
            web = web_process(self._addresses(port))
            self.supervisor.start(replace(web, name=name, restart_delay_s=RESTART_S))
            self.metrics[name] = f"http://{HOST}:{port}/metrics"
        for name in self._named("sentinel"):
            self.supervisor.start(self._exporting(replace(sentinel_process(), name=name)))
        for name in self._named("worker"):
            # The hosts' name is one: two of a name are one worker for the broker.
            worker = worker_process(WORKERS)
            self.supervisor.start(
                self._exporting(replace(worker, name=name, argv=(*worker.argv, "--hostname", f"{name}@%h")))
            )
        for name in self._named("beat"):
            own = self.directory / name
            own.mkdir(mode=0o700)
            self.supervisor.start(self._exporting(replace(beat_process(own), name=name)))
        self._keeper.start()
        self._wait_ready()

    def stop(self) -> None:
        """Everything but PostgreSQL, which is not ours to end."""
        self._stop.set()
        if self._keeper.is_alive():
            self._keeper.join(timeout=5.0)
        self.supervisor.stop_all()

    def manage(self, *arguments: str) -> str:
        """Run a management command; its standard output. Raises StackError."""
        done = subprocess.run(
            (sys.executable, "manage.py", *arguments), cwd=REPOSITORY, env=self.env, capture_output=True, text=True,
            timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise StackError(f"manage.py {' '.join(arguments)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def api_token(self) -> str:
        """Of an administrator."""
        self.manage("create_admin", "bench")
        return self.manage("create_api_token", "bench", "--scope", "admin", "--name", "bench").split()[-1]

    def join_tokens(self, agents: int, uses: int) -> list[str]:
        """Enough of them, each for `uses` agents."""
        made = []
        for first in range(0, agents, uses):
            number = str(min(uses, agents - first))
            made.append(self.manage("create_join_token", "--cidr", "127.0.0.0/8", "--uses", number).split()[-1])
        return made

    def kill_webs(self) -> float:
        """SIGKILL to every web process; when, by the monotonic clock. They are started again as by systemd."""
        at_s = time.monotonic()
        for name in self._named("web"):
            self.supervisor.kill(name)
        return at_s

    def pids(self) -> Mapping[str, int]:
        """The first process of each service that runs."""
        found = {name: pid for name in (*self.names, "redis") if (pid := self.supervisor.pid(name)) is not None}
        return {**found, "postgres": self._cluster.pid}

    def _named(self, kind: str) -> list[str]:
        return [name for name in self.names if name.partition("-")[0] == kind]

    def _addresses(self, web_port: int) -> Addresses:
        return Addresses(host=HOST, web_port=web_port, redis_port=self._redis_port, store_port=1)

    def _exporting(self, spec: ProcessSpec) -> ProcessSpec:
        port = free_port(HOST)
        self.metrics[spec.name] = f"http://{HOST}:{port}/metrics"
        env = {**spec.env, "HOLDFAST_METRICS_BIND": f"{HOST}:{port}"}
        return replace(spec, env=env, restart_delay_s=RESTART_S)

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        for name, server in zip(self._named("web"), self.servers, strict=True):
            while not _answers(f"{server}/healthz"):
                if time.monotonic() > deadline_s:
                    tail = (self.directory / "logs" / f"{name}.log").read_text(errors="replace")[-2000:]
                    raise StackError(f"{name} did not become ready in {READY_TIMEOUT_S:.0f} s:\n{tail}")
                time.sleep(POLL_S)

    def _environment(self, database_url: str, interval_s: float) -> dict[str, str]:
        foreign = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "DJANGO_"))}
        state = self.directory / "state"
        settings = {
            "PROFILE": "production",
            "STATE_DIR": state,
            "CHECKPOINT_ROOT": self.directory / "checkpoints",
            "DATABASE_URL": database_url,
            "REDIS_URL": f"redis://:{self._redis_password}@{HOST}:{self._redis_port}/0",
            "SECRET_KEY": secrets.token_urlsafe(48),
            "SIGNING_KEY_FILE": state / "signing_key",
            "STORE_KEY_FILE": private_file(self.directory / "store_key", secrets.token_hex(32)),
            "ALLOWED_HOSTS": HOST,
            "ORIGINS": f"https://{HOST}",
            "TRUSTED_PROXIES": HOST,
            "METRICS_FROM": "127.0.0.0/8",
            "FRAME_INTERVAL_S": interval_s,
            "SAMPLE_INTERVAL_S": interval_s,
            "SENTINEL_SHARDS": self._shape.sentinels,
            "LOG_LEVEL": "WARNING",
        }
        for path in (state, self.directory / "checkpoints"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = {f"HOLDFAST_{key}": str(value) for key, value in settings.items()}
        return foreign | ours | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


@contextlib.contextmanager
def standing(shape: Shape, *, interval_s: float) -> Iterator[Stack]:
    """Start it, and end it whatever happens. Its logs are kept where the block fails: they are all that says why.
    Raises StackError, MissingPostgres or MissingProgram."""
    if not (REPOSITORY / "manage.py").exists():
        raise StackError(f"{REPOSITORY} has no manage.py: run it from a checkout, or against a --server that stands")
    allow_sockets()
    directory = Path(tempfile.mkdtemp(prefix="holdfast-load-"))
    kept = False
    try:
        # `demo.processes` names manage.py as the units do, from where they run.
        with (
            contextlib.chdir(REPOSITORY),
            private_cluster("holdfast", passwords=False, settings=AS_SHIPPED) as cluster,
        ):
            stack = Stack(directory, cluster, shape, interval_s=interval_s)
            try:
                stack.start()
                yield stack
            finally:
                stack.stop()
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace")[-2000:]
        raise StackError(f"PostgreSQL did not start: {said or error}") from error
    except Exception:
        if kept := (directory / "logs").exists():
            _leave_logs(directory)
            log.warning("the logs of its processes are in %s", directory / "logs")
        raise
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)


def _leave_logs(directory: Path) -> None:
    """Its keys, words and tables are of nobody's use any more."""
    for path in directory.iterdir():
        if path.name == "logs":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def allow_sockets() -> None:
    """As many files as may be, for this process and all that it starts: an agent is one socket at each end."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(MAX_FILES, most)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - loopback
            return True
    except (OSError, urllib.error.URLError):
        return False
