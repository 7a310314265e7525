"""Maintenance windows over the API: set for a node, for many, for a segment; listed, shown on the node, cancelled."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane.access.models import AuditEntry
from controlplane.fleet.models import KnownEnd, Node
from controlplane.runtime.clock import iso, now
from tests.integration.api.conftest import make_node

pytestmark = pytest.mark.django_db


def window(starts_s: float = 600.0, lasts_s: float = 3600.0, **fields: Any) -> dict[str, Any]:
    begins = now() + timedelta(seconds=starts_s)
    return {"starts_at": iso(begins), "ends_at": iso(begins + timedelta(seconds=lasts_s)), "reason": "fans"} | fields


def test_a_nodes_window_is_on_the_node_in_the_list_and_in_the_audit_log(caller: Any) -> None:
    node, ada = make_node("node-1"), caller("operate")
    body = window()
    answer = ada.post(f"/nodes/{node.pk}:maintain", body)
    assert answer.status_code == 202 and "node-1 is empty when the window starts" in answer.json()["detail"]
    shown = ada.get(f"/nodes/{node.pk}").json()["known_end"]
    assert (shown["source"], shown["leaves_at"], shown["back_at"]) == ("window", body["starts_at"], body["ends_at"])
    (listed,) = ada.get("/windows?holds=true").json()["items"]
    assert (listed["id"], listed["node_name"], listed["over_at"]) == (answer.json()["window"], "node-1", None)
    assert AuditEntry.objects.get(action="node.maintain").data["window"] == listed["id"]
    assert ada.post(f"/windows/{listed['id']}:cancel", {"reason": "no fans came"}).status_code == 202
    assert ada.get(f"/nodes/{node.pk}").json()["known_end"] is None
    assert (
        ada.get("/windows?holds=true&count=true").json()["total"] == 0
        and ada.get("/windows?count=true").json()["total"] == 1
    )


def test_a_segments_window_is_over_the_nodes_that_are_in_it(caller: Any) -> None:
    for name, segment in (("node-1", "rack-1"), ("node-2", "rack-1"), ("node-3", "rack-2")):
        Node.objects.filter(pk=make_node(name).pk).update(segment=segment)
    ada = caller("operate")
    assert ada.post("/windows", window(segment="rack-1")).status_code == 202
    assert sorted(row.node.name for row in KnownEnd.objects.select_related("node")) == ["node-1", "node-2"]
    assert ada.post("/windows", window(segment="rack-9")).status_code == 404


def test_a_window_over_nothing_over_both_or_at_no_time_is_refused(caller: Any) -> None:
    node, ada = make_node("node-1"), caller("operate")
    for wrong in (
        window(),
        window(nodes=[node.pk], segment="rack-1"),
        window(nodes=[node.pk], lasts_s=-5.0),
        window(nodes=[node.pk], starts_s=-7200.0),
        window(nodes=[node.pk], starts_at="2026-01-01T00:00:00"),
        window(nodes=[node.pk], ends_at="soon"),
        window(nodes=[node.pk], reason=""),
    ):
        assert ada.post("/windows", wrong).status_code == 422, wrong
    assert not KnownEnd.objects.exists()
    assert caller("read").post(f"/nodes/{node.pk}:maintain", window()).status_code == 403
