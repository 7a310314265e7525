"""Lists are whole: every row can be reached, its count is told, and a page costs a bounded number
of queries however many rows it has."""

from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.checkpoints.models import Checkpoint
from controlplane.cli.columns import JOBS
from controlplane.fleet.models import Device, Node
from controlplane.fleet.selectors import nodes
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.spec import replica_count
from controlplane.recovery.models import Incident, Signal, ViewRow
from controlplane.runtime import bus
from controlplane.runtime.clock import ago, now
from controlplane.runtime.ids import new_id
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
FLEET = 1_000
DEVICES = 8


def make_fleet(count: int) -> None:
    """`gpu-0000` and on, each with its devices."""
    rows = Node.objects.bulk_create(
        Node(id=new_id("node"), name=f"gpu-{i:04}", public_key=new_id("crd"), connected=True) for i in range(count)
    )
    Device.objects.bulk_create(
        Device(id=new_id("dev"), node=row, index=i, uuid=f"GPU-{row.name}-{i}", model="Toy", driver="simulated")
        for row in rows
        for i in range(DEVICES)
    )


def walk(reader: Any, path: str) -> tuple[list[Any], set[int]]:
    """Every row by following `next`, and each total that was told on the way."""
    rows: list[Any] = []
    totals: set[int] = set()
    cursor = ""
    while True:
        body = reader.get(path + cursor).json()
        rows += body["items"]
        totals.add(body["total"])
        if body["next"] is None:
            return rows, totals
        cursor = f"{'&' if '?' in path else '?'}cursor={body['next']}"


def test_all_of_a_thousand_nodes_are_listed_by_name_and_counted(caller: Any) -> None:
    make_fleet(FLEET)
    rows, totals = walk(caller("read"), "/nodes?limit=500&count=true")
    assert [row["name"] for row in rows] == [f"gpu-{i:04}" for i in range(FLEET)]
    assert {len(row["devices"]) for row in rows} == {DEVICES}
    assert totals == {FLEET}


def test_a_node_is_found_whatever_page_and_case_it_is_in(caller: Any) -> None:
    make_fleet(FLEET)
    body = caller("read").get("/nodes?q=GPU-0977&count=true").json()
    assert ([row["name"] for row in body["items"]], body["total"]) == (["gpu-0977"], 1)


def test_a_page_of_500_nodes_costs_as_many_queries_as_a_page_of_one(caller: Any) -> None:
    make_fleet(FLEET)
    reader = caller("read")
    reader.get("/me")
    costs: dict[int, int] = {}
    for limit in (1, 50, 500):
        with CaptureQueriesContext(connection) as queries:
            assert len(reader.get(f"/nodes?limit={limit}").json()["items"]) == limit
        costs[limit] = len(queries)
    assert len(set(costs.values())) == 1, costs


def test_nodes_are_listed_in_the_order_in_which_people_count_page_by_page(caller: Any) -> None:
    for name in ("n10", "n2", "N3", "n1", "rack-1-b", "n02", "rack-10-a", "rack-2-a"):
        make_node(name)
    reader, told, after = caller("read"), [], ""
    while after is not None:
        body = reader.get(f"/nodes?limit=3{after and f'&cursor={after}'}").json()
        told += [row["name"] for row in body["items"]]
        after = body["next"]
        if len(told) == 3:
            # It would have stood on a page that was read: later pages neither repeat nor skip for it.
            make_node("n0")
    assert told == ["n1", "n02", "n2", "N3", "n10", "rack-1-b", "rack-2-a", "rack-10-a"]


def test_who_holds_a_device_runs_on_a_node_or_was_decided_about_has_its_jobs_name(caller: Any) -> None:
    node = make_node("a")
    job = running_job([node, make_node("b")], SPEC)
    reader = caller("read")
    shown = reader.get(f"/nodes/{node.id}").json()
    assert {device["held_by"]["job_name"] for device in shown["devices"]} == {job.name}
    assert {rank["job_name"] for rank in shown["ranks"]} == {job.name}
    assert {row["job_name"] for row in reader.get("/overview").json()["recent_decisions"]} == {job.name}
    assert {row["job_name"] for row in reader.get(f"/jobs/{job.id}/decisions").json()["items"]} == {job.name}


def test_a_job_that_was_placed_with_less_than_it_asked_for_says_so(caller: Any) -> None:
    job = running_job([make_node("a"), make_node("b")], SPEC)
    asked = replica_count(spec_of(job).spec)
    body = caller("read").get(f"/jobs/{job.id}").json()
    assert (body["replicas_total"], body["replicas_asked"]) == (asked, asked)
    job.attempts.update(replicas=asked - 1)
    body = caller("read").get(f"/jobs/{job.id}").json()
    assert (body["replicas_total"], body["replicas_asked"]) == (asked - 1, asked)
    shown = {column.title: column.show(body) for column in JOBS}["REPLICAS"]
    assert shown == f"{body['replicas_active']}/{asked - 1} of {asked}"


