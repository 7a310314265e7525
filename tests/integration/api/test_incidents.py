"""Incidents over the API: how they ended, and a person's acknowledgement."""

from typing import Any
from urllib.parse import quote

import pytest

from controlplane.access.models import AuditEntry
from controlplane.policy.signals.devices import XidError
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Incident
from controlplane.recovery.signals import raise_signal
from tests.findings import finding
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db


@pytest.fixture
def job(db: None) -> Any:
    return running_job([make_node("node-1"), make_node("node-2")], SPEC)


def test_a_lost_job_stays_on_the_overview_until_somebody_acknowledges_it(caller: Any, job: Any) -> None:
    Incident.objects.update(state="resolved", outcome="lost", certificate=None, phases=[])
    reader, operator = caller("read"), caller("operate")
    other = Incident.objects.get()
    other.pk = "inc_another"
    other.save(force_insert=True)
    assert reader.get("/overview").json()["attention"]["lost"] == 1, "of one job two incidents were open"
    other.delete()
    (row,) = reader.get("/incidents").json()["items"]
    assert (row["outcome"], row["recovery_s"], row["certificate"]) == ("lost", None, None)
    attention = reader.get("/overview").json()["attention"]
    assert (attention["lost"], attention["live"], attention["hardware"]) == (1, 0, 0)
    assert [item["id"] for item in attention["incidents"]] == [row["id"]]
    path = f"/incidents/{row['id']}:acknowledge"
    assert reader.post(path, {"reason": "mine"}).status_code == 403
    assert operator.post(path, {"reason": ""}).status_code == 422
    assert operator.post(path, {"reason": "mine"}).status_code == 202
    assert operator.post(path, {"reason": "mine too"}).status_code == 409
    assert reader.get("/overview").json()["attention"]["incidents"] == []
    told = reader.get(f"/incidents/{row['id']}").json()
    assert (told["acknowledgement"], told["acknowledged_at"] is not None) == ("mine", True)
    assert AuditEntry.objects.filter(action="incident.acknowledge", subject=row["id"]).exists()
    assert operator.post("/incidents/inc_nobody:acknowledge", {"reason": "r"}).status_code == 404


def test_a_fault_of_the_fleet_is_shown_without_a_job_and_handed_over(caller: Any) -> None:
    node = make_node("node-9")
    raise_signal(finding(XidError, node_id=node.id, device_index=0, xid=79))
    assert reconcile_fleet() == 1
    operator = caller("operate")
    assert operator.get("/incidents?state=open,resolved").json()["items"] == []
    (row,) = operator.get("/incidents?state=mitigated").json()["items"]
    assert (row["job_id"], row["node_name"], row["needs_hardware"]) == (None, "node-9", True)
    assert row["title"] == "XID 79 on device 0 of node-9"
    overview = operator.get("/overview").json()
    assert overview["attention"]["hardware"] == 1
    assert overview["recent_decisions"][0]["job_id"] is None
    decision = overview["recent_decisions"][0]["id"]
    assert operator.get(f"/decisions/{decision}").json()["choice"] == "cordon"
    assert operator.post(f"/incidents/{row['id']}:acknowledge", {"reason": "RMA 1"}).status_code == 202
    told = operator.get(f"/incidents/{row['id']}").json()
    assert (told["state"], told["outcome"]) == ("resolved", "mitigated")
    assert "RMA 1" in told["resolution"]


@pytest.mark.parametrize("q", ["xid 79", "NODE-9"])
def test_incidents_are_found_by_part_of_their_title_or_of_their_nodes_name(caller: Any, q: str) -> None:
    for name, xid in (("node-9", 79), ("node-8", 48)):
        raise_signal(finding(XidError, node_id=make_node(name).id, device_index=0, xid=xid))
    reconcile_fleet()
    page = caller("read").get(f"/incidents?q={quote(q)}&count=true").json()
    assert ([item["node_name"] for item in page["items"]], page["total"]) == (["node-9"], 1)


def test_incidents_are_found_by_the_name_of_their_job(caller: Any, job: Any) -> None:
    reader = caller("read")
    assert reader.get(f"/incidents?q={job.name[1:].upper()}&count=true").json()["total"] == Incident.objects.count() > 0
    assert reader.get(f"/incidents?q={job.name}-other").json()["items"] == []
    assert reader.get("/incidents?q=" + "x" * 101).status_code == 422
