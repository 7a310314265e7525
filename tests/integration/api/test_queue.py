"""Why a job waits: by the plan that its own pass asks."""

from typing import Any

import pytest

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db


def spec(name: str, priority: int, nodes: int = 2) -> dict[str, Any]:
    """So many nodes of two devices."""
    return SPEC | {
        "metadata": {"name": name},
        "spec": SPEC["spec"]
        | {"resources": {"nodes": nodes, "gpus_per_node": 2}, "scheduling": {"priority": priority}},
    }


@pytest.fixture
def running() -> Job:
    """On both nodes of the fleet."""
    return running_job([make_node("node-1"), make_node("node-2")], SPEC | {"metadata": {"name": "running"}})


def test_a_waiting_job_says_its_place_what_it_needs_and_whom_it_outranks(caller: Any, running: Job) -> None:
    ada = caller("submit")
    urgent = ada.post("/jobs", spec("urgent", 900)).json()["id"]
    late = ada.post("/jobs", spec("late", 400, nodes=1)).json()["id"]
    found = ada.get(f"/jobs/{urgent}/queue").json()
    assert (found["place"], found["waiting"], found["turn"], found["may_start"]) == (1, 2, "no_room", True)
    assert found["needs"] == "2 nodes with 2 free devices each"
    assert (found["devices_free"], found["nodes_free"], found["ahead"]) == (0, 0, [])
    assert [job["id"] for job in found["outranks"]] == [running.id]
    assert found["expected_at"] is None, "nothing is known of the pace of what runs"
    found = ada.get(f"/jobs/{late}/queue").json()
    assert (found["place"], found["behind"], found["may_start"], found["outranks"]) == (2, urgent, False, [])
    assert found["ahead"] == [{"id": urgent, "name": "urgent", "priority": 900, "expected_end_at": None}]
    assert found["sentence"].startswith("Place 2 of 2 in the queue: ")


def test_what_the_answer_says_is_what_the_jobs_own_pass_decides(caller: Any, running: Job) -> None:
    ada = caller("submit")
    ada.post("/jobs", spec("urgent", 900))
    late = ada.post("/jobs", spec("late", 400)).json()["id"]
    reconcile_job(late)
    reason = ada.get(f"/jobs/{late}/queue").json()["sentence"].partition(": ")[2]
    assert f"Waits in the queue: {reason}" in ada.get(f"/jobs/{late}").json()["why"]


def test_a_dry_run_waits_for_whom_a_submit_would_wait_for(caller: Any) -> None:
    make_node("node-1")
    ada = caller("submit")
    assert ada.post("/jobs?dry_run=true", spec("late", 400, nodes=1)).json()["waits_for"] == ""
    ada.post("/jobs", spec("urgent", 900, nodes=1))
    told = ada.post("/jobs?dry_run=true", spec("late", 400, nodes=1)).json()
    assert told["placement"] is None and "urgent (priority 900) is ahead of it" in told["waits_for"]
    late = ada.post("/jobs", spec("late", 400, nodes=1)).json()["id"]
    reconcile_job(late)
    assert told["waits_for"] in ada.get(f"/jobs/{late}").json()["why"]


def test_a_job_that_the_fleet_cannot_hold_says_so(caller: Any, running: Job) -> None:
    ada = caller("submit")
    huge = ada.post("/jobs", spec("huge", 900, nodes=3)).json()["id"]
    assert ada.get(f"/jobs/{huge}/queue").json()["turn"] == "too_large"
    Node.objects.filter(name="node-1").update(state="cordoned")
    smaller = ada.post("/jobs", spec("smaller", 900)).json()["id"]
    assert ada.get(f"/jobs/{smaller}/queue").json()["turn"] == "too_large", "a cordoned node is no room"


def test_a_job_that_runs_is_not_in_the_queue(caller: Any, running: Job) -> None:
    found = caller("submit").get(f"/jobs/{running.id}/queue").json()
    assert (found["place"], found["waiting"]) == (None, 0)
    assert found["sentence"] == "It is not in the queue: it is running."
    assert caller("submit").get("/jobs/nobody/queue").status_code == 404


def test_a_cancelled_job_has_left_the_queue(caller: Any, running: Job) -> None:
    ada = caller("operate")
    job = caller("submit").post("/jobs", spec("over", 900)).json()["id"]
    ada.post(f"/jobs/{job}:cancel", {"reason": "enough"})
    assert ada.get(f"/jobs/{job}/queue").json()["sentence"] == "It is not in the queue: it is being cancelled."
