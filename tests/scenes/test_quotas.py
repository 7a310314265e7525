"""Two users of two projects with quotas on a full fleet: one borrows, the other has its own devices back, and who gives
them back saves first and resumes at its step; a job with a time limit ends within it, saved. Real agents and ranks."""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from controlplane.demo.config import DemoConfig
from controlplane.demo.driver import Driver, Refused
from tests.scenes.conftest import Ring, ring_of
from tests.scenes.helpers import all_steps, assert_no_step_missing, incidents, submit_and_train, wait_for_step
from tests.scenes.test_urgent_job import certified, in_state, one_node, preemption, state

LIMIT_S, GRACE_S, SLACK_S = 60.0, 20.0, 15.0
"""Of the job with a time limit; and by so much this machine may report its end later."""
pytestmark = [
    pytest.mark.scenes,
    pytest.mark.timeout(900),
    pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="long: `make test-release` runs it"),
]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ring]:
    """Two nodes of two devices, and no spare."""
    config = DemoConfig(directory=tmp_path_factory.mktemp("full"), port=0, nodes=2, spare_nodes=0, reference_runs="off")
    yield from ring_of(config, request.module.__name__)


def user_of(ring: Ring, name: str, project: str) -> Driver:
    """An account that may submit into this project, of two devices, and into no other."""
    ring.installation.manage("create_user", name, "--scope", "read")
    ring.driver.post("/projects", {"name": project, "quota_gpus": 2, "visibility": "visible", "reason": "the scene"})
    member = {"account": name, "role": "submitter", "reason": "the scene"}
    ring.driver.post(f"/projects/{project}:set-member", member)
    token = ring.installation.manage("create_api_token", name, "--scope", "submit").split()[-1]
    return Driver(ring.installation.addresses.web, token)


def of(project: str, name: str, **scheduling: Any) -> dict[str, Any]:
    """A job of two devices, with a checkpoint each five steps."""
    spec = one_node(name, interval_steps=5)
    spec["metadata"]["project"] = project
    spec["spec"]["scheduling"] = {"preempt_grace_s": GRACE_S} | scheduling
    return spec


def use(driver: Driver, project: str) -> tuple[int, int]:
    """(devices in use, of these borrowed)."""
    found = driver.get(f"/projects/{project}")
    return found["in_use_gpus"], found["borrowed_gpus"]


def test_what_is_borrowed_comes_back_with_nothing_lost_and_a_time_limit_ends_a_job_within_it_saved(full: Ring) -> None:
    driver = full.driver
    # In the demo nobody waits until a job has run for five minutes.
    put = {"text": "preempt_min_runtime_s: 0\n", "parent": 0, "reason": "the scene is short"}
    driver.post("/policy:put", put)
    ada, ben = user_of(full, "ada", "red"), user_of(full, "ben", "blue")
    with pytest.raises(Refused):
        ben.post("/jobs", of("red", "trespasser"))

    # Of higher priority than who is within its quota: what counts is that their project has more than its own.
    own = submit_and_train(ada, of("red", "own"), until_step=6)
    lent = submit_and_train(ada, of("red", "lent"), until_step=12)
    assert (use(driver, "red"), use(driver, "blue")) == ((4, 2), (0, 0))

    mine = ben.post("/jobs", of("blue", "mine", priority=100, time_limit_s=LIMIT_S))["id"]
    asked = driver.wait("one is asked", lambda: _asked(driver, mine), timeout_s=60)
    assert "of red, which uses more than its quota" in asked["sentence"]
    back, stays = (lent, own) if "lent" in asked["sentence"] else (own, lent)
    yielded = in_state(driver, back, "preempted", timeout_s=90)
    ended = preemption(driver, back, "preempt_request")
    assert ended["evidence"]["lost_steps"] == 0
    assert state(driver, stays) == "running", "no more comes back than is owed"

    wait_for_step(ben, mine, 3, timeout_s=120)
    assert (use(driver, "red"), use(driver, "blue")) == ((2, 0), (2, 0))
    waits = ada.get(f"/jobs/{back}/queue")
    assert (waits["turn"], waits["may_start"]) == ("quota", False), waits
    assert "project red has 2 devices of its own, 2 are in use" in waits["sentence"]

    over = in_state(driver, mine, "cancelled", timeout_s=LIMIT_S + 60)
    assert f"Its time limit of {LIMIT_S:.0f} s" in over["state_reason"]
    driver.wait("its devices are free", lambda: mine not in str(driver.items("/nodes")), timeout_s=GRACE_S + 60)
    driver.wait("its attempt has ended", lambda: _attempts(driver, mine) == ["ended"], timeout_s=GRACE_S + 60)
    (attempt,) = over["attempts"]
    took_s = time.time() - datetime.fromisoformat(attempt["started_at"]).timestamp()
    assert took_s <= LIMIT_S + SLACK_S, "it was to have ended by its limit"
    driver.wait("it saved as it left", lambda: _saved(driver, mine) >= _step(driver, mine), timeout_s=60)

    # Its devices are lent again: whoever gave them back resumes where it was.
    resumed = in_state(driver, back, "running", timeout_s=120)
    wait_for_step(driver, back, resumed["committed_step"] + 5, timeout_s=120)
    before, after = all_steps(driver, back, 1), all_steps(driver, back, 2)
    # What was saved as the attempt ended is kept; the step in hand, which the decision counts, may be trained again.
    again = before[-1]["step"] + 1 - after[0]["step"]
    assert again in (0, 1), "it did not resume at its step"
    assert before[-1]["step"] + 1 >= yielded["committed_step"]
    assert_no_step_missing(before[: len(before) - again] + after)
    assert use(driver, "red") == (4, 2)
    pause = driver.wait("the pause is certified", lambda: certified(driver, back, attempt=2), timeout_s=120)
    judged = {check["name"]: check["ok"] for check in pause["checks"]}
    assert all(judged[name] for name in ("sample_ledger_exact", "no_step_lost", "old_incarnation_fenced")), pause
    assert [incidents(driver, job) for job in (own, lent, mine)] == [[], [], []], "nothing of this is a fault"


def _asked(driver: Driver, job_id: str) -> dict[str, Any] | None:
    made = driver.items(f"/jobs/{job_id}/decisions?limit=100")
    return next((each for each in made if each["rule"] == "make_room"), None)


def _saved(driver: Driver, job_id: str) -> int:
    """The newest step of the job that a checkpoint holds."""
    made = driver.items(f"/jobs/{job_id}/checkpoints")
    return max((each["step"] for each in made if each["state"] in ("committed", "verified")), default=0)


def _attempts(driver: Driver, job_id: str) -> list[str]:
    """Their states."""
    return [each["state"] for each in driver.get(f"/jobs/{job_id}")["attempts"]]


def _step(driver: Driver, job_id: str) -> int:
    return int(driver.get(f"/jobs/{job_id}")["committed_step"])
