"""One running installation with its driver, for the benchmarks that need the whole ring.

The very thing that `make demo` starts: real processes, real ranks, simulated device
sensors, loopback only. Everything ends with the block.
"""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from benchmarks.processes import REPOSITORY
from controlplane.demo.config import DemoConfig
from controlplane.demo.driver import Driver, Refused
from controlplane.demo.installation import Installation

CONNECT_TIMEOUT_S = 90.0
START_TIMEOUT_S = 180.0
AWAY_S, POLL_S = 60.0, 0.5
PROOFS_WHEN = "ended"
"""What proves a recovery must not slow down what is measured; in a fleet it has cores of its own."""
TRAINER_NICE = 0
"""As on a node of a fleet, where it is not set."""
ENDED = ("failed", "cancelled", "succeeded")
Beside = TypeVar("Beside")


class PatientDriver(Driver):
    """What breaks a ring asks again while the server that it broke is away."""

    def get(self, path: str) -> Any:
        """GET under /api/v1, for at most `AWAY_S`."""
        deadline_s = time.monotonic() + AWAY_S
        while True:
            try:
                return super().get(path)
            except (OSError, Refused) as error:
                gone = not isinstance(error, Refused) or error.status >= 500
                if not gone or time.monotonic() > deadline_s:
                    raise
            time.sleep(POLL_S)


class JobEnded(RuntimeError):
    """The job under test ended although nobody asked it to; the text is its reason."""


@dataclass(frozen=True, slots=True)
class Ring:
    """`installation` and `driver` of one running control plane."""

    installation: Installation
    driver: Driver

    def train(self, spec: dict[str, Any], *, until_step: int) -> str:
        """Submit the job and wait until it has committed that many steps; its id."""
        job_id = str(self.driver.post("/jobs", spec)["id"])
        self.wait_for_step(job_id, until_step, timeout_s=START_TIMEOUT_S)
        return job_id

    def wait_for_step(self, job_id: str, step: int, *, timeout_s: float) -> None:
        """Until the job has committed that many steps. Raises JobEnded or SceneTimeout."""

        def reached() -> bool:
            job = self.driver.get(f"/jobs/{job_id}")
            if job["state"] in ENDED:
                raise JobEnded(f"{job['state']}: {job['state_reason']}")
            return bool(job["committed_step"] >= step)

        self.driver.wait(f"step {step}", reached, timeout_s=timeout_s)

    def wait_full(self, job_id: str, *, timeout_s: float) -> None:
        """Until the job runs with every replica active."""

        def full() -> bool:
            job = self.driver.get(f"/jobs/{job_id}")
            if job["state"] in ENDED:
                raise JobEnded(f"{job['state']}: {job['state_reason']}")
            return bool(job["state"] == "running" and job["replicas_active"] == job["replicas_total"])

        self.driver.wait("every replica active", full, timeout_s=timeout_s)

    def cancel(self, job_id: str) -> None:
        """End the job; what it left can still be asked for."""
        self.driver.post(f"/jobs/{job_id}:cancel", {"reason": "everything is measured"})

    def ranks(self, job_id: str) -> dict[tuple[int, int], dict[str, Any]]:
        """(replica, rank) -> rank of the current incarnations, with its pid."""
        found = {}
        for replica in self.driver.current_replicas(job_id):
            for rank in replica["ranks"]:
                found[replica["index"], rank["rank"]] = rank
        return found

    def steps(self, job_id: str) -> list[dict[str, Any]]:
        """Every committed step of the job, in order; follows the pages."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        since = 0
        while True:
            items = self.driver.items(f"/jobs/{job_id}/steps?since_step={since}&limit=2000")
            fresh = [item for item in items if (item["attempt"], item["step"]) not in found]
            found |= {(item["attempt"], item["step"]): item for item in fresh}
            if not fresh:
                return sorted(found.values(), key=lambda item: item["at"])
            since = max(item["step"] for item in fresh)

    def incidents(self, job_id: str) -> list[dict[str, Any]]:
        """Every incident of the job in full, oldest first."""
        summaries = self.driver.whole_list(f"/jobs/{job_id}/incidents")
        ordered = sorted(summaries, key=lambda item: item["opened_at"])
        return [self.driver.get(f"/incidents/{item['id']}") for item in ordered]


@contextlib.contextmanager
def ring(name: str, *, nodes: int = 4, spare_nodes: int = 1) -> Iterator[Ring]:
    """Start an installation of its own under var/bench, stop it at the end. The files are
    kept when the block fails, because logs are the only evidence then."""
    with ring_within(name, _nothing_beside, nodes=nodes, spare_nodes=spare_nodes) as (running, _):
        yield running


@contextlib.contextmanager
def _nothing_beside(_directory: Path) -> Iterator[None]:
    yield


@contextlib.contextmanager
def ring_within(
    name: str,
    beside: Callable[[Path], contextlib.AbstractContextManager[Beside]],
    *,
    server_env: Mapping[str, str] = MappingProxyType({}),
    nodes: int = 4,
    spare_nodes: int = 1,
) -> Iterator[tuple[Ring, Beside]]:
    """As `ring`, within what `beside` makes of its directory. `server_env`: as of `DemoConfig`."""
    root = REPOSITORY / "var" / "bench"
    root.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
    installation = Installation(
        DemoConfig(
            directory=directory,
            port=0,
            nodes=nodes,
            spare_nodes=spare_nodes,
            reference_when=PROOFS_WHEN,
            trainer_nice=TRAINER_NICE,
            server_env=server_env,
        )
    )
    stop = threading.Event()
    keeper = threading.Thread(target=installation.supervisor.run, args=(stop.is_set,), daemon=True)
    within = contextlib.ExitStack()
    try:
        found = within.enter_context(beside(directory))
        installation.start()
        installation.manage("create_admin")
        token = installation.manage("create_api_token", "admin", "--scope", "admin", "--name", "benchmark").split()[-1]
        keeper.start()
        driver = PatientDriver(installation.addresses.web, token)
        total = nodes + spare_nodes
        driver.wait("all agents connected", lambda: _connected(driver) == total, timeout_s=CONNECT_TIMEOUT_S)
        yield Ring(installation, driver), found
    finally:
        stop.set()
        if keeper.is_alive():
            keeper.join(timeout=5.0)
        installation.supervisor.stop_all()
        within.close()
    shutil.rmtree(directory, ignore_errors=True)


def _connected(driver: Driver) -> int:
    return sum(1 for node in driver.items("/nodes") if node["connected"])


def unix_s(text: str) -> float:
    """An API time as Unix seconds. Server and benchmark share one machine and so one clock."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
