"""Yesterday's backup is restored while agents and ranks run (O3, O4, F29): the drill."""

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.demo.installation import Installation
from controlplane.demo.supervisor import BACKEND
from tests.scenes.conftest import Ring
from tests.scenes.helpers import kill_all, live_ranks, pids, scene_job, submit_and_train, wait_for_step

pytestmark = [pytest.mark.scenes, pytest.mark.timeout(900)]

TRUE_WITHIN_S = 30.0
"""Of the server's return: agents wait up to some seconds before they come back."""
PROGRAM = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(3600)"


def own_program(name: str) -> dict[str, Any]:
    """One rank of a program of its own, which leaves when it is asked to."""
    spec = scene_job(name=name, nodes=1, pp=1, spare_gpus=0)
    del spec["spec"]["model"], spec["spec"]["training"]
    spec["spec"]["resources"] = {"nodes": 1, "gpus_per_node": 1, "min_replicas": 1}
    spec["spec"]["entrypoint"] = [sys.executable, "-c", PROGRAM]
    return spec


def database(installation: Installation) -> Path:
    (found,) = installation.config.directory.glob("*.sqlite3")
    return found


def back_up(source: Path, target: Path) -> None:
    """As docs/backup.md says, while everything runs."""
    with contextlib.closing(sqlite3.connect(source)) as live, contextlib.closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


def restore(ring: Ring, backup: Path, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The server's processes end, the backup takes the database's place, they start again."""
    supervisor, path = ring.installation.supervisor, database(ring.installation)
    web = supervisor.pid("web-1")
    for part in BACKEND:
        supervisor.kill(part, down_s=6.0)
    for old in (path, *path.parent.glob(f"{path.name}-*")):
        old.unlink()
    back_up(backup, path)
    meanwhile()
    ring.driver.wait("another web process", lambda: supervisor.pid("web-1") not in (None, web), timeout_s=60)
    ring.driver.wait("the server answers", lambda: ring.driver.get("/nodes"), timeout_s=60)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def state_of(ring: Ring, job_id: str) -> str:
    return str(ring.driver.get(f"/jobs/{job_id}")["state"])


def epoch_of(ring: Ring, job_id: str) -> int:
    return int(ring.driver.get(f"/jobs/{job_id}")["epoch"])


def pid_of(ring: Ring, job_id: str) -> int:
    def known() -> int | None:
        return next((rank["pid"] for rank in live_ranks(ring.driver, job_id).values() if rank["pid"]), None)

    return int(ring.driver.wait("the rank's process is known", known, timeout_s=60))


def test_after_a_restore_with_agents_running_what_is_shown_is_true_and_new_work_starts(
    ring: Ring, tmp_path: Path
) -> None:
    driver = ring.driver
    trains = submit_and_train(driver, scene_job(name="trains", nodes=2, spare_gpus=0), until_step=12)
    ended = driver.post("/jobs", own_program("ended"))["id"]
    ended_pid = pid_of(ring, ended)
    backup = tmp_path / "yesterday.sqlite3"
    back_up(database(ring.installation), backup)

    # After the backup: one replica is replaced, a job is cancelled, another begins.
    first_epoch = epoch_of(ring, trains)
    kill_all([pids(driver, trains)[1, 0]])
    driver.wait("a newer epoch", lambda: epoch_of(ring, trains) > first_epoch + 1, timeout_s=90)
    step = wait_for_step(driver, trains, driver.get(f"/jobs/{trains}")["committed_step"] + 5)["committed_step"]
    theirs = epoch_of(ring, trains)
    driver.post(f"/jobs/{ended}:cancel", {"reason": "after the backup"})
    driver.wait("its rank is gone", lambda: not is_running(ended_pid), timeout_s=60)
    late_pid = pid_of(ring, driver.post("/jobs", own_program("late"))["id"])
    victim = pids(driver, trains)[0, 1]

    # The second fault: a rank dies while the server is being restored.
    restore(ring, backup, meanwhile=lambda: os.kill(victim, 9))

    driver.wait("the ended job is ended", lambda: state_of(ring, ended) == "cancelled", timeout_s=TRUE_WITHIN_S)
    driver.wait("the unknown rank is stopped", lambda: not is_running(late_pid), timeout_s=TRUE_WITHIN_S)
    told = driver.items("/events?limit=500")
    assert [event for event in told if event["kind"] == "node.unknown_ranks"], "it is told of"
    # Each of its agents comes back in its own time; until one has, nobody knows of the newer epoch.
    driver.wait("no epoch older than the agents'", lambda: epoch_of(ring, trains) >= theirs, timeout_s=TRUE_WITHIN_S)
    wait_for_step(driver, trains, step + 5, timeout_s=180)
    orders = driver.items(f"/jobs/{trains}/commands?limit=500")
    stale = [order for order in orders if order["state"] == "superseded" and "is older than" in (order["detail"] or "")]
    assert stale == [], "an agent was ordered an older epoch"

    # O4: a new agent is welcomed and its start order is carried out.
    join = ring.installation.manage("create_join_token", "--cidr", "127.0.0.0/8,::1/128").strip().splitlines()[-1]
    add_node(ring, "node-new", join, tmp_path)
    driver.wait("the new agent is welcomed", lambda: connected(ring, "node-new"), timeout_s=TRUE_WITHIN_S)
    fresh = driver.post("/jobs", own_program("fresh"))["id"]
    fresh_pid = pid_of(ring, fresh)

    # The documented cancel works, on what was restored and on what is new.
    victims = [*pids(driver, trains).values(), fresh_pid]
    for job_id in (trains, fresh):
        driver.post(f"/jobs/{job_id}:cancel", {"reason": "the drill is over"})
    driver.wait("no rank lives", lambda: not any(map(is_running, victims)), timeout_s=60)
    assert {state_of(ring, trains), state_of(ring, fresh)} == {"cancelled"}


def connected(ring: Ring, name: str) -> bool:
    return any(node["name"] == name and node["connected"] for node in ring.driver.items("/nodes"))


def add_node(ring: Ring, name: str, join_token: str, directory: Path) -> None:
    """Another agent of the same installation."""
    token_file = directory / f"join-{name}"
    token_file.touch(0o600)
    token_file.write_text(join_token)
    ring.installation.start_agent(name, 99, token_file)
