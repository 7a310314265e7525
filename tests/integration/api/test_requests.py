"""What people asked for, as the API lists, shows and takes it back."""

from typing import Any

import pytest

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Request
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def job(db: None) -> Job:
    return running_job([make_node("node-1"), make_node("node-2")], SPEC)


def test_the_list_is_paged_newest_first_and_filtered_by_kind_state_and_subject(caller: Any, job: Job) -> None:
    ada = caller("operate")
    for number in range(3):
        ada.post(f"/jobs/{job.id}:checkpoint", {"reason": f"wish {number}"})
    ada.post(f"/jobs/{job.id}:evict-replica", {"replica": 1, "reason": "slow"})
    node = Node.objects.get(name="node-1")
    ada.post(f"/nodes/{node.id}:drain", {"reason": "new fans"})
    first = ada.get("/requests?limit=2&count=true").json()
    assert (first["total"], [row["kind"] for row in first["items"]]) == (5, ["drain", "evict"])
    rest = ada.get(f"/requests?limit=4&cursor={first['next']}").json()
    assert ([row["reason"] for row in rest["items"]], rest["next"]) == (["wish 2", "wish 1", "wish 0"], None)
    drains = ada.get(f"/requests?kind=drain&node_id={node.id}&state=open,taken").json()["items"]
    assert [(row["node_name"], row["job_id"], row["state"]) for row in drains] == [("node-1", None, "open")]
    assert ada.get(f"/requests?job_id={job.id}&kind=evict,fault&count=true").json()["total"] == 1
    for query in ("kind=meteor", "state=forgotten"):
        answer = ada.get(f"/requests?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/query/{query.split('=')[0]}")


def test_one_is_told_with_its_answer_and_taken_back_by_who_may_order(caller: Any, job: Job) -> None:
    ada = caller("operate")
    asked = ada.post(f"/jobs/{job.id}:checkpoint", {"reason": "before lunch"}).json()["request"]
    row = ada.get(f"/requests/{asked}").json()
    assert (row["who"][:16], row["reason"], row["state"], row["answer"]) == (
        "user:ada (token ",
        "before lunch",
        "open",
        "",
    )
    assert caller("read").post(f"/requests/{asked}:withdraw", {"reason": "r"}).status_code == 403
    assert ada.post(f"/requests/{asked}:withdraw", {"reason": "no need"}).status_code == 202
    assert "no need" in ada.get(f"/requests/{asked}").json()["withdrawn_by"]
    Request.objects.filter(pk=asked).update(state="withdrawn")
    assert ada.post(f"/requests/{asked}:withdraw", {"reason": "again"}).status_code == 409
    assert ada.get("/requests/ask_none").status_code == 404


def test_a_drain_is_asked_for_once_and_has_its_evictions_as_parts(caller: Any, job: Job) -> None:
    ada, node = caller("operate"), Node.objects.get(name="node-1")
    first, again = (ada.post(f"/nodes/{node.id}:drain", {"reason": "new fans"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json() and AuditEntry.objects.filter(action="node.drain").count() == 1
    assert ada.get(f"/nodes/{node.id}").json()["state"] == "draining"
    whole = Request.objects.get(pk=first.json()["request"])
    part = {"attempt": 1, "replica": 0, "incarnation": 1, "asked_at": whole.asked_at, "valid_until": whole.valid_until}
    Request.objects.create(id="ask_part", kind="evict", job=job, drain=whole, who="ada", reason="r", **part)
    told = ada.get(f"/requests/{whole.pk}").json()
    assert [(each["id"], each["replica"], each["drain"]) for each in told["parts"]] == [("ask_part", 0, whole.pk)]
    assert ada.post(f"/requests/{whole.pk}:withdraw", {"reason": "not today"}).status_code == 202
    reconcile_fleet()
    assert ada.get(f"/nodes/{node.id}").json()["state"] == "ready"
    assert ada.get("/requests/ask_part").json()["withdrawn_by"].startswith("the drain ask_")
