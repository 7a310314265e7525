"""Sessions of many nodes are opened and closed together: the same rows as one by one, in as many statements for a
thousand as for ten."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from benchmarks.returns import Fleet as Agents
from benchmarks.returns import a_fleet, shown_by
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet import flapping, identity, sessions
from controlplane.fleet.models import Device, Node, NodeLife
from controlplane.jobs.models import Job, Rank
from controlplane.policy.signals.devices import DeviceGone
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.protocol.commands import WarmHost
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentHello, JobSeen
from controlplane.protocol.states import CommandState, ReplicaState
from controlplane.recovery import ingest, returning, signals, sweep
from controlplane.recovery.models import Signal
from controlplane.runtime.clock import ago
from controlplane.runtime.models import Event, FrameCounter
from tests.findings import finding
from tests.integration.backend.builders import Fleet, hello, live_ranks, make_fleet, run_job
from tests.integration.backend.test_set_back import here

pytestmark = pytest.mark.django_db
NODES = 4
SIZES = (10, 100, 1000)


def back(fleet: Fleet, job: Job, name: str) -> AgentHello:
    """As the node was: its journal, its devices, its ranks, what it knows of the job."""
    node = Node.objects.get(pk=fleet.nodes[name].pk)
    seen = JobSeen(job_id=job.id, attempt=1, epoch=Job.objects.get(pk=job.pk).epoch)
    return msgspec.structs.replace(
        hello(name), ranks=here(name), jobs=(seen,), first_unacked_seq=node.last_event_seq + 1
    )


def returns(hellos: Sequence[tuple[str, AgentHello]], *, session: str = "again") -> list[returning.Return]:
    return [returning.Return(node_id=node_id, session_id=f"web.{session}", said=said) for node_id, said in hellos]


def one_by_one(hellos: Sequence[returning.Return]) -> list[int | Exception]:
    """Each as if it were the only one."""
    found: list[int | Exception] = []
    for each in hellos:
        try:
            found.append(ingest.open_session(each.node_id, each.session_id, each.said))
        except IdentityMismatch as error:
            found.append(error)
    return found


def together(hellos: Sequence[returning.Return]) -> list[int | Exception]:
    """As the writer does: at once whom that concerns, the others one by one."""
    opened = returning.open_quiet(hellos)
    first: set[str] = set()
    found: list[int | Exception] = []
    for each in hellos:
        is_first = each.node_id not in first
        first.add(each.node_id)
        found += [opened[each.node_id]] if is_first and each.node_id in opened else one_by_one([each])
    return found


# --- the same rows -------------------------------------------------------------------------------

TIMES = {
    "connected_at", "disconnected_at", "state_since", "created_at", "last_seen_at", "first_seen_at", "at", "seen_at",
    "settled_at", "send_due_at", "due_at", "last_at", "key_since", "hold_until", "asked_at", "uuid_since",
    "issued_at", "queued_at", "started_at", "ended_at", "released_at", "joined_at", "revoked_at", "gap_since",
}  # fmt: skip
COUNTED = {"id", "seq", "job_seq", "statement", "signature", "key_id", "body", "last_id", "entity_id", "patch"}


def rows() -> dict[str, list[dict[str, Any]]]:
    """What hellos can change, without times and numbers; of those whether they are set."""

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in row.items() if name not in TIMES | COUNTED}
        return kept | {name: row[name] is not None for name in TIMES & row.keys()}

    tables = (Node, NodeLife, Device, Signal, Rank, Command, FrameCounter, Job, Event)
    return {
        table.__name__: sorted((plain(row) for row in table.objects.values()), key=repr) for table in tables
    }  # fmt: skip


def without_uuid(said: AgentHello) -> AgentHello:
    first, *others = said.devices
    return msgspec.structs.replace(said, devices=(msgspec.structs.replace(first, uuid="another"), *others))


def changed(**fields: Any) -> Callable[[AgentHello], AgentHello]:
    return lambda said: msgspec.structs.replace(said, **fields)


SAID: dict[str, Callable[[AgentHello], AgentHello]] = {
    "as it was": lambda said: said,
    "a newer agent": changed(agent_version="next"),
    "another segment": changed(segment="block-b"),
    "another journal": changed(journal_id="renewed"),
    "another boot": changed(boot_id="booted", journal_id="renewed", ranks=()),
    "a device is another": without_uuid,
    "a device less": lambda said: msgspec.structs.replace(said, devices=said.devices[:1]),
    "a device more": lambda said: msgspec.structs.replace(said, devices=hello(said.node_name, devices=3).devices),
    "a device twice": lambda said: msgspec.structs.replace(said, devices=(*said.devices, said.devices[0])),
    "no device is listed": changed(devices=()),
    "the name of another": changed(node_name="somebody"),
    "events are missing": lambda said: msgspec.structs.replace(said, first_unacked_seq=said.first_unacked_seq + 5),
    "it is ahead": lambda said: msgspec.structs.replace(
        said, jobs=(msgspec.structs.replace(said.jobs[0], epoch=said.jobs[0].epoch + 3),)
    ),
    "without its ranks": changed(ranks=()),
}
"""What a node says that comes back, made of what it said before."""


def silent(node: Node) -> None:
    signals.raise_signal(finding(NodeSilent, node_id=node.id))


def device_lost(node: Node) -> None:
    Device.objects.filter(node=node, index=1).update(present=False, healthy=False, health_reason="gone")
    signals.raise_signal(finding(DeviceGone, node_id=node.id, device_index=1))


def evicted(node: Node) -> None:
    """Its replica is out, and its processes were not proved gone."""
    rank = Rank.objects.filter(node=node, released_at=None).select_related("replica").first()
    if rank is not None:
        rank.replica.state = ReplicaState.EVICTED
        rank.replica.save()


def sent(node: Node) -> None:
    command = dispatch.enqueue(WarmHost(job_id="job", attempt=0, user="ada"), node_id=node.id)
    Command.objects.filter(pk=command.pk).update(state=CommandState.DELIVERED, send_due_at=None)


BEFORE: dict[str, Callable[[Node], object]] = {
    "nothing": lambda node: None,
    "its session was closed": lambda node: sessions.close_session(node.id, node.session_id),
    "it is silent": silent,
    "a device is gone": device_lost,
    "its replica is out": evicted,
    "a command was sent": sent,
    "its token binds it": lambda node: Node.objects.filter(pk=node.pk).update(pool="block-a"),
}
"""What became of a node while its agent was away."""
SCENE = st.lists(
    st.tuples(st.sampled_from(sorted(SAID)) | st.just("as it was"), st.sampled_from(sorted(BEFORE))),
    min_size=NODES, max_size=NODES,
)  # fmt: skip


@pytest.fixture
def fleet_that_trains(db: None) -> tuple[Fleet, Job]:
    fleet = make_fleet(NODES)
    return fleet, run_job(fleet)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scene=SCENE)
def test_together_they_leave_the_rows_that_they_leave_one_by_one(
    fleet_that_trains: tuple[Fleet, Job], scene: list[tuple[str, str]]
) -> None:
    fleet, job = fleet_that_trains
    found: list[dict[str, Any]] = []
    answers: list[list[Any]] = []
    for way in (one_by_one, together):
        flapping._records.clear()
        with transaction.atomic():
            hellos = []
            for name, (said, before) in zip(sorted(fleet.nodes), scene, strict=True):
                BEFORE[before](Node.objects.get(pk=fleet.nodes[name].pk))
                hellos.append((fleet.nodes[name].id, SAID[said](back(fleet, job, name))))
            answers.append([each if isinstance(each, int) else type(each) for each in way(returns(hellos))])
            found.append(rows())
            transaction.set_rollback(True)
    event(f"refused: {sum(answer is IdentityMismatch for answer in answers[0])}")
    assert answers[1] == answers[0]
    for table, of_it in found[0].items():
        assert len(found[1][table]) == len(of_it), table
        for one, other in zip(of_it, found[1][table], strict=True):
            assert other == one, table


def test_who_is_as_it_was_is_among_those_that_are_opened_together(fleet_that_trains: tuple[Fleet, Job]) -> None:
    fleet, job = fleet_that_trains
    hellos = [(fleet.nodes[name].id, back(fleet, job, name)) for name in sorted(fleet.nodes)]
    hellos[2] = (hellos[2][0], SAID["another boot"](hellos[2][1]))
    opened = returning.open_quiet(returns(hellos))
    assert set(opened) == {node_id for node_id, _ in hellos} - {hellos[2][0]}


# --- one that is bad stops no other ----------------------------------------------------------------


def test_a_bad_one_among_them_is_refused_alone() -> None:
    fleet = make_fleet(5)
    hellos = [(node.id, hello(name)) for name, node in fleet.nodes.items()]
    hellos[1] = (hellos[1][0], hello("n5"))
    hellos.insert(3, ("node_nobody", hello("n9")))
    found = together(returns(hellos))
    assert [type(each) for each in found] == [int, IdentityMismatch, int, IdentityMismatch, int, int]
    assert list(Node.objects.filter(session_id="web.again").values_list("name", flat=True).order_by("name")) == [
        "n1", "n3", "n4", "n5",
    ]  # fmt: skip


def test_where_they_cannot_be_written_together_each_is_written_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(3)

    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(sessions, "opened", broken)
    hellos = [(node.id, hello(name)) for name, node in fleet.nodes.items()]
    assert together(returns(hellos)) == [0, 0, 0]
    assert Node.objects.filter(session_id="web.again").count() == 3


def test_a_database_that_is_away_is_an_error_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(2)

    def away(*_: object) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(sessions, "opened", away)
    hellos = [(node.id, hello(name)) for name, node in fleet.nodes.items()]
    with pytest.raises(OperationalError):
        returning.open_quiet(returns(hellos))
    assert not Node.objects.filter(session_id="web.again").exists()


def test_of_two_hellos_of_one_node_the_later_is_the_session() -> None:
    fleet = make_fleet(1)
    node_id = fleet.nodes["n1"].id
    both = [*returns([(node_id, hello("n1"))], session="first"), *returns([(node_id, hello("n1"))], session="second")]
    assert together(both) == [0, 0]
    assert Node.objects.get(pk=node_id).session_id == "web.second"


# --- what it costs -----------------------------------------------------------------------------------


def asked(act: Callable[[], object]) -> int:
    """How many statements the database was asked."""
    with CaptureQueriesContext(connection) as queries:
        act()
    return len(queries)


def hellos_of(agents: Agents, session: str) -> list[returning.Return]:
    return returns(list(agents.hellos.items()), session=session)


def test_a_thousand_that_are_as_they_were_ask_as_much_as_ten() -> None:
    opened, admitted, closed = [], [], []
    for size in SIZES:
        with transaction.atomic():
            agents = a_fleet(size)
            agents.sessions = 1
            shown = [(node_id, shown_by(agents, node_id)) for node_id in agents.hellos]
            admitted.append(asked(lambda shown=shown: identity.admit_plain(shown)))
            opened.append(asked(lambda agents=agents: together(hellos_of(agents, "again"))))
            assert Node.objects.filter(session_id="web.again", connected=True).count() == size
            ended = dict.fromkeys(agents.hellos, "web.again")
            closed.append(asked(lambda ended=ended: sessions.close_sessions(ended)))
            assert not Node.objects.filter(connected=True).exists()
            transaction.set_rollback(True)
    assert admitted == [admitted[0]] * 3
    assert opened[0] == opened[1], "and of a thousand long lists are read in pieces"
    assert opened[2] <= opened[1] + 4
    assert closed[0] == closed[1]
    assert closed[2] <= 2 * closed[1], "each five hundred are a transaction"
    assert max(opened[1], closed[1], admitted[1]) <= 25


def test_who_comes_back_before_anybody_noticed_writes_no_event() -> None:
    with transaction.atomic():
        agents = a_fleet(10)
        newest = Event.objects.count()
        together(hellos_of(agents, "again"))
        assert Event.objects.count() == newest
        sessions.close_sessions(dict.fromkeys(agents.hellos, "web.again"))
        together(hellos_of(agents, "later"))
        kinds = list(Event.objects.order_by("seq").values_list("kind", flat=True))[newest:]
        assert kinds == ["node.disconnected"] * 10 + ["node.connected"] * 10
        assert all(each.patch["connected"] for each in Event.objects.filter(kind="node.connected"))


def test_the_end_of_a_session_that_is_not_the_newest_asks_once_and_locks_nothing() -> None:
    fleet = make_fleet(3)
    ended = {node.id: "web.older" for node in fleet.nodes.values()}
    with CaptureQueriesContext(connection) as queries:
        assert sessions.close_sessions(ended) == set()
    assert len(queries) == 1
    assert Node.objects.filter(connected=True).count() == 3


def test_sessions_of_a_web_process_that_is_gone_are_closed_together() -> None:
    fleet = make_fleet(12)
    Node.objects.update(connected_at=ago(60.0))
    few = asked(sweep.close_dead_sessions)
    assert not Node.objects.filter(connected=True).exists()
    assert Event.objects.filter(kind="node.disconnected").count() == len(fleet.nodes)
    assert few <= 20


# --- who is admitted ---------------------------------------------------------------------------------


def test_of_many_each_is_admitted_as_it_would_be_alone() -> None:
    """Another boot, another journal while one is live, a counter set back, a barred life, a revoked node, nobody."""
    names = ["plain", "boot", "journal", "counter", "barred", "revoked", "again"]
    node_ids = [f"node_{name}" for name in names]

    def judged(way: Callable[[list[tuple[str, identity.Shown]]], list[Any]]) -> tuple[list[Any], Any]:
        with transaction.atomic():
            for name in names:
                Node.objects.create(id=f"node_{name}", name=name, public_key=name)
                shown = identity.Shown(boot_id="b", journal_id="j", machine_id="m", counter=5)
                assert identity.admit(f"node_{name}", shown) == identity.ADMIT
                ingest.open_session(
                    f"node_{name}", "web.1", msgspec.structs.replace(hello(name), boot_id="b", journal_id="j")
                )
            NodeLife.objects.filter(node="node_barred").update(barred=True)
            Node.objects.filter(pk="node_revoked").update(revoked_at=ago(1.0))
            sessions.close_session("node_again", "web.1")
            shown = {name: identity.Shown(boot_id="b", journal_id="j", machine_id="m2", counter=6) for name in names}
            shown["boot"] = identity.Shown(boot_id="other", journal_id="j2", machine_id="m", counter=6)
            shown["journal"] = identity.Shown(boot_id="b", journal_id="j2", machine_id="m", counter=6)
            shown["counter"] = identity.Shown(boot_id="b", journal_id="j", machine_id="m", counter=5)
            found = way([*((f"node_{name}", shown[name]) for name in names), ("node_nobody", shown["plain"])])
            left = rows()
            transaction.set_rollback(True)
        return found, left

    alone = judged(lambda asked: [identity.admit(node_id, shown) for node_id, shown in asked])

    def plain_first(asked: list[tuple[str, identity.Shown]]) -> list[Any]:
        plain = identity.admit_plain(asked)
        assert [each is not None for each in plain].count(True) == 2
        return [found or identity.admit(*each) for found, each in zip(plain, asked, strict=True)]

    at_once = judged(plain_first)
    assert [each.verdict for each in alone[0]] == [
        "admit", "refuse", "refuse", "prove_again", "refuse", "refuse", "admit", "refuse",
    ]  # fmt: skip
    assert at_once[0] == alone[0]
    for table, left in alone[1].items():
        for one, other in zip(left, at_once[1][table], strict=True):
            assert other == one, table
    assert not Node.objects.filter(pk__in=node_ids).exists()


def test_ranks_of_nodes_that_come_back_continue(fleet_that_trains: tuple[Fleet, Job]) -> None:
    fleet, job = fleet_that_trains
    before = (Command.objects.count(), Job.objects.get(pk=job.pk).epoch)
    hellos = [(fleet.nodes[name].id, back(fleet, job, name)) for name in sorted(fleet.nodes)]
    assert all(isinstance(each, int) for each in together(returns(hellos)))
    assert {row.state for row in live_ranks(job)} == {"training"}
    assert (Command.objects.count(), Job.objects.get(pk=job.pk).epoch) == before
    Job.objects.filter(pk=job.pk).update(due_at=None)
    together(returns(hellos, session="later"))
    assert Job.objects.get(pk=job.pk).due_at is not None, "it is looked at again"
