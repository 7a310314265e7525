"""A command to many nodes is a few rows where it is decided, and each node's own, signed, before it is sent."""

from collections.abc import Sequence

import msgspec
import pytest

from agents.errors import SignatureRejected
from agents.link.pins import Pins
from controlplane.dispatch import broadcasts, selectors, statements
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command, SharedBody, Unmade
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.commands import DeliverInstall, DeliverView, StopRanks
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.recovery import clock_set, sweep
from controlplane.runtime import events, keys
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.models import Event
from tests.integration.backend.builders import make_fleet, make_job

pytestmark = pytest.mark.django_db
NODES = 5


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "NODES_A_PIECE", 2)


@pytest.fixture
def nodes() -> list[str]:
    make_fleet(NODES)
    return list(Node.objects.order_by("id").values_list("id", flat=True))


def view(epoch: int) -> DeliverView:
    return DeliverView(View("job_x", 1, epoch, tuple(Member(index, 1, MemberRole.CONTRIBUTOR) for index in range(3))))


def ordered(
    job: Job, nodes: Sequence[str], epoch: int, body: DeliverView | DeliverInstall | StopRanks | None = None
) -> None:
    with events.unit_of_work():
        dispatch.enqueue_all(
            body or view(epoch), node_ids=nodes, job_id=job.id, epoch=epoch, attempt=1, decision_id="dec_x"
        )


def all_made() -> int:
    return sum(iter(broadcasts.make_waiting, 0))


def taken(row: Command) -> object:
    """What its agent makes of it. Raises SignatureRejected."""
    return Pins(keys.server_public_keys(), node_id=row.node_id).verify(statements.signed(row), now_s()).body


def test_it_is_a_row_for_several_nodes_until_it_is_made_each_nodes_own(nodes: list[str]) -> None:
    job = make_job()
    ordered(job, nodes, 3)
    assert (Unmade.objects.count(), Command.objects.count(), dispatch.deliverable(nodes)) == (3, 0, [])
    assert dispatch.outbox_numbers()[0] == NODES
    assert Event.objects.get(kind="command.queued").sentence == f"deliver_view for {NODES} nodes."
    assert all_made() == NODES
    assert (Unmade.objects.count(), SharedBody.objects.count()) == (0, 1)
    rows = dispatch.deliverable(nodes)
    assert sorted(row.node_id for row in rows) == nodes
    assert [taken(row) for row in rows] == [view(3)] * NODES
    assert {(row.job_id, row.decision_id, row.attempt, row.epoch) for row in rows} == {(job.id, "dec_x", 1, 3)}
    assert dispatch.outbox_numbers()[0] == NODES


def test_what_nobody_makes_the_sweep_does_and_what_is_too_old_expires(nodes: list[str]) -> None:
    ordered(make_job(), nodes, 3)
    assert sweep.make_commands() == 0, "who delivers has a moment"
    Unmade.objects.update(created_at=ago(500.0), due_at=ago(300.0))
    assert sweep.make_commands() == NODES
    assert dispatch.deliverable(nodes) == []
    assert len(dispatch.expire_overdue()) == NODES


def test_a_newer_view_makes_what_waits_void_except_for_nodes_that_it_does_not_name(nodes: list[str]) -> None:
    job = make_job()
    ordered(job, nodes, 3)
    broadcasts.make_waiting()
    install = DeliverInstall(Install(job.id, 1, 3, 5, (0, 1, 2)))
    ordered(job, nodes, 3, install)
    ordered(job, nodes[:4], 4)
    all_made()
    left = Command.objects.filter(state="queued", epoch=3)
    assert {(row.kind, row.node_id) for row in left} == {("deliver_view", nodes[4]), ("deliver_install", nodes[4])}
    assert Command.objects.filter(state="queued", epoch=4).count() == 4
    assert Command.objects.filter(state="superseded").count() == 2
    assert "(4 nodes)" in Event.objects.get(kind="command.superseded").sentence


