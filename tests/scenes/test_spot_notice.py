"""A node of a running job has a notice of 30 s, through a file as a provider's hook writes it: by then its replica is
relieved or has left, and when agent and ranks of the node are killed nothing is lost. Real agents, real ranks."""

import json
import os
import time
from typing import Any

import pytest

from controlplane.demo.driver import Driver
from tests.scenes.conftest import Ring
from tests.scenes.helpers import (
    all_steps,
    assert_no_step_missing,
    incidents,
    live_ranks,
    scene_job,
    submit_and_train,
    wait_for_step,
)

NOTICE_S = 30.0
AWAY_S = 600.0
pytestmark = [
    pytest.mark.scenes,
    pytest.mark.timeout(300),
    pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="long: `make test-release` runs it"),
]


def leaving(driver: Driver, job_id: str) -> list[dict[str, Any]]:
    """Decisions about the notice that did something, newest first."""
    found = [each for each in driver.items(f"/jobs/{job_id}/decisions") if each["rule"] == "known_end"]
    return [each for each in found if not each["choice"].startswith("plan_")]


def test_a_spot_notice_of_30_s_costs_no_step_and_is_no_incident(ring: Ring) -> None:
    driver = ring.driver
    job_id = submit_and_train(driver, scene_job(name="spot"), until_step=12)
    home = sorted(live_ranks(driver, job_id).items())[0][1]["node_name"]
    nodes = {node["name"]: node for node in driver.items("/nodes")}

    path, since_s = ring.installation.notice_file(home), time.monotonic()
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"leaves_in_s": NOTICE_S, "reason": "a spot notice"}))
    draft.rename(path)

    def known() -> dict[str, Any] | None:
        end: dict[str, Any] | None = driver.get(f"/nodes/{nodes[home]['id']}")["known_end"]
        return end

    end = driver.wait("the node says that it leaves", known, timeout_s=10)
    assert (end["source"], end["reason"], end["back_at"]) == ("spot", "a spot notice", None)

    def is_empty() -> bool:
        return all(
            rank["node_name"] != home or rank["state"] == "exited" for rank in live_ranks(driver, job_id).values()
        )

    driver.wait("nothing of the job is on the node", is_empty, timeout_s=NOTICE_S)
    taken_s = time.monotonic() - since_s
    assert taken_s < NOTICE_S, "it was empty before it was to leave"
    acts = {each["choice"] for each in leaving(driver, job_id)}
    assert acts & {"relieve", "leave"}, leaving(driver, job_id)

    time.sleep(max(0.0, NOTICE_S - taken_s))
    ring.installation.supervisor.kill_node(home, down_s=AWAY_S)
    gone_at = driver.get(f"/jobs/{job_id}")["committed_step"]
    wait_for_step(driver, job_id, gone_at + 10)

    job = driver.get(f"/jobs/{job_id}")
    assert job["attempt"] == 1, "nothing was started again from a checkpoint"
    assert incidents(driver, job_id) == [], "no fault, no incident"
    steps = all_steps(driver, job_id)
    assert_no_step_missing(steps)
    assert all(step["hashes_equal"] is not False for step in steps), "the replicas' parameters differ"
    assert steps[0]["step"] <= 1 and steps[-1]["step"] >= gone_at + 5
