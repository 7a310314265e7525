"""A second read of the nodes as columns: nothing is read or written as JSON while nothing has changed, and whatever
can be seen in the answer changes its tag."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.api.routers import columns as router
from controlplane.fleet import columns, enrolment, flapping, followed, services
from controlplane.fleet.models import Device, Node
from controlplane.fleet.publish import publish_node, refresh_node
from controlplane.fleet.sessions import Said, close_sessions, opened
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.frames import DeviceInfo
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.models import Event, EventStream
from controlplane.scheduling.services import release_all, reserve_nodes
from tests.integration.api.conftest import SPEC, Caller, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
PATH = f"/nodes:columns?fields={','.join(columns.FIELDS)}"


def again(reader: Caller, tag: str) -> Any:
    return reader.get(PATH, **{"If-None-Match": tag})


def test_a_second_read_costs_a_few_queries_and_no_serialisation(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = caller("read")
    for number in range(30):
        make_node(f"node-{number}")
    services.cordon(Node.objects.get(name="node-0").id, reason="r", actor="user:ada")
    tag = reader.get(PATH)["ETag"]

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing of the nodes is read again")

    monkeypatch.setattr(columns, "node_columns", never)
    monkeypatch.setattr(router, "head_of", never)
    monkeypatch.setattr(router, "send_in_parts", never)
    with CaptureQueriesContext(connection) as me:
        reader.get("/me")
    with CaptureQueriesContext(connection) as queries:
        answer = again(reader, tag)
    assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", tag)
    assert answer["Cache-Control"] == "private, no-cache" and "Accept-Encoding" in answer["Vary"]
    mine = [query["sql"] for query in queries if "fleet_" in query["sql"] or "runtime_" in query["sql"]]
    assert len(mine) <= 4, mine
    assert len(queries) - len(mine) <= len(me)


def test_events_of_jobs_leave_what_is_kept_as_it_is_but_for_the_number_of_the_newest_event(
    caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = caller("read")
    job = running_job([make_node("a"), make_node("b")], SPEC)
    first = reader.get(PATH)
    for number in range(5):
        with events.unit_of_work():
            events.publish("job.note", f"Note {number}.", job_id=job.id)
    monkeypatch.setattr(columns, "node_columns", lambda *_, **__: pytest.fail("nothing of the nodes has changed"))
    assert again(reader, first["ETag"]).status_code == 304
    second = reader.get(PATH)
    assert second["ETag"] == first["ETag"]
    assert second.json()["as_of_seq"] == first.json()["as_of_seq"] + 5
    assert second.json()["columns"] == first.json()["columns"]


class World:
    """Three nodes with a job on two of them, and what may happen to them: by the services that do it."""

    def __init__(self) -> None:
        self.nodes = [make_node(f"node-{number}") for number in range(3)]
        self.job: Job = running_job(self.nodes, SPEC)
        Node.objects.update(session_id="s-1", boot_id="b", journal_id="j")
        self.acts: list[Callable[[Node, int], None]] = [
            self.cordon, self.uncordon, self.revoke, self.restore, self.come, self.leave, self.risk, self.lose,
            self.list_devices, self.spare, self.unspare, self.remove, self.enrol, self.release, self.nothing,
        ]  # fmt: skip

    def cordon(self, node: Node, _: int) -> None:
        services.cordon(node.id, reason="r", actor="user:ada")

    def uncordon(self, node: Node, _: int) -> None:
        services.uncordon(node.id, reason="r", actor="user:ada")

    def revoke(self, node: Node, _: int) -> None:
        enrolment.revoke(node.id, actor="user:ada", reason="r")

    def restore(self, node: Node, _: int) -> None:
        enrolment.restore(node.id, actor="user:ada", reason="r")

    def come(self, node: Node, number: int) -> None:
        with events.unit_of_work():
            said = Said(
                session_id="s-1", boot_id="b", journal_id="j", version=f"1.{number % 3}", newest=4,
                segment=f"rack-{number % 2}",
            )  # fmt: skip
            opened([node], {node.id: said})

    def leave(self, node: Node, _: int) -> None:
        close_sessions({node.id: "s-1"})

    def risk(self, node: Node, number: int) -> None:
        device = Device.objects.select_related("node").get(node=node, index=number % 2)
        services.set_device_risk(device, (number % 10) / 10)

    def lose(self, node: Node, number: int) -> None:
        services.mark_device_lost(Device.objects.select_related("node").get(node=node, index=number % 2), "gone")

    def list_devices(self, node: Node, number: int) -> None:
        infos = [
            DeviceInfo(index=index, uuid=f"GPU-{node.name}-{index}", model="Toy", memory_bytes=None, driver="simulated")
            for index in range(1 + number % 3)
        ]
        with events.unit_of_work():
            if found := services.sync_devices(node, infos):
                publish_node(node, "device.found", f"Node {node.name} has {found}.")

    def spare(self, node: Node, _: int) -> None:
        with events.unit_of_work():
            reserve_nodes(self.job, (node.id,))

    def unspare(self, _node: Node, __: int) -> None:
        with events.unit_of_work():
            release_all(self.job)

    def remove(self, node: Node, _: int) -> None:
        enrolment.remove(node.id, actor="user:ada", reason="r")

    def enrol(self, _node: Node, number: int) -> None:
        make_node(f"late-{number}-{Node.objects.count()}")
        services.cordon(Node.objects.order_by("-created_at")[0].id, reason="r", actor="user:ada")

    def release(self, node: Node, _: int) -> None:
        with events.unit_of_work():
            Rank.objects.filter(node=node, released_at=None).update(released_at=now())
            refresh_node(node.id)

    def nothing(self, _node: Node, __: int) -> None:
        with events.unit_of_work():
            events.publish("job.note", "Note.", job_id=self.job.id)


@pytest.mark.parametrize("flaps", [False, True])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=12))
def test_whatever_is_seen_in_the_answer_changes_its_tag(
    caller: Any, flaps: bool, steps: list[tuple[int, int, int]]
) -> None:
    """`flaps`: connections are not told, as of nodes that come and go in a loop."""
    reader = caller("read")
    with reader.undone(), pytest.MonkeyPatch.context() as patch:
        if flaps:
            patch.setattr(flapping, "_may_tell", lambda *_: False)
        world = World()
        followed.nodes.forget()
        tag = reader.get(PATH)["ETag"]
        for act, place, number in steps:
            before = rows()
            try:
                world.acts[act](world.nodes[place], number)
            except Exception as refused:
                assert type(refused).__name__ in ("Conflict", "NotFound", "LostRace", "IllegalTransition"), refused
            world.nodes = [Node.objects.get(pk=node.pk) for node in world.nodes]
            answer = again(reader, tag)
            assert (answer.status_code == 304) is (rows() == before), (world.acts[act].__name__, place, number)
            tag = answer["ETag"]


def rows() -> Any:
    """The columns, read from the rows with nothing kept."""
    from controlplane.api.pages import natural

    return columns.node_columns(columns.FIELDS, in_turn=natural, limit=1000)


def test_a_database_that_was_set_back_is_noticed(caller: Any) -> None:
    reader = caller("read")
    node = make_node("a")
    services.cordon(node.id, reason="r", actor="user:ada")
    tag = reader.get(PATH)["ETag"]
    # Another history that has come as far: other events of the same numbers.
    newest = events.newest_seq()
    Event.objects.all().delete()
    EventStream.objects.filter(name=events.ALL).update(seq=newest - 1)
    Node.objects.filter(pk=node.pk).update(state="ready")
    with events.unit_of_work():
        events.publish("job.note", "Another history.")
    assert events.newest_seq() == newest
    assert again(reader, tag).status_code == 200


def test_what_nothing_told_of_is_known_after_a_while(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = caller("read")
    node = make_node("a")
    tag = reader.get(PATH)["ETag"]
    Node.objects.filter(pk=node.pk).update(segment="by-hand")
    assert again(reader, tag).status_code == 304
    monkeypatch.setattr(followed, "WHOLE_S", 0.0)
    assert again(reader, tag).status_code == 200


def test_very_many_events_at_once_are_not_looked_through(caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "MOST_EVENTS", 3)
    make_node("a")
    before = followed.nodes.version()
    for number, same in ((3, True), (4, False)):
        for _ in range(number):
            with events.unit_of_work():
                events.publish("job.note", "Note.")
        after = followed.nodes.version()
        assert (after.number == before.number) is same
        before = after
    Event.objects.filter(seq=before.seq).delete()
    assert followed.nodes.version().number != before.number