@pytest.mark.parametrize(
    "columns",
    [{"nodes": ["node_1"]}, {"epoch": 9}, {"attempt": 2}, {"decision_id": "dec_y"}, {"signature": b""}, {"ttl_s": 9.0}],
)
def test_whoever_alters_what_waits_is_refused_by_every_node(nodes: list[str], columns: dict[str, object]) -> None:
    ordered(make_job(), nodes, 3)
    if "nodes" in columns:
        columns = {"nodes": nodes[4:]}
    Unmade.objects.update(**columns)
    all_made()
    rows = list(Command.objects.all())
    assert rows
    for row in rows if "nodes" not in columns else rows[:2]:
        with pytest.raises(SignatureRejected):
            taken(row)


def test_whoever_alters_or_deletes_what_it_says_is_refused_and_nothing_fails(nodes: list[str]) -> None:
    job = make_job()
    ordered(job, nodes, 3)
    SharedBody.objects.update(packed=msgspec.msgpack.encode(view(8)))
    broadcasts.make_waiting()
    SharedBody.objects.all().delete()
    broadcasts.make_waiting()
    Unmade.objects.update(nodes={"not": "a list"})
    broadcasts.make_waiting()
    assert (Unmade.objects.count(), Command.objects.count()) == (0, 4)
    for row in Command.objects.all():
        with pytest.raises(SignatureRejected):
            taken(row)


def test_a_command_may_not_be_passed_off_as_the_decision_for_many(nodes: list[str]) -> None:
    """A signature for one use of the key is none for another."""
    ordered(make_job(), nodes, 3)
    row = Unmade.objects.order_by("id")[0]
    said = broadcasts._said(row, bytes(row.shared.packed))
    assert keys.is_our_broadcast(said, bytes(row.signature), row.key_id)
    assert not keys.is_ours(said, bytes(row.signature), row.key_id)


def test_when_the_clock_is_set_what_waits_is_made_and_signed_anew(nodes: list[str]) -> None:
    ordered(make_job(), nodes, 3)
    clock_set.move(3600.0, set_s=now_s() + 3600.0)
    assert Unmade.objects.count() == 0
    assert Command.objects.count() == NODES
    assert all(statements.is_genuine(row) for row in Command.objects.all())


def test_what_is_said_stays_as_long_as_it_waits(nodes: list[str]) -> None:
    ordered(make_job(), nodes, 3)
    SharedBody.objects.update(created_at=ago(100.0))
    dispatch.forget_finished(50.0)
    assert SharedBody.objects.count() == 1


def stop(attempt: int = 1) -> StopRanks:
    return StopRanks(job_id="job_x", attempt=attempt, replica=1, incarnation=2, grace_s=0.0, reason="it failed")


def test_a_stop_to_many_nodes_waits_as_one_and_is_each_nodes_own_and_signed_before_it_is_sent(nodes: list[str]) -> None:
    ordered(make_job(), nodes, 3, stop())
    assert (Unmade.objects.count(), Command.objects.count()) == (3, 0)
    assert all_made() == NODES
    rows = dispatch.deliverable(nodes)
    assert sorted(row.node_id for row in rows) == nodes
    assert [taken(row) for row in rows] == [stop()] * NODES


def test_a_stop_stands_and_is_under_way_whether_it_is_made_yet_or_not(nodes: list[str]) -> None:
    job = make_job()
    named = {"attempt": 1, "replica": 1, "incarnation": 2}

    def known() -> tuple[bool, list[StopRanks]]:
        return selectors.stop_stands(job.id, **named), list(selectors.stops_under_way(nodes[0]))

    assert known() == (False, [])
    ordered(job, nodes, 3, stop())
    assert known() == (True, [stop()]), "as it waits"
    assert not selectors.stop_stands(job.id, **(named | {"incarnation": 1}))
    assert list(selectors.stops_under_way("node_of_nobody")) == []
    all_made()
    assert known() == (True, [stop()]), "as each node's own"
    Command.objects.update(state="failed")
    assert known() == (False, [])


def test_a_stop_that_waits_makes_the_start_of_what_it_stops_void_at_once(nodes: list[str]) -> None:
    job = make_job()
    launch = {"replica": 1, "incarnation": 2, "attempt": 1}
    with events.unit_of_work():
        dispatch.enqueue_all(view(2), node_ids=nodes[:1], job_id=job.id, epoch=2, attempt=1, decision_id="dec_x")
    Command.objects.update(kind="start_ranks", body={"launch": launch})
    ordered(job, nodes, 3, stop())
    assert Command.objects.get().state == "superseded"
