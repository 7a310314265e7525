"""The backend dies, part by part and all at once, while a job trains: scene 5."""

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

pytestmark = [pytest.mark.scenes, pytest.mark.timeout(420)]

PARTS = ("web-1", "worker", "sentinel", "redis", "backend")


def test_no_rank_restarts_and_nothing_is_lost_whichever_part_of_the_backend_dies(ring: Ring) -> None:
    driver = ring.driver
    job_id = submit_and_train(driver, scene_job(name="outage"), until_step=12)
    before = pids(driver, job_id)
    epoch = driver.get(f"/jobs/{job_id}")["epoch"]

    for part in PARTS:
        down = ring.installation.supervisor.pid("web-1" if part == "backend" else part)
        ring.installation.request(part, down_s=2.0)
        driver.wait(
            f"{part} is another process",
            lambda part=part, down=down: _replaced(ring, part, down),
            timeout_s=30,
        )
        step = driver.wait("server answers", lambda: driver.get(f"/jobs/{job_id}"), timeout_s=60)["committed_step"]
        wait_for_step(driver, job_id, step + 10, timeout_s=90)

    assert pids(driver, job_id) == before, "a rank was restarted by a control-plane fault"
    job = driver.get(f"/jobs/{job_id}")
    assert job["epoch"] == epoch, "membership changed although no rank was harmed"
    assert incidents(driver, job_id) == []
    assert_no_step_missing(all_steps(driver, job_id))
    driver.wait("commands that are under way are answered", lambda: not _unanswered(driver, job_id), timeout_s=60)
    commands = driver.items(f"/jobs/{job_id}/commands")
    assert len({command["id"] for command in commands}) == len(commands)
    assert all(command["state"] in ("succeeded", "superseded") for command in commands), commands


def _unanswered(driver: Driver, job_id: str) -> bool:
    """A checkpoint may be read back at this moment."""
    live = ("queued", "delivered", "acknowledged")
    return any(command["state"] in live for command in driver.items(f"/jobs/{job_id}/commands"))


@pytest.mark.parametrize("outage", range(3))
def test_a_rank_killed_while_the_backend_is_down_is_replaced_when_it_is_back(ring: Ring, outage: int) -> None:
    """Again and again: an agent that was away often has learned to wait longest."""
    driver = ring.driver
    job_id = driver.job("outage")["id"]
    known, evicted = len(incidents(driver, job_id)), len(_evictions(driver, job_id))
    victim = pids(driver, job_id)[0, 1]
    web = ring.installation.supervisor.pid("web-1")
    ring.installation.request("backend", down_s=4.0)
    driver.wait("backend down", lambda: ring.installation.supervisor.pid("web-1") != web, timeout_s=20)

    os.kill(victim, signal.SIGKILL)

    wait_resolved(driver, job_id, count=known + 1, timeout_s=120)
    evictions = _evictions(driver, job_id)
    assert len(evictions) == evicted + 1, [f"{decision['at']}: {decision['sentence']}" for decision in evictions]
    assert driver.get(f"/jobs/{job_id}")["replicas_active"] == 3


def _evictions(driver: Driver, job_id: str) -> list[dict[str, Any]]:
    decisions = driver.items(f"/jobs/{job_id}/decisions?routine=false")
    return [decision for decision in decisions if decision["rule"] == "replica_failure" and decision["applied"]]


def _replaced(ring: Ring, part: str, old: int | None) -> bool:
    new = ring.installation.supervisor.pid("web-1" if part == "backend" else part)
    return new is not None and new != old
