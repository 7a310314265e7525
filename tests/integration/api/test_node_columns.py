"""All nodes in one answer: what each column says is what the rows say, counted another way."""

import gzip
import json
from typing import Any

import django.test
import httpx
import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access.project_models import Role
from controlplane.access.services import create_api_token
from controlplane.api import compressed, etags
from controlplane.api.routers import columns as router
from controlplane.api.shapes import NodeColumns, Words, rows_of
from controlplane.fleet import columns, followed
from controlplane.fleet.models import Device, Node
from controlplane.fleet.selectors import AT_RISK
from controlplane.jobs.models import Rank
from controlplane.runtime.clock import now
from controlplane.runtime.columns import worded
from controlplane.scheduling.models import SpareReservation
from controlplane.sdk import Client
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.server import running
from tests.integration.api.tenants import account, caller_of, tenants
from tests.integration.api.test_lists import make_fleet
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
PATH = "/nodes:columns"
ALL = ",".join(columns.FIELDS)


def told(answer: Any) -> list[dict[str, Any]]:
    """The rows of an answer."""
    assert answer.status_code == 200, answer.content
    found = msgspec.json.decode(answer.content, type=NodeColumns)
    rows = list(rows_of(found.columns))
    assert len(rows) == found.rows
    return rows


def counted() -> list[dict[str, Any]]:
    """The same, of each node by itself and of each of its devices."""
    found = []
    for node in sorted(Node.objects.filter(removed_at=None), key=lambda row: row.name):
        devices = list(node.devices.all())
        there = [device for device in devices if device.present]
        well = [device for device in there if device.healthy]
        scores = [device.risk for device in there if device.risk is not None]
        found.append(
            {
                "id": node.id,
                "name": node.name,
                "state": node.state,
                "state_reason": node.state_reason,
                "connected": node.connected,
                "revoked": node.revoked_at is not None,
                "held": node.held,
                "segment": node.segment,
                "agent_version": node.agent_version,
                "devices": len(devices),
                "devices_healthy": len(well),
                "devices_at_risk": sum(1 for device in well if (device.risk or 0.0) >= AT_RISK),
                "devices_lost": len(devices) - len(there),
                "risk": round(max(scores), 3) if scores else None,
                "devices_busy": Rank.objects.filter(node=node, released_at=None).count(),
                "devices_spare": SpareReservation.objects.filter(device__in=devices).count(),
            }
        )
    return found


def mixed() -> list[Node]:
    """Nodes that differ in each field."""
    nodes = [make_node(f"node-{number}", devices=number % 4) for number in range(9)]
    job = running_job([nodes[2], nodes[6]], SPEC)
    Rank.objects.filter(node=nodes[6], rank=0).update(released_at=now())
    first = [node.devices.order_by("index").first() for node in nodes]
    for device, values in zip(
        (first[1], first[2], first[3], first[5], first[6]),
        ({"present": False, "healthy": False, "risk": 0.9}, {"healthy": False, "risk": 0.5}, {"risk": 0.2994},
         {"risk": 0.30001}, {"present": False}),
        strict=True,
    ):  # fmt: skip
        assert device is not None
        Device.objects.filter(pk=device.pk).update(**values)
    SpareReservation.objects.create(job=job, device=nodes[3].devices.get(index=1))
    SpareReservation.objects.create(job=job, device=nodes[3].devices.get(index=2))
    Node.objects.filter(pk=nodes[4].pk).update(state="cordoned", state_reason="by hand", segment="rack-1")
    Node.objects.filter(pk=nodes[5].pk).update(connected=False, agent_version="1.2.3", held=True)
    Node.objects.filter(pk=nodes[7].pk).update(revoked_at=now(), segment="rack-1")
    Node.objects.filter(pk=nodes[8].pk).update(removed_at=now())
    return nodes


