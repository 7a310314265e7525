"""Keeps the processes of one installation running, and breaks them on request.

Single-threaded: one loop reaps, restarts after a delay, and executes requests that the
chaos panel or a scene left as JSON files. Every process has its own session, so that a
signal for one never reaches another; ends only processes that it started, by pid.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.config.guards import UMASK
from controlplane.demo.nodes import kill_node_processes
from controlplane.demo.processes import ProcessSpec

log = logging.getLogger("holdfast.demo")

LOOP_S = 0.05
STOP_GRACE_S = 8.0
SETTINGS = ("HOLDFAST_", "DJANGO_")
SERVERS_FROM = 60
"""The stop order from which on a process serves others: it ends after them."""
MAX_RESTART_DELAY_S = 10.0
STABLE_AFTER_S = 10.0
BACKEND = ("web-1", "sentinel", "worker", "beat", "redis")


@dataclass(slots=True)
class _Child:
    spec: ProcessSpec
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    restart_at_s: float | None = None
    failures: int = 0
    history: list[int] = field(default_factory=list)


class Supervisor:
    """Owns the children. `env` is what each gets beside its own; `logs` one file each."""

    def __init__(
        self, *, env: Mapping[str, str], logs: Path, requests: Path, node_state: Callable[[str], Path]
    ) -> None:
        self._env = dict(env)
        self._bare = {name: value for name, value in env.items() if not name.startswith(SETTINGS)}
        self._logs = logs
        self._requests = requests
        self._node_state = node_state
        self._children: dict[str, _Child] = {}
        self._stopping = False
        for directory in (logs, requests):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def start(self, spec: ProcessSpec) -> None:
        """Start a process and keep it running."""
        assert spec.name not in self._children, f"{spec.name} is started already"
        child = _Child(spec)
        self._children[spec.name] = child
        self._spawn(child)

    def pid(self, name: str) -> int | None:
        """The pid of a running process, None while it is down."""
        child = self._children.get(name)
        return child.process.pid if child and child.process and child.process.poll() is None else None

    def run(self, until: Callable[[], bool], say: Callable[[str], None] = log.warning) -> None:
        """Supervise until `until()` is true. What keeps a process from being started is said once, and tried again in
        each pass, as no process or no room for its log now."""
        said = ""
        while not until():
            try:
                self.tick()
            except Exception as error:
                if str(error) != said:
                    said = str(error)
                    say(f"A process of the control plane cannot be started: {error}")
            time.sleep(LOOP_S)

    def tick(self) -> None:
        """One pass: reap, restart what is due, execute requests. Raises OSError where one could not be started, once
        all others were: it is tried again in the next pass."""
        now_s, failed = time.monotonic(), None
        for child in tuple(self._children.values()):
            self._reap(child, now_s)
            if child.restart_at_s is not None and now_s >= child.restart_at_s:
                try:
                    self._spawn(child)
                    child.restart_at_s = None
                except OSError as error:
                    failed = error
        for path in sorted(self._requests.glob("*.json")):
            self._execute(path)
        if failed is not None:
            raise failed

    def kill(self, name: str, *, down_s: float = 0.0) -> bool:
        """SIGKILL one process; it comes back after `down_s` and its restart delay."""
        child = self._children.get(name)
        if child is None or child.process is None or child.process.poll() is not None:
            return False
        # Its end is no surprise to `tick`, which may run in another thread.
        process, child.process = child.process, None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if child.spec.restart:
            child.restart_at_s = time.monotonic() + max(down_s, child.spec.restart_delay_s)
        log.info("killed %s, back in %.1f s", name, max(down_s, child.spec.restart_delay_s))
        return True

    def kill_node(self, node: str, *, down_s: float) -> None:
        """The power goes: agent, rank hosts and ranks of a node die at once."""
        self.kill(f"agent:{node}", down_s=down_s)
        kill_node_processes(self._node_state(node))

    def stop_all(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """Ordered stop: SIGTERM, a grace, SIGKILL; then what the agents left running; then the
        servers that the others need (Redis, the store), with whatever is left of the grace."""
        self._stopping = True
        deadline_s = time.monotonic() + grace_s
        children = sorted(self._children.values(), key=lambda child: child.spec.stop_order)
        self._stop([child for child in children if child.spec.stop_order < SERVERS_FROM], deadline_s)
        self._kill_nodes()
        self._stop([child for child in children if child.spec.stop_order >= SERVERS_FROM], deadline_s)

    def kill_all(self) -> None:
        """SIGKILL for everything, in no order, waiting for nothing. Safe in a signal handler."""
        self._stopping = True
        for child in self._children.values():
            if child.process is not None and child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
        self._kill_nodes()

    def _stop(self, children: list[_Child], deadline_s: float) -> None:
        for child in children:
            if child.process and child.process.poll() is None:
                child.process.terminate()
        for child in children:
            if child.process is None:
                continue
            try:
                child.process.wait(timeout=max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("%s does not end on SIGTERM: it is killed", child.spec.name)
                os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()

    def _kill_nodes(self) -> None:
        for name in list(self._children):
            if name.startswith("agent:"):
                kill_node_processes(self._node_state(name.removeprefix("agent:")))

    def _spawn(self, child: _Child) -> None:
        log_path = self._logs / f"{child.spec.name.replace(':', '-')}.log"
        with open(log_path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
            child.process = subprocess.Popen(
                child.spec.argv,
                env=(self._env if child.spec.settings else self._bare) | child.spec.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=UMASK,
            )
        child.started_s = time.monotonic()

    def _reap(self, child: _Child, now_s: float) -> None:
        if child.process is None or child.process.poll() is None:
            return
        code = child.process.returncode
        child.process = None
        child.failures = 0 if now_s - child.started_s > STABLE_AFTER_S else child.failures + 1
        if not child.spec.restart or self._stopping:
            return
        delay_s = min(MAX_RESTART_DELAY_S, child.spec.restart_delay_s * 2 ** min(child.failures, 6))
        child.restart_at_s = now_s + delay_s
        log.warning("%s ended with %s, starting it again in %.1f s", child.spec.name, code, delay_s)

    def _execute(self, path: Path) -> None:
        try:
            request = json.loads(path.read_text())
            name, down_s = str(request["name"]), float(request.get("down_s", 0.0))
        except (ValueError, KeyError, TypeError) as error:
            log.warning("request %s is refused: %s", path.name, error)
            path.rename(path.with_suffix(".refused"))
            return
        path.unlink()
        if name == "backend":
            for part in BACKEND:
                self.kill(part, down_s=down_s)
        elif name.startswith("node:"):
            self.kill_node(name.removeprefix("node:"), down_s=down_s or 30.0)
        elif not self.kill({"web": "web-1"}.get(name, name), down_s=down_s):
            log.warning("request to kill %s: no such running process", name)