def test_the_list_holds_what_each_node_alone_says(caller: Any) -> None:
    running_job([make_node("b"), make_node("a"), make_node("c")], SPEC)
    reader = caller("read")
    rows = reader.get("/nodes").json()["items"]
    assert [(row["name"], row["ranks_running"]) for row in rows] == [("a", 2), ("b", 2), ("c", 0)]
    for row in rows:
        alone = reader.get(f"/nodes/{row['id']}").json()
        assert {name: alone[name] for name in row} == row
        held = [device["held_by"] for device in row["devices"]]
        assert held == [None, None] if row["name"] == "c" else [h["rank"] for h in held] == [0, 1]


def test_a_node_is_read_by_its_name_too(caller: Any) -> None:
    node = make_node("gpu-7.rack")
    reader = caller("read")
    assert reader.get("/nodes/gpu-7.rack").json()["id"] == node.id
    assert reader.get("/nodes/gpu-7").status_code == 404
    Node.objects.filter(pk=node.pk).update(removed_at=now())
    assert reader.get("/nodes/gpu-7.rack").status_code == 404


def test_both_lists_say_which_nodes_are_not_heard_and_that_their_ranks_still_commit(caller: Any) -> None:
    node = make_node("a")
    job = running_job([node, make_node("b")], SPEC)
    silent = {"kind": "node_silent", "job": job, "node": node, "key": "k-silent", "threshold": 2.0, "value": 21.0}
    Signal.objects.create(id=new_id("sig"), seen_at=ago(19.0), **silent)
    Node.objects.filter(pk=node.pk).update(connected=False, disconnected_at=ago(21.0))
    view = {
        "job_id": job.id,
        "attempt": 1,
        "epoch": 1,
        "reason": "",
        "members": [{"replica": 0, "incarnation": 0, "role": "contributor"}],
    }
    ViewRow.objects.create(job=job, attempt=1, epoch=1, view=view, announced_at=ago(60.0))
    reader = caller("read")
    (of_job,) = reader.get("/jobs").json()["items"][0]["not_heard"]
    assert (of_job["node_name"], of_job["commits"], of_job["left_out"]) == ("a", True, False)
    assert 20.0 <= (now() - datetime.fromisoformat(of_job["since"])).total_seconds() <= 60.0
    assert [row["not_heard"] for row in reader.get("/nodes").json()["items"]] == [[of_job], []]
    assert reader.get(f"/jobs/{job.id}").json()["not_heard"] == [of_job]
    assert reader.get(f"/nodes/{node.id}").json()["not_heard"] == [of_job]


def test_pictures_of_many_nodes_are_read_at_once_and_foreign_ones_are_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: dict[str, bytes] = {}

    class Pipe:
        def __init__(self) -> None:
            self.answers: list[Any] = []

        def __enter__(self) -> "Pipe":
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def set(self, key: str, value: bytes, ex: int) -> None:
            kept[key] = value

        def getrange(self, key: str, start: int, end: int) -> None:
            self.answers.append(kept.get(key, b""))

        def execute(self, raise_on_error: bool = True) -> list[Any]:
            return self.answers

    class Client:
        def pipeline(self, transaction: bool) -> Pipe:
            return Pipe()

    monkeypatch.setattr(bus, "attempt", lambda call: call(Client()))
    bus.write_live({"node:1": {"a": 1}, "node:2": {"a": 2}})
    kept["hf:live:node:3"] = b'{"a": 3}'
    kept["hf:live:node:2"], kept["hf:live:node:4"] = kept["hf:live:node:1"], b""
    assert bus.read_live_of([f"node:{i}" for i in range(1, 6)]) == {"node:1": {"a": 1}}
    assert bus.read_live_of([]) == {}


def test_every_incident_and_checkpoint_of_a_job_is_reached_and_counted(caller: Any) -> None:
    job = running_job([make_node("a"), make_node("b")], SPEC)
    Incident.objects.bulk_create(
        Incident(id=new_id("inc"), job=job, title=f"incident {i}", state="resolved", opened_at=now(), phases=[])
        for i in range(119)
    )
    Checkpoint.objects.bulk_create(
        Checkpoint(id=new_id("ckp"), job=job, attempt=1, step=i, epoch=1, path=f"/c/{i}", kind="scheduled",
                   state="complete", started_at=now())
        for i in range(119)
    )  # fmt: skip
    reader = caller("read")
    for path in ("/incidents", f"/jobs/{job.id}/incidents", f"/jobs/{job.id}/checkpoints"):
        rows, totals = walk(reader, f"{path}?count=true")
        assert (len({row["id"] for row in rows}), totals) == (120, {120}), path


def test_a_filter_counts_what_it_leaves(caller: Any) -> None:
    make_node("a")
    assert nodes(q="b").count() == 0
    assert caller("read").get("/nodes?q=b&count=true").json()["total"] == 0