@pytest.mark.parametrize("most", [columns.MOST, 3])
def test_every_column_says_what_the_rows_say(caller: Any, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(columns, "MOST", most)
    mixed()
    answer = caller("read").get(f"{PATH}?fields={ALL}")
    assert told(answer) == counted()
    body = answer.json()
    assert (body["rows"], body["total"], body["next"]) == (8, 8, None)
    assert list(body["columns"]) == list(columns.FIELDS)
    assert body["columns"]["segment"] == {"words": ["", "rack-1"], "at": [0, 0, 0, 0, 1, 0, 0, 1]}


def test_filters_are_those_of_the_list(caller: Any) -> None:
    mixed()
    reader = caller("read")
    for query in ("state=cordoned", "q=NODE-7", "q=nothing", "state=ready&q=-1"):
        listed = reader.get(f"/nodes?{query}&count=true").json()
        asked = reader.get(f"{PATH}?{query}&fields=name,id,state").json()
        names = [item["name"] for item in listed["items"]]
        assert (asked["columns"]["name"], asked["rows"], asked["total"]) == (names, len(names), listed["total"]), query


def test_pages_follow_each_other_in_the_sequence_in_which_people_count(caller: Any) -> None:
    for name in ("rack-10-a", "n10", "rack-2-a", "n2", "N3", "n1"):
        make_node(name)
    reader = caller("read")
    for limit in (1, 2, 4, 6):
        found, after = list[str](), ""
        while after is not None:
            body = reader.get(f"{PATH}?limit={limit}{after and f'&cursor={after}'}").json()
            found += body["columns"]["name"]
            after = body["next"]
            assert body["total"] == 6
            assert len(found) <= 6
        assert found == ["n1", "n2", "N3", "n10", "rack-2-a", "rack-10-a"]


def test_what_is_asked_for_is_what_is_given_and_an_unknown_field_is_named(caller: Any) -> None:
    make_node("a")
    reader = caller("read")
    assert list(reader.get(f"{PATH}?fields=state,name,state").json()["columns"]) == ["name", "state"]
    assert list(reader.get(PATH).json()["columns"]) == list(columns.DEFAULT)
    refused = reader.get(f"{PATH}?fields=name,temperature")
    assert refused.status_code == 422
    (fault,) = refused.json()["errors"]
    assert (fault["pointer"], fault["message"]) == ("/query/fields", "'temperature' is no field of a node as columns")
    assert fault["fix"] == f"use {', '.join(columns.FIELDS)}"
    for query, status in (("limit=0", 422), ("limit=20001", 422), ("cursor=x", 400), ("fields=" + "x" * 1001, 422)):
        assert reader.get(f"{PATH}?{query}").status_code == status, query


def test_a_thousand_nodes_cost_as_many_queries_as_one(caller: Any) -> None:
    make_fleet(1_000)
    reader, costs = caller("read"), {}
    reader.get("/me")
    for limit in (1, 1_000):
        followed.nodes.forget()
        with CaptureQueriesContext(connection) as queries:
            assert reader.get(f"{PATH}?limit={limit}&fields={ALL}").json()["rows"] == limit
        costs[limit] = len(queries)
    assert costs[1] == costs[1_000] <= 14, costs


def test_who_does_not_see_a_job_reads_the_same_columns_and_nothing_of_it(db: None) -> None:
    found = tenants()
    outside = caller_of(account("eve", daylight=Role.ADMIN)).get(f"{PATH}?fields={ALL}")
    inside = caller_of(account("amy", hush_hush=Role.ADMIN)).get(f"{PATH}?fields={ALL}")
    assert told(outside) == told(inside) == counted()
    assert max(row["devices_busy"] for row in told(outside)) > 0
    assert found.job.id not in outside.content.decode() and found.job.name not in outside.content.decode()


def test_an_answer_is_compressed_for_who_can_read_that_and_says_the_same(caller: Any) -> None:
    make_fleet(50)
    reader = caller("read")
    plain = reader.get(PATH)
    packed = reader.get(PATH, **{"Accept-Encoding": "br, gzip;q=0.8"})
    assert (plain.get("Content-Encoding"), packed["Content-Encoding"]) == (None, "gzip")
    assert gzip.decompress(packed.content) == plain.content
    assert len(packed.content) * 4 < len(plain.content)
    assert plain["ETag"] == packed["ETag"] and plain["Vary"] == packed["Vary"]
    assert "Accept-Encoding" in plain["Vary"] and packed["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [("", False), ("gzip", True), ("GZIP", True), ("gzip;q=0", False), ("*", True), ("*;q=0", False), ("br", False),
     ("gzip;q=0, *", False), ("deflate, gzip;q=1.0, *;q=0.5", True), ("gzip;q=x", False), ("gzipped", False)],
)  # fmt: skip
def test_who_can_read_it_says_so(accepted: str, taken: bool) -> None:
    assert compressed.takes_gzip(accepted) is taken


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_both_parts_are_one_member_of_gzip(size: int) -> None:
    body = bytes(number % 251 for number in range(size))
    head = compressed.head_of(body)
    assert gzip.decompress(compressed._gzip(head, b"tail")) == body + b"tail"
    assert compressed._plain(head) == body


