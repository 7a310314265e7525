"""Why a job waits: by the plan that its own pass asks."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.api.pages import encode
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.states import RequestKind, RequestState
from controlplane.recovery.models import Request
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
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


def waiting(ada: Any, *names: str) -> list[str]:
    """Jobs that wait for the whole fleet, by falling priority; their ids."""
    return [ada.post("/jobs", spec(name, 900 - number)).json()["id"] for number, name in enumerate(names)]


def test_the_queue_says_of_each_what_its_own_page_says(caller: Any, running: Job) -> None:
    ada = caller("submit")
    ids = waiting(ada, "first", "second", "third")
    answer = ada.get("/queue?count=true").json()
    assert [row["job_id"] for row in answer["items"]] == ids and answer["total"] == 3
    for place, row in enumerate(answer["items"], start=1):
        own = ada.get(f"/jobs/{row['job_id']}/queue").json()
        shared = set(row) & set(own) - {"behind"}
        assert {name: row[name] for name in shared} == {name: own[name] for name in shared} and len(shared) == 12
        assert (row["place"], row["behind"] and row["behind"]["id"]) == (place, own["behind"])
        job = ada.get(f"/jobs/{row['job_id']}").json()
        assert all(row[name] == job[name] for name in ("name", "owner", "project", "state"))
        assert (row["submitted_at"], row["devices"]) == (job["created_at"], 4)


def test_who_yields_stands_in_the_row_of_the_urgent_job_with_its_price(caller: Any, running: Job) -> None:
    ada = caller("submit")
    (urgent,) = waiting(ada, "urgent")
    Request.objects.create(
        id="req_1", kind=RequestKind.PREEMPT, job=running, urgent_id=urgent, who="policy", reason="r", value=42.0,
        state=RequestState.OPEN, asked_at=now(), valid_until=now(),
    )  # fmt: skip
    (row,) = ada.get("/queue").json()["items"]
    (saves,) = row["preempts"]
    assert (saves["name"], saves["asked"], saves["lost_gpu_s"]) == ("running", True, 42.0)
    (yields,) = ada.get("/capacity").json()["yields"]
    assert (yields["name"], yields["to"]["name"], yields["lost_gpu_s"]) == ("running", "urgent", 42.0)


def test_pages_of_the_queue_follow_each_other_also_when_a_job_leaves_it(caller: Any, running: Job) -> None:
    ada = caller("operate")
    ids = waiting(ada, *(f"j{number}" for number in range(5)))
    first = ada.get("/queue?limit=2&count=true").json()
    assert ([row["job_id"] for row in first["items"]], first["total"]) == (ids[:2], 5)
    second = ada.get(f"/queue?limit=2&cursor={first['next']}").json()
    assert [row["job_id"] for row in second["items"]] == ids[2:4]
    ada.post(f"/jobs/{ids[1]}:cancel", {"reason": "enough"})
    again = ada.get(f"/queue?limit=2&cursor={first['next']}").json()
    assert [row["job_id"] for row in again["items"]] == ids[2:4], "the row that the page ended with has left the queue"
    rest = ada.get(f"/queue?limit=2&cursor={again['next']}").json()
    assert ([row["job_id"] for row in rest["items"]], rest["next"]) == (ids[4:], None)
    assert ada.get("/queue?limit=501").status_code == 422


@pytest.mark.parametrize("key", ["x", "0:job_1", "-1:job_1", "1:", ":job_1", "1", "9999999999:job_1", "\u0661:job_1"])
def test_a_cursor_that_no_page_ended_with_is_refused(caller: Any, key: str) -> None:
    assert caller("read").get(f"/queue?cursor={encode(key, 'queue')}").status_code == 400


def test_nobody_waits(caller: Any) -> None:
    answer = caller("read").get("/queue?count=true").json()
    assert (answer["items"], answer["next"], answer["total"]) == ([], None, 0)


def test_more_jobs_are_no_more_queries(caller: Any, running: Job) -> None:
    ada = caller("submit")

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert ada.get("/queue").status_code == 200
        return len(seen)

    waiting(ada, "one", "two")
    queries()
    before = queries()
    waiting(ada, *(f"more{number}" for number in range(8)))
    assert ada.get("/queue?count=true").json()["total"] == 10
    assert queries() == before
