"""One running installation: addresses, secrets, processes. Used by `make demo`, by the
whole-ring tests and by the benchmarks, so that all three run the very same thing."""

import json
import logging
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from agents.config import jobs_beside, over_long_bytes
from controlplane.config.guards import close_directory, private_file
from controlplane.demo.config import DemoConfig
from controlplane.demo.nodes import MARKER
from controlplane.demo.ports import free_port, redis_binary
from controlplane.demo.processes import (
    Addresses,
    ProcessSpec,
    agent_process,
    beat_process,
    outside_process,
    redis_process,
    sentinel_process,
    store_process,
    web_process,
    worker_process,
)
from controlplane.demo.supervisor import Supervisor
from controlplane.demo.users import find_out, write_policy

log = logging.getLogger("holdfast.demo")

READY_TIMEOUT_S = 90.0
COMMAND_TIMEOUT_S = 120.0
POLL_S = 0.1
ADMIN = "admin"
REPOSITORY = Path(__file__).resolve().parents[2]


class InstallationError(RuntimeError):
    """A step of the set-up failed; the text holds the command's own words."""


class Installation:
    """Starts everything in order and stops it again. Also a context manager. `python`: what runs `manage.py`."""

    python: tuple[str, ...] = (sys.executable,)

    def __init__(self, config: DemoConfig, *, stopped: Callable[[], bool] = lambda: False) -> None:
        """`stopped` ends a start that waits."""
        self.config = config
        directory = config.directory.absolute()
        close_directory(directory, demo_may_open=True)
        redis_port, store_port = free_port(config.host), free_port(config.host)
        web_port = free_port(config.host, config.port)
        self.addresses = Addresses(host=config.host, web_port=web_port, redis_port=redis_port, store_port=store_port)
        self._redis_password = secrets.token_urlsafe(16)
        self.env = self._environment(directory)
        self._stopped = stopped
        self.supervisor = Supervisor(
            env=self.env, logs=config.logs.absolute(), requests=config.requests.absolute(), node_state=self._node_state
        )

    def __enter__(self) -> "Installation":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.supervisor.stop_all()

    def start(self) -> None:
        """Database, Redis, store, web, sentinel, worker, beat, then the demo's agents. Raises InstallationError."""
        self._check_paths()
        outside = self.config.outside
        self.manage("migrate", "--verbosity", "0")
        start = self.supervisor.start
        directory = self.config.directory.absolute()
        start(
            redis_process(
                binary=redis_binary(),
                addresses=self.addresses,
                directory=directory,
                password_file=private_file(directory / "redis.conf", f"requirepass {self._redis_password}\n"),
            )
        )
        key, figures, bind = directory / "store_key", free_port(self.config.host), outside.bind if outside else ""
        start(store_process(self.addresses, key, figures, bind=bind))
        web = web_process(self.addresses)
        start(replace(web, env={**web.env, **self.config.server_env}))
        if outside:
            tls = outside_process(self.addresses, outside)
            start(replace(tls, env={**tls.env, **self.config.server_env}))
        for spec in (sentinel_process(), worker_process(), beat_process(directory)):
            start(self._exporting(spec))
        self.wait_ready()
        if not self.config.demo:
            return
        uses, networks = str(len(self.config.node_names)), "127.0.0.0/8,::1/128"
        token = self.manage("create_join_token", "--cidr", networks, "--uses", uses).strip().splitlines()[-1]
        token_file = private_file(directory / "join-token", token)
        self._write_policy(directory)
        for number, node in enumerate(self.config.node_names):
            self.start_agent(node, number, token_file)

    def _exporting(self, spec: ProcessSpec) -> ProcessSpec:
        """With a port for its figures that it keeps when it is started again; health says which."""
        bind = f"{self.config.host}:{free_port(self.config.host)}"
        return replace(spec, env={**spec.env, **self.config.server_env, "HOLDFAST_METRICS_BIND": bind})

    def wait_ready(self) -> None:
        """Until /healthz answers. Raises InstallationError with the end of the web log."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if self._stopped():
                raise InstallationError("it was asked to stop")
            self.supervisor.tick()
            try:
                with urllib.request.urlopen(f"{self.addresses.web}/healthz", timeout=2):  # noqa: S310 - loopback
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(POLL_S)
        tail = (self.config.logs / "web-1.log").read_text(errors="replace")[-2000:]
        raise InstallationError(f"the web process did not become ready in {READY_TIMEOUT_S:.0f} s:\n{tail}")

    def manage(self, *arguments: str) -> str:
        """Run a management command; its standard output."""
        command = (*self.python, "manage.py", *arguments)
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise InstallationError(f"manage.py {' '.join(arguments)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
        return done.stdout

    def one_time_password(self) -> str:
        """A password that logs `admin` in once; makes the user if there is none."""
        return self.manage("create_admin", ADMIN).split()[-1]

    def api_token(self, scope: str) -> str:
        """A token of `admin` with this scope, for programs; `one_time_password` first."""
        return self.manage("create_api_token", ADMIN, "--scope", scope, "--name", f"demo-{scope}").split()[-1]

    def request(self, name: str, *, down_s: float = 0.0) -> None:
        """Leave a request to kill a process, as the chaos panel does."""
        path = self.config.requests / f"{time.monotonic_ns()}.json"
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps({"kind": "kill_process", "name": name, "down_s": down_s}))
        draft.rename(path)

    def _check_paths(self) -> None:
        beside = (jobs_beside(self._node_state(node)) for node in self.config.node_names)
        over_bytes = max(map(over_long_bytes, beside), default=0)
        if over_bytes > 0:
            raise InstallationError(
                f"the path of {self.config.directory.absolute()} is {over_bytes} bytes too long for the sockets of "
                "jobs in it. Start it with a shorter one: python -m controlplane.demo --dir /tmp/holdfast"
            )

    def start_agent(self, node: str, number: int, token_file: Path) -> None:
        """A node's agent; `number` seeds its simulated devices."""
        state_dir = self._node_state(node)
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        state_dir.mkdir(mode=0o700, exist_ok=True)
        spec = agent_process(
            addresses=self.addresses, node=node, state_dir=state_dir, join_token_file=token_file,
            devices=self.config.devices_per_node, seed=number,
        )  # fmt: skip
        spec.env[MARKER] = str(state_dir)
        spec.env["HOLDFAST_AGENT_POLICY_FILE"] = str(self._policy_file)
        spec.env["HOLDFAST_AGENT_NOTICES"] = "file"
        spec.env["HOLDFAST_AGENT_NOTICE_FILE"] = str(self.notice_file(node))
        spec.env["HOLDFAST_TRAINER_NICE"] = str(self.config.trainer_nice)
        self.supervisor.start(spec)

    def notice_file(self, node: str) -> Path:
        """Where the node's agent looks for a notice of its provider (`agents.notices.file`)."""
        return self._node_state(node).parent / f"{node}.notice"

    def _write_policy(self, directory: Path) -> None:
        """What this machine's agents allow, and as whom ranks run."""
        checkpoints = directory / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        users = find_out(directory, REPOSITORY)
        log.info("%s", users.why)
        write_policy(self._policy_file, users, directory=directory, checkpoints=checkpoints)

    @property
    def _policy_file(self) -> Path:
        return self.config.directory.absolute() / "agent-policy.toml"

    def _node_state(self, node: str) -> Path:
        return self.config.node_state(node).absolute()

    def _environment(self, directory: Path) -> dict[str, str]:
        foreign = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        outside = self.config.outside
        redis_url = f"redis://:{self._redis_password}@{self.config.host}:{self.addresses.redis_port}/0"
        settings: dict[str, Any] = {
            "PROFILE": "embedded",
            "STATE_DIR": directory,
            "REDIS_URL": redis_url,
            "STORE_ADDRESS": f"{outside.host if outside else self.config.host}:{self.addresses.store_port}",
            "BIND": f"{self.config.host}:{self.addresses.web_port}",
            "DEMO": str(self.config.demo).lower(),
            "LOG_LEVEL": "INFO",
            "GRACE_S": "5",
            "REFERENCE_WHEN": self.config.reference_when,
            "REFERENCE_RUNS": self.config.reference_runs,
        }
        if self.config.demo:
            settings["DEMO_CONTROL"] = self.config.requests.absolute()
        if self.config.database_url:
            settings["DATABASE_URL"] = self.config.database_url
        ours = {f"HOLDFAST_{key}": str(value) for key, value in settings.items()}
        ours["DJANGO_SETTINGS_MODULE"] = "controlplane.config.settings.embedded"
        ours["PYTHONUNBUFFERED"] = "1"
        ours["OMP_NUM_THREADS"] = "1"
        ours["PYTHONPATH"] = str(REPOSITORY)
        return foreign | ours
