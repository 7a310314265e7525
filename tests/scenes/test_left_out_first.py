"""One rank is stuck while all others wait for it: its replica is left out first, nothing of it is ended,
and it is taken back when it gets loose. Real agents, real ranks, a process that is stopped and goes on."""

import os
import signal
from typing import Any

import pytest

from controlplane.demo.driver import Driver
from tests.scenes.conftest import Ring
from tests.scenes.helpers import (
    all_steps,
    assert_no_step_missing,
    incidents,
    pids,
    scene_job,
    submit_and_train,
    wait_for_step,
    wait_resolved,
)

PATIENT_S = 90.0
"""Its agent would find it late only then."""
STUCK = (2, 1)
pytestmark = [pytest.mark.scenes, pytest.mark.timeout(600)]


def decisions(driver: Driver, job_id: str, rule: str) -> list[dict[str, Any]]:
    """Of one rule, newest first."""
    return [found for found in driver.items(f"/jobs/{job_id}/decisions") if found["rule"] == rule]


def replica(driver: Driver, job_id: str) -> dict[str, Any]:
    """The newest life of the one that is stopped."""
    return next(row for row in driver.current_replicas(job_id) if row["index"] == STUCK[0])


def test_one_that_is_stuck_while_all_others_wait_is_left_out_first_and_taken_back(ring: Ring) -> None:
    driver = ring.driver
    spec = scene_job(name="patient")
    spec["spec"]["resiliency"]["timeouts"] |= {"step_s": "auto", "step_floor_s": PATIENT_S}
    job_id = submit_and_train(driver, spec, until_step=30)
    before = pids(driver, job_id)

    os.kill(before[STUCK], signal.SIGSTOP)
    try:
        (left_out,) = driver.wait("it is left out", lambda: decisions(driver, job_id, "leave_out"), timeout_s=60)
        stood = replica(driver, job_id)
        gone_on = wait_for_step(driver, job_id, driver.get(f"/jobs/{job_id}")["committed_step"] + 10)
        assert pids(driver, job_id) == before, "somebody was ended while it was stuck"
    finally:
        os.kill(before[STUCK], signal.SIGCONT)

    assert left_out["reason_code"] == "stuck"
    assert left_out["choice"] == "leave_out"
    assert f"replica {STUCK[0]}: it has worked on one step for" in left_out["sentence"]
    assert (stood["state"], stood["contributing"], stood["incarnation"]) == ("suspect", False, 1)
    assert gone_on["replicas_active"] == 2

    def back() -> bool:
        row = replica(driver, job_id)
        return row["state"] == "active" and row["contributing"] is True

    driver.wait("it is back", back, timeout_s=120)
    assert replica(driver, job_id)["incarnation"] == 1
    assert pids(driver, job_id) == before, "a process was replaced"
    assert replica(driver, job_id)["caught_up"]["fetch_bytes"] > 0, "it fetched nothing of what it missed"
    assert decisions(driver, job_id, "replica_failure") == []
    wait_resolved(driver, job_id)
    assert len(incidents(driver, job_id)) == 1
    back_at = driver.get(f"/jobs/{job_id}")["committed_step"]
    wait_for_step(driver, job_id, back_at + 10)
    steps = all_steps(driver, job_id)
    assert_no_step_missing(steps)
    assert all(step["hashes_equal"] is not False for step in steps), "the replicas' parameters differ"
    again = [step for step in steps if step["contributors"] == len(before) // 2 and step["step"] > back_at]
    assert again, "it trains with the others again"
    assert all(step["hashes_equal"] for step in again[:-3]), "it holds what the others hold"
