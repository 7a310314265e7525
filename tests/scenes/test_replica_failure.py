"""A replica dies, or hangs, while a real job trains: scenes 1 and 2. The third fault comes of
a job's own schedule, by way of the control plane, an agent and its rank."""

import os
import signal
from typing import Any

import pytest

from tests.scenes.conftest import Ring
from tests.scenes.helpers import (
    all_steps,
    assert_certificate_green,
    assert_no_step_missing,
    cancel,
    incidents,
    live_ranks,
    pids,
    scene_job,
    submit_and_train,
    wait_certificate,
    wait_for_step,
    wait_resolved,
)

SCHEDULED_S = 6.0
LOOK_EVERY_S = 60.0
pytestmark = [pytest.mark.scenes, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def job_id(ring: Ring) -> str:
    spec = scene_job(name="survivor")
    spec["spec"]["resiliency"]["look_every_s"] = LOOK_EVERY_S
    return submit_and_train(ring.driver, spec, until_step=15)


def test_a_killed_rank_costs_no_step_and_its_replica_comes_back_from_a_peer(ring: Ring, job_id: str) -> None:
    before = pids(ring.driver, job_id)
    epoch_before = ring.driver.get(f"/jobs/{job_id}")["epoch"]

    os.kill(before[1, 0], signal.SIGKILL)

    incident = wait_resolved(ring.driver, job_id)
    after = pids(ring.driver, job_id)
    job = ring.driver.get(f"/jobs/{job_id}")
    assert job["epoch"] > epoch_before
    assert job["replicas_active"] == 3
    survivors = [key for key in before if key[0] != 1]
    assert [after[key] for key in survivors] == [before[key] for key in survivors], "a survivor was restarted"
    assert after[1, 0] != before[1, 0]
    assert after[1, 1] != before[1, 1], "the rest of the broken replica lives on"
    replica = next(r for r in ring.driver.current_replicas(job_id) if r["index"] == 1)
    assert replica["incarnation"] == 2
    assert replica["caught_up"]["fetch_bytes"] > 0, "it did not catch up from a live peer"

    wait_for_step(ring.driver, job_id, job["committed_step"] + 10)
    detail = wait_certificate(ring.driver, incident["id"])
    assert_certificate_green(detail)
    assert_no_step_missing(all_steps(ring.driver, job_id))
    names = [phase["name"] for phase in detail["phases"]]
    for phase in ("detected", "decided", "view_installed", "replica_started", "caught_up"):
        assert phase in names, names
    rules = {decision["rule"] for decision in detail["decisions"]}
    assert "replica_failure" in rules
    evict = next(d for d in detail["decisions"] if d["rule"] == "replica_failure")
    assert evict["alternatives"], "no alternative was weighed"
    assert all(command["state"] == "succeeded" for command in evict["commands"] if command["kind"] == "deliver_view")


def test_a_stopped_rank_is_found_by_its_section_timeout_and_replaced(ring: Ring, job_id: str) -> None:
    known = len(incidents(ring.driver, job_id))
    before = live_ranks(ring.driver, job_id)
    victim = before[2, 1]["pid"]

    os.kill(victim, signal.SIGSTOP)

    incident = wait_resolved(ring.driver, job_id, count=known + 1)
    detail = wait_certificate(ring.driver, incident["id"])
    kinds = {found["kind"] for found in detail["signals"]}
    assert "rank_overdue" in kinds, kinds
    assert detail["stacks"], "no stack was collected from the hung replica"
    assert_certificate_green(detail)
    assert_no_step_missing(all_steps(ring.driver, job_id))
    assert not os.path.exists(f"/proc/{victim}") or _is_zombie(victim), "the hung incarnation is still there"


def test_a_job_is_looked_into_on_schedule_while_it_trains(ring: Ring, job_id: str) -> None:
    def looked() -> list[dict[str, Any]]:
        return [
            event for event in ring.driver.items(f"/jobs/{job_id}/events?limit=500") if event["kind"] == "job.looked"
        ]

    (first, *_) = ring.driver.wait("a look on schedule", looked, timeout_s=2 * LOOK_EVERY_S)
    assert "2 of 2 recorders read; nothing that does not fit" in first["sentence"]


def test_a_fault_comes_when_the_job_has_scheduled_it(ring: Ring, job_id: str) -> None:
    driver = ring.driver
    cancel(driver, job_id)
    spec = scene_job(name="rehearsed")
    spec["spec"]["resiliency"]["faults"] = {"kind": "rank_killed", "delay_s": SCHEDULED_S, "rank": 2, "times": 1}
    rehearsed = submit_and_train(driver, spec, until_step=1)

    def rehearsals() -> list[dict[str, Any]]:
        return [d for d in driver.items(f"/jobs/{rehearsed}/decisions") if d["rule"] == "rehearsal"]

    driver.wait("the scheduled fault", rehearsals, timeout_s=90)
    wait_resolved(driver, rehearsed)
    replica = next(r for r in driver.current_replicas(rehearsed) if r["index"] == 1)
    assert replica["incarnation"] == 2, "another replica was hit"
    (rehearsal,) = rehearsals()
    assert rehearsal["evidence"]["training_s"] >= SCHEDULED_S
    assert "rank_killed for rank 0 of replica 1" in rehearsal["sentence"]
    orders = driver.get(f"/decisions/{rehearsal['id']}")["commands"]
    assert [(order["kind"], order["state"]) for order in orders] == [("inject_rank_fault", "succeeded")]
    assert_no_step_missing(all_steps(driver, rehearsed))


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