def test_the_answer_that_is_asked_for_again_and_again_is_kept_whatever_others_ask(
    caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_node("n1")
    monkeypatch.setattr(router, "MOST_KEPT", 3)
    router._kept.clear()
    reader, usual = caller("read"), "/nodes:columns?fields=name"
    for number in range(6):
        reader.get(usual)
        reader.get(f"/nodes:columns?q={number}")
    assert len(router._kept) == 3
    assert [key for key in router._kept if key[0] == ("name",)], "what everybody asks for was left out"


def test_words_come_back_as_they_were() -> None:
    values = ["b", "a", None, "b", ""]
    column = worded(values)
    assert column == {"words": ["b", "a", ""], "at": [0, 1, None, 0, 2]}
    assert Words(**column).values() == values


def test_no_more_answers_are_kept_than_a_few(caller: Any) -> None:
    make_node("a")
    reader = caller("read")
    for number in range(router.MOST_KEPT + 5):
        assert reader.get(f"{PATH}?q=x{number}").status_code == 200
    assert len(router._kept) == router.MOST_KEPT


def test_a_tag_is_compared_without_its_strength() -> None:
    class Request:
        headers: dict[str, str] = {}

    request: Any = Request()
    tag = etags.tag_of(b"x")
    for header, held in (
        (tag, True), (tag.removeprefix("W/"), True), (f'"other", {tag}', True), ("*", True), ('"other"', False),
        ("", False), (tag[:-2], False),
    ):  # fmt: skip
        request.headers = {"If-None-Match": header}
        assert etags.has(request, tag) is held, header


def test_it_is_compressed_by_the_real_server_and_read_by_the_client(transactional_db: None, user: Any) -> None:
    make_fleet(20)
    job = running_job([make_node("a"), make_node("b")], SPEC)
    token = create_api_token(user, name="t", scope="read").secret
    with running() as url:
        answer = httpx.get(f"{url}/api/v1{PATH}", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        with Client(url, token=token) as client:
            nodes = client.nodes.columns(fields="name,devices", q="gpu-001", limit=4)
            mesh = client.jobs.mesh(job.id, fields="replica,rank,node_name")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert answer.json()["rows"] == 22
    assert int(answer.headers["Content-Length"]) < len(answer.content)
    assert [row["name"] for row in rows_of(nodes.columns)] == [f"gpu-001{number}" for number in range(4)]
    assert nodes.total == 10
    places = [(row["replica"], row["rank"], row["node_name"]) for row in rows_of(mesh.columns)]
    assert places == [(0, 0, "a"), (0, 1, "a"), (1, 0, "b"), (1, 1, "b")]


def test_the_answer_is_json_whatever_client_asks(user: Any) -> None:
    assert json.loads(django.test.Client().get("/api/v1" + PATH).content)["status"] == 401
