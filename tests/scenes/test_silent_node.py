"""A whole node falls silent: its agent, rank hosts and ranks stand still, nothing of them is heard. Shorter
than the lease it is left out and comes back as it is; longer, it is ended and placed elsewhere. Each time a rank
elsewhere dies meanwhile. Real agents, real ranks; the node is stopped and goes on."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.demo.driver import Driver
from controlplane.demo.nodes import processes_of
from tests.scenes.conftest import Ring
from tests.scenes.helpers import (
    all_steps,
    assert_no_step_missing,
    cancel,
    incidents,
    live_ranks,
    pids,
    scene_job,
    submit_and_train,
    wait_for_step,
    wait_resolved,
)

PATIENT_S = 90.0
"""The node's own agent would find its ranks late only then, when both go on."""
LONG_LEASE_S = 60.0
SHORT_LEASE_S = 12.0
TOLD_WITHIN_S = 10.0
"""2 s of silence, 2 s for which the others wait, and what a busy machine adds."""
SILENT, KILLED = 2, 0
pytestmark = [pytest.mark.scenes, pytest.mark.timeout(600)]


def train(driver: Driver, name: str, *, lease_s: float) -> str:
    """A job of three replicas with this lease; its id."""
    spec = scene_job(name=name)
    spec["spec"]["resiliency"]["timeouts"] |= {"step_floor_s": PATIENT_S, "lease_s": lease_s}
    return submit_and_train(driver, spec, until_step=20)


@contextlib.contextmanager
def silent(ring: Ring, node: str) -> Iterator[None]:
    """Everything of the node stands still, the agent first, and goes on at the end."""
    agent = ring.installation.supervisor.pid(f"agent:{node}")
    assert agent is not None
    stopped = [agent]
    os.kill(agent, signal.SIGSTOP)
    try:
        for pid in processes_of(ring.installation.config.node_state(node).absolute()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        yield
    finally:
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def decisions(driver: Driver, job_id: str, rule: str) -> list[dict[str, Any]]:
    """Of one rule, newest first."""
    return [found for found in driver.items(f"/jobs/{job_id}/decisions") if found["rule"] == rule and found["applied"]]


def ended(driver: Driver, job_id: str, replica: int) -> list[dict[str, Any]]:
    """Decisions that ended this replica."""
    told = f"replica {replica}"
    return [found for found in decisions(driver, job_id, "replica_failure") if told in found["sentence"].lower()]


def replica(driver: Driver, job_id: str, index: int) -> dict[str, Any]:
    """Its newest life; {} while it has none: its successor is placed a moment after it was ended."""
    return next((row for row in driver.current_replicas(job_id) if row["index"] == index), {})


def standing(driver: Driver, job_id: str, index: int) -> list[Any]:
    """State, whether it contributes, and incarnation."""
    row = replica(driver, job_id, index)
    return [row.get(field) for field in ("state", "contributing", "incarnation")]


def wait_trains(driver: Driver, job_id: str, index: int, *, incarnation: int) -> None:
    """Until this life of the replica contributes."""

    expected = ["active", True, incarnation]
    driver.wait(f"replica {index} trains", lambda: standing(driver, job_id, index) == expected, timeout_s=180)


def assert_left_out_in_time(driver: Driver, job_id: str, node: str) -> None:
    """The decision that left the silent node's replica out, and ended nothing."""
    (left_out,) = driver.wait("it is left out", lambda: decisions(driver, job_id, "leave_out"), timeout_s=60)
    assert left_out["reason_code"] == "node_silent"
    assert left_out["evidence"]["nodes"] == node
    assert left_out["evidence"]["silent_s"] < TOLD_WITHIN_S
    assert standing(driver, job_id, SILENT) == ["suspect", False, 1]


def assert_sound(driver: Driver, job_id: str) -> None:
    """It trains on with all three, nothing was lost, all hold the same, and no attempt was begun anew."""
    at = driver.get(f"/jobs/{job_id}")["committed_step"]
    job = wait_for_step(driver, job_id, at + 10)
    assert (job["replicas_active"], job["restarts"]) == (3, 0)
    steps = all_steps(driver, job_id)
    assert_no_step_missing(steps)
    assert all(step["hashes_equal"] is not False for step in steps), "the replicas' parameters differ"


def test_silent_for_less_than_its_lease_it_is_left_out_and_rejoins_while_another_dies(ring: Ring) -> None:
    driver = ring.driver
    job_id = train(driver, "briefly", lease_s=LONG_LEASE_S)
    before, node = pids(driver, job_id), live_ranks(driver, job_id)[SILENT, 0]["node_name"]

    with silent(ring, node):
        assert_left_out_in_time(driver, job_id, node)
        wait_for_step(driver, job_id, driver.get(f"/jobs/{job_id}")["committed_step"] + 5)
        os.kill(before[KILLED, 1], signal.SIGKILL)
        driver.wait("the other is evicted", lambda: ended(driver, job_id, KILLED), timeout_s=30)
        assert replica(driver, job_id, SILENT)["incarnation"] == 1

    wait_trains(driver, job_id, SILENT, incarnation=1)
    wait_trains(driver, job_id, KILLED, incarnation=2)
    after = pids(driver, job_id)
    stayed = [key for key in before if key[0] != KILLED]
    assert [after[key] for key in stayed] == [before[key] for key in stayed], "a process was replaced"
    assert replica(driver, job_id, SILENT)["caught_up"]["fetch_bytes"] > 0, "it fetched nothing of what it missed"
    assert ended(driver, job_id, SILENT) == []
    wait_resolved(driver, job_id, count=2)
    assert len(incidents(driver, job_id)) == 2, "one for the silent node, one for the rank that was killed"
    assert_sound(driver, job_id)
    cancel(driver, job_id)


def test_silent_for_longer_than_its_lease_it_is_ended_and_placed_elsewhere_while_another_dies(ring: Ring) -> None:
    driver = ring.driver
    job_id = train(driver, "for-good", lease_s=SHORT_LEASE_S)
    before, node = pids(driver, job_id), live_ranks(driver, job_id)[SILENT, 0]["node_name"]

    with silent(ring, node):
        assert_left_out_in_time(driver, job_id, node)
        os.kill(before[KILLED, 1], signal.SIGKILL)
        (over,) = driver.wait("its lease is over", lambda: ended(driver, job_id, SILENT), timeout_s=120)
        wait_trains(driver, job_id, SILENT, incarnation=2)
        wait_trains(driver, job_id, KILLED, incarnation=2)
        assert live_ranks(driver, job_id)[SILENT, 0]["node_name"] != node

    assert over["evidence"]["silent_s"] >= SHORT_LEASE_S
    gone = [before[SILENT, 0], before[SILENT, 1]]
    driver.wait("what it was is ended", lambda: not any(map(_lives, gone)), timeout_s=60)
    wait_resolved(driver, job_id, count=2)
    assert_sound(driver, job_id)
    assert replica(driver, job_id, SILENT)["incarnation"] == 2, "the old one came back"
    cancel(driver, job_id)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
