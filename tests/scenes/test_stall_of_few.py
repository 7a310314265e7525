"""Two of four replicas stand still at once and speak, as behind a switch that is lost: the others train on without
them, nothing of them is ended, and both come back. Real agents, real ranks."""

import os
from concurrent.futures import ThreadPoolExecutor
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

pytestmark = [
    pytest.mark.scenes,
    pytest.mark.timeout(480),
    pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="long: `make test-release` runs it"),
]
FEW = (1, 2)
LIMIT_S, HANG_S = 8.0, 35.0
"""A step may last so long, and they stand still for so long."""


def of_rule(driver: Driver, job_id: str, rule: str) -> list[dict[str, Any]]:
    return [found for found in driver.items(f"/jobs/{job_id}/decisions") if found["rule"] == rule]


def test_two_of_four_that_stand_still_at_once_are_left_out_together_and_both_come_back(ring: Ring) -> None:
    driver = ring.driver
    spec = scene_job(name="behind-a-switch", nodes=4, global_batch=16, delay_s=0.4, spare_gpus=0)
    spec["spec"]["resiliency"]["timeouts"] |= {"step_s": LIMIT_S}
    job_id = submit_and_train(driver, spec, until_step=6)
    before = pids(driver, job_id)

    def stand(index: int) -> None:
        fault = {"replica": index, "rank": 0, "fault": "hang", "value": HANG_S, "reason": "a switch is lost"}
        driver.post(f"/jobs/{job_id}:fault", fault)

    with ThreadPoolExecutor() as at_once:
        list(at_once.map(stand, FEW))

    left = driver.wait("they are left out", lambda: of_rule(driver, job_id, "leave_out"), timeout_s=60)
    committed = driver.get(f"/jobs/{job_id}")["committed_step"]
    assert wait_for_step(driver, job_id, committed + 3)["replicas_active"] == 2
    assert pids(driver, job_id) == before, "somebody was ended while it stood still"
    stalls = [found for found in left if found["reason_code"] == "stalled"]
    assert stalls and stalls[-1]["sentence"].startswith(
        "2 of 4 replicas are late in step at once, here replicas 1 and 2"
    )
    assert "2 replicas continue without them" in stalls[-1]["sentence"]

    def whole() -> bool:
        return all(row["state"] == "active" and row["contributing"] for row in driver.current_replicas(job_id))

    driver.wait("both are back", whole, timeout_s=120)
    assert pids(driver, job_id) == before, "a process was replaced"
    assert of_rule(driver, job_id, "replica_failure") == [] == of_rule(driver, job_id, "restart")
    wait_resolved(driver, job_id)
    (incident,) = incidents(driver, job_id)
    assert incident["title"] == "2 of 4 replicas are late in step at once"
    assert incident["outcome"] == "recovered", incident
    back_at = driver.get(f"/jobs/{job_id}")["committed_step"]
    wait_for_step(driver, job_id, back_at + 5)
    steps = all_steps(driver, job_id)
    assert_no_step_missing(steps)
    assert all(step["hashes_equal"] is not False for step in steps), "the replicas' parameters differ"
