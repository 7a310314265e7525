"""Reservations over the API: set for nodes or a segment, listed, cancelled; what is hidden of private projects."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from controlplane.access.models import AuditEntry
from controlplane.access.project_models import Project, Visibility
from controlplane.access.services import create_api_token
from controlplane.fleet.models import Node, Reservation
from controlplane.runtime.clock import iso, now
from tests.integration.api.conftest import Caller, make_node

pytestmark = pytest.mark.django_db


def body(project: str = "default", starts_s: float = 600.0, lasts_s: float = 3600.0, **fields: Any) -> dict[str, Any]:
    begins = now() + timedelta(seconds=starts_s)
    times = {"starts_at": iso(begins), "ends_at": iso(begins + timedelta(seconds=lasts_s))}
    return {"project": project, "reason": "a deadline", **times, **fields}


def test_an_operator_sets_lists_and_cancels_one_over_the_nodes_of_a_segment(caller: Any) -> None:
    for name, segment in (("node-1", "rack-1"), ("node-2", "rack-1"), ("node-3", "rack-2")):
        Node.objects.filter(pk=make_node(name).pk).update(segment=segment)
    ada = caller("operate")
    answer = ada.post("/reservations", body(segment="rack-1"))
    assert answer.status_code == 202 and "2 nodes are reserved for project default from" in answer.json()["detail"]
    (listed,) = ada.get("/reservations?holds=true&project=default").json()["items"]
    assert [node["name"] for node in listed["nodes"]] == ["node-1", "node-2"]
    assert (listed["id"], listed["project"]) == (answer.json()["reservation"], "default")
    other = Node.objects.get(name="node-3").pk
    assert ada.get(f"/reservations?node_id={other}&count=true").json()["total"] == 0
    assert ada.post(f"/reservations/{listed['id']}:cancel", {"reason": "not needed"}).status_code == 202
    assert ada.post(f"/reservations/{listed['id']}:cancel", {"reason": "again"}).status_code == 409
    assert (
        ada.get("/reservations?holds=true&count=true").json()["total"] == 0
        and ada.get("/reservations?count=true").json()["total"] == 1
    )
    assert AuditEntry.objects.get(action="reservation.set").data["nodes"] == ["node-1", "node-2"]


def test_what_is_none_is_refused(caller: Any) -> None:
    node, ada = make_node("node-1"), caller("operate")
    for wrong in (
        body(),
        body(nodes=[node.pk], segment="rack-1"),
        body(nodes=[node.pk], lasts_s=-5.0),
        body(nodes=[node.pk], starts_at="2026-01-01T00:00:00"),
        body(nodes=[node.pk], reason=""),
    ):
        assert ada.post("/reservations", wrong).status_code == 422, wrong
    assert ada.post("/reservations", body(nodes=[node.pk], project="none")).status_code == 404
    assert ada.post("/reservations", body(segment="rack-9")).status_code == 404
    assert caller("submit").post("/reservations", body(nodes=[node.pk])).status_code == 403
    assert not Reservation.objects.exists()


def test_of_a_private_project_others_see_nodes_and_times_alone_and_cancel_nothing(caller: Any) -> None:
    Project.objects.create(name="secret", visibility=Visibility.PRIVATE, created_by="ada")
    node, admin = make_node("node-1"), caller("admin")
    bob = User.objects.create_user("bob")
    bob.groups.add(Group.objects.get_or_create(name="operate")[0])
    bob_calls = Caller(create_api_token(bob, name="bob", scope="operate").secret)
    assert bob_calls.post("/reservations", body("secret", nodes=[node.pk])).status_code == 404
    made = admin.post("/reservations", body("secret", nodes=[node.pk])).json()["reservation"]
    assert admin.get("/reservations").json()["items"][0]["project"] == "secret"
    (shown,) = bob_calls.get(f"/reservations?node_id={node.pk}").json()["items"]
    assert (shown["project"], shown["reason"], shown["who"]) == ("another project", "", "")
    assert [each["name"] for each in shown["nodes"]] == ["node-1"]
    assert bob_calls.get("/reservations?project=secret").status_code == 404
    assert bob_calls.post(f"/reservations/{made}:cancel", {"reason": "mine"}).status_code == 404
    taken = bob_calls.post("/reservations", body(nodes=[node.pk]))
    assert taken.status_code == 409 and "secret" not in taken.text
