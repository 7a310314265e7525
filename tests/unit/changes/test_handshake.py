"""What a hello proves of the ranks on its node, and of a job whose rows were set back."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.changes import rows as facts
from controlplane.changes.answers import frees
from controlplane.changes.handshake import (
    CAME_BACK,
    NOT_STARTED,
    RESTARTED,
    SAVE_GRACE_S,
    greeted,
    greeting_of,
)
from controlplane.changes.kinds import (
    Audit,
    Count,
    Enqueue,
    Observe,
    Publish,
    Raise,
    RankKey,
    Transition,
)
from controlplane.policy.plan import StopReplica
from controlplane.policy.signals.ranks import RankExit
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.frames import RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import AttemptState, CommandState, Phase, RankState, ReplicaState
from controlplane.simulator.memory import MemoryRows
from controlplane.simulator.rows import JOB_ID

from .builders import World, placed, training
from .greetings import HELLO, NODE, alive, greeting, met, started, stops


@pytest.mark.parametrize(
    ("known", "first_seq", "wanted"),
    [
        (("jrn", "boot"), 4, (False, False, False)),
        (("jrn", "boot"), 5, (True, False, False)),
        (("old", "boot"), 9, (False, True, False)),
        (("jrn", "before"), 4, (False, True, True)),
        (("old", "before"), 1, (False, True, True)),
        (("", ""), 1, (False, True, False)),
    ],
)
def test_what_a_hello_is(known: tuple[str, str], first_seq: int, wanted: tuple[bool, bool, bool]) -> None:
    said = msgspec.structs.replace(HELLO, first_unacked_seq=first_seq)
    found = greeting_of(said, node_id=NODE, journal_id=known[0], boot_id=known[1], applied_seq=3)
    assert (found.behind, found.renewed, found.rebooted) == wanted
    assert found.lost == (found.behind or found.renewed)


# --- its ranks -----------------------------------------------------------------------------------


def test_with_the_same_journal_nothing_is_concluded() -> None:
    world = started(training())
    assert met(world) == []
    assert met(world, alive(0), alive(1)) == []


def test_with_another_who_is_not_listed_is_gone_unseen() -> None:
    changes = met(started(training()), alive(0), renewed=True)
    assert [change.subject for change in changes if frees(change)] == [RankKey(1, 1, 1, 1)]
    (found,) = [change.found for change in changes if isinstance(change, Raise)]
    assert isinstance(found, RankExit)
    assert (found.rank, found.device_index, found.cause, found.hint) == (1, 1, "unobserved", CAME_BACK)


def test_after_a_boot_its_processes_ended_with_the_last_one() -> None:
    changes = met(started(training()), renewed=True, rebooted=True)
    found = [change.found for change in changes if isinstance(change, Raise)]
    assert {(each.cause, each.hint) for each in found if isinstance(each, RankExit)} == {("node_restarted", RESTARTED)}
    assert len(found) == 2


def test_who_was_never_started_may_still_come() -> None:
    assert met(placed(), renewed=True) == []


def test_who_is_proved_gone_is_not_gone_again() -> None:
    world = started(training())
    world.store.commit(met(world, renewed=True))
    assert world.rows.replicas[1].stopped
    assert met(world, renewed=True) == []


def test_another_nodes_ranks_are_not_touched() -> None:
    world = started(training())
    world.store.commit(met(world, renewed=True))
    assert [index for index, row in world.rows.replicas.items() if row.exited] == [1]


def test_a_living_rank_whose_incarnation_is_out_is_stopped_at_once_unless_that_is_ordered() -> None:
    world = started(training())
    world.rows.replicas[1].state = ReplicaState.EVICTED
    (order,) = stops(met(world, alive(0), alive(1)))
    assert (order.attempt, order.replica, order.incarnation, order.grace_s) == (1, 1, 1, 0.0)
    world.store.commit(met(world, alive(0)))
    assert met(world, alive(0), alive(1)) == []


def test_so_is_one_of_an_attempt_that_is_over() -> None:
    world = started(training())
    assert world.rows.attempt is not None
    world.rows.attempt.state = AttemptState.ENDED
    assert len(stops(met(world, alive(0)))) == 1


def test_a_stop_of_the_whole_attempt_stands_for_each_and_one_of_an_older_attempt_for_none() -> None:
    for attempt, again in ((1, 0), (0, 1)):
        world = started(training())
        world.rows.replicas[1].state = ReplicaState.EVICTED
        body = StopRanks(job_id=JOB_ID, attempt=attempt, replica=-1, incarnation=-1, grace_s=0.0, reason="it ends")
        world.store.commit([Enqueue(((NODE, body),), 1, 60.0)])
        assert len(stops(met(world, alive(0)))) == again


@pytest.mark.parametrize("stranger", [alive(0, replica=5), alive(0, incarnation=4), alive(0, attempt=3), alive(7)])
def test_a_living_rank_that_nobody_has_placed_is_counted_told_and_stopped_with_time_to_save(
    stranger: RankStatus,
) -> None:
    changes = met(started(training()), stranger)
    count, order, audit, event = changes
    assert isinstance(count, Count) and count.what == "unknown_rank"
    assert isinstance(order, Enqueue) and order.attempt == stranger.ref.attempt
    assert stops(changes)[0].grace_s == SAVE_GRACE_S
    assert isinstance(audit, Audit) and audit.subject == NODE
    assert isinstance(event, Publish) and event.node == NODE


def test_it_is_stopped_once_for_all_its_ranks_and_not_again() -> None:
    world = started(training())
    strangers = (alive(0, replica=5), alive(1, replica=5))
    changes = met(world, *strangers)
    assert len(stops(changes)) == 1
    world.store.commit(changes)
    again = met(world, *strangers)
    assert [type(change) for change in again] == [Count, Count]


def test_another_nodes_rank_is_a_stranger_here() -> None:
    assert len(stops(met(started(training()), alive(0, replica=2)))) == 1


class OfNone(MemoryRows):
    """Rows of no job, as where a node names one that was deleted."""

    job_id = ""  # type: ignore[assignment]

    def held(self, node_id: str) -> list[facts.Rank]:
        return []

    def rank(self, ref: RankRef, node_id: str) -> None:
        return None


def test_where_the_job_is_none_of_ours_the_order_belongs_to_no_job() -> None:
    world = training()
    rows = OfNone(world.rows, world.kernel, world.checkers)
    orders = [change for change in greeted(rows, (alive(0),), greeting(renewed=True)) if isinstance(change, Enqueue)]
    assert [order.attempt for order in orders] == [None]


@pytest.mark.parametrize("how", ["behind", "renewed"])
def test_a_beginning_that_was_told_to_rows_that_are_gone_counts(how: str) -> None:
    world = placed()
    begun, joined = met(world, alive(0), **{how: True})
    assert isinstance(begun, Transition) and (begun.to, begun.columns["pid"]) == (RankState.INITIALIZING, 7)
    assert isinstance(joined, Observe) and joined.columns["joined_s"] == 1000.0
    world.store.commit([begun, joined])
    assert (world.rows.replicas[1].started, world.rows.replicas[1].joined) == ({0}, {0})
    assert met(world, alive(0), **{how: True}) == []


def test_one_that_is_still_being_started_has_not_joined() -> None:
    early = alive(0, state=RankState.LAUNCHING, phase=Phase.COMPUTE)
    assert met(placed(), early, behind=True) == []
    waits = alive(0, state=RankState.INITIALIZING, phase=Phase.PARKED)
    assert len(met(placed(), waits, behind=True)) == 2
    assert met(placed(), waits) == []


def acknowledged(world: World) -> str:
    """The command that starts replica 1, on its way to do so."""
    (row,) = [row for row in world.rows.commands.values() if row.envelope.node_id == NODE]
    row.state = CommandState.ACKNOWLEDGED
    return row.envelope.command_id


def test_a_start_that_was_under_way_when_the_machine_went_down_is_over_at_its_hello() -> None:
    world = placed()
    command = acknowledged(world)
    world.rows.replicas[1].started.add(0)
    world.store.commit(met(world, renewed=True, rebooted=True))
    assert (world.rows.commands[command].state, world.rows.commands[command].detail) == ("failed", NOT_STARTED)
    assert sorted(signal.kind for signal in world.rows.signals.values()) == ["rank_exit", "setup_timeout"]
    assert world.rows.replicas[1].stopped, "no device waits for who will not come"
    assert met(world, renewed=True, rebooted=True) == []


@pytest.mark.parametrize("state", [CommandState.DELIVERED, CommandState.SUCCEEDED])
def test_one_that_will_be_sent_again_or_was_answered_is_left_as_it_is(state: CommandState) -> None:
    world = placed()
    world.rows.commands[acknowledged(world)].state = state
    assert met(world, renewed=True, rebooted=True) == []


def test_an_agent_that_comes_back_with_another_journal_alone_may_still_answer() -> None:
    world = placed()
    acknowledged(world)
    assert met(world, renewed=True) == []


@given(st.lists(st.sampled_from(["greets", "new journal", "evicted"]), max_size=6))
def test_however_often_it_greets_who_it_lists_is_never_gone_and_who_is_out_is_stopped_once(acts: list[str]) -> None:
    world = started(training())
    for act in acts:
        if act == "evicted":
            world.rows.replicas[1].state = ReplicaState.EVICTED
            world.do(StopReplica(replica=1, incarnation=1, grace_s=0.0))
        else:
            world.store.commit(met(world, alive(0), alive(1), renewed=act == "new journal"))
    assert world.rows.replicas[1].exited == set()
    orders = [body for _, body in world.commands(StopRanks)]
    assert len(orders) == acts.count("evicted")
