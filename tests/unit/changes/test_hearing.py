"""What a word about a rank means: it began, is ready, is late, has ended. Of a life that is out it moves nothing."""

from typing import Any

import msgspec
import pytest

from controlplane.changes.answers import frees
from controlplane.changes.hearing import HEARD, LOG_TAIL_CHARS, hear
from controlplane.changes.kinds import Change, Count, Observe, Publish, Raise, RankKey, Refuse, Transition, Wake
from controlplane.changes.speaker import Speaker
from controlplane.policy.plan import SetReplicaState, StartReplica
from controlplane.policy.signals.ranks import RankExit, RankOverdue, SetupTimeout
from controlplane.protocol import frames
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import OuterError
from controlplane.protocol.states import AttemptState, Phase, RankState, ReplicaState, Section
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, home, placed, training

AT_S = 990.0
KEY = RankKey(1, 1, 1, 0)


def ref(rank: int = 0, replica: int = 1, incarnation: int = 1, attempt: int = 1) -> RankRef:
    return RankRef(JOB_ID, attempt, replica, incarnation, rank)


def told(world: World, body: frames.EventBody, node: str = NODES[1]) -> list[Change]:
    return hear(world.store, body, Speaker(node, node, AT_S))


def does(world: World, body: frames.EventBody) -> list[Change]:
    """Carried out as well."""
    changes = told(world, body)
    world.store.commit(changes, seen_s=AT_S)
    assert world.checkers.violations == []
    return changes


def state(world: World, rank: int = 0, incarnation: int = 1) -> RankState:
    found = world.store.rank(ref(rank, incarnation=incarnation), NODES[1])
    assert found is not None
    return found.state


def exit_of(code: int | None = None, signal: int | None = None, **fields: Any) -> frames.RankExited:
    given = {"expected": False} | fields
    return frames.RankExited(ref=given.pop("ref", ref()), exit_code=code, signal=signal, **given)


def overdue(section: Section = Section.STEP, **fields: Any) -> frames.RankOverdue:
    body = frames.RankOverdue(
        ref=ref(), section=section, phase=Phase.COMPUTE, step=5, age_s=9.0, timeout_s=5.0, silent_s=9.0
    )
    return msgspec.structs.replace(body, **fields)


def raised(changes: list[Change]) -> list[Raise]:
    return [change for change in changes if isinstance(change, Raise)]


def out(world: World) -> World:
    """Replica 1's first life is out, and a second one has its place."""
    world.do(SetReplicaState(replica=1, incarnation=1, to=ReplicaState.EVICTED))
    world.do(StartReplica(replica=1, incarnation=2, placements=home(1)))
    return world


# --- it begins --------------------------------------------------------------------------------------


def test_a_process_that_exists_is_initializing_since_then() -> None:
    world = placed()
    (change,) = does(world, frames.RankStarted(ref(), pid=7, device_index=0))
    assert isinstance(change, Transition) and change.columns == {"pid": 7, "started_s": AT_S}
    assert (state(world), state(world, 1)) == (RankState.INITIALIZING, RankState.LAUNCHING)
    assert told(world, frames.RankStarted(ref(), pid=7, device_index=0)) == []


def test_a_process_on_another_device_than_it_was_placed_on_is_refused() -> None:
    with pytest.raises(IdentityMismatch, match="it was placed on 0"):
        told(placed(), frames.RankStarted(ref(), pid=7, device_index=1))


def test_a_process_that_was_late_before_it_was_told_of_is_known_to_exist() -> None:
    """Or a start that failed later would prove that it never was."""
    world = placed()
    does(world, overdue(Section.SETUP))
    does(world, frames.RankStarted(ref(), pid=7, device_index=0))
    found = world.store.rank(ref(), NODES[1])
    assert found is not None and (found.started, found.state) == (True, RankState.HUNG)


@pytest.mark.parametrize("body", [exit_of(1), overdue(), frames.RankJoined(ref()), frames.RankStarted(ref(), 7, 0)])
def test_a_node_speaks_for_its_own_ranks_alone(body: frames.EventBody) -> None:
    with pytest.raises(IdentityMismatch, match="never placed on this node"):
        told(placed(), body, node=NODES[0])


def test_one_that_says_hello_is_ready_once() -> None:
    world = placed()
    first, wake, publish = does(world, frames.RankJoined(ref()))
    assert isinstance(first, Transition) and first.columns == {"joined_s": AT_S, "started_s": AT_S}
    assert wake == Wake() and isinstance(publish, Publish) and publish.subject == KEY
    assert told(world, frames.RankJoined(ref())) == []
    does(world, frames.RankStarted(ref(1), pid=8, device_index=1))
    second, *_ = does(world, frames.RankJoined(ref(1)))
    assert second == Observe(RankKey(1, 1, 1, 1), {"joined_s": AT_S})
    assert world.rows.starts == [0.0], "how long a replica's start takes is learned when all its ranks are there"


# --- it ends ----------------------------------------------------------------------------------------


def test_an_end_is_proved_and_found_once() -> None:
    world = training()
    changes = does(world, exit_of(70, log_tail="x" * (LOG_TAIL_CHARS + 1), cause="exception"))
    assert frees(changes[0]) and state(world) == RankState.EXITED
    assert isinstance(changes[0], Transition)
    assert changes[0].columns["exit_code"] == 70 and len(changes[0].columns["log_tail"]) == LOG_TAIL_CHARS
    assert changes[1] == Wake(sure=True)
    (finding,) = raised(changes)
    assert isinstance(finding.found, RankExit) and not finding.late
    assert (finding.found.code, finding.found.how, finding.found.node) == (70, "ended with code 70", NODES[1])
    assert told(world, exit_of(70)) == []
    assert [signal.kind for signal in world.rows.signals.values()] == ["rank_exit"]


@pytest.mark.parametrize(
    ("body", "value", "how"),
    [
        (exit_of(signal=9), -9.0, "ended with signal 9"),
        (exit_of(137), 137.0, "ended with code 137"),
        (exit_of(hint="the OOM killer ended it"), -1.0, "ended unseen: the OOM killer ended it"),
        (exit_of(1, hint="its device is gone"), 1.0, "ended with code 1; its device is gone"),
    ],
)
def test_a_signal_is_no_code_and_an_end_that_nobody_saw_is_neither(
    body: frames.RankExited, value: float, how: str
) -> None:
    (finding,) = raised(told(training(), body))
    assert isinstance(finding.found, RankExit)
    assert (finding.found.value, finding.found.how) == (value, how)
    assert finding.found.evidence["told"] == (value != -1.0)


def test_an_end_that_we_wanted_is_no_finding() -> None:
    changes = does(training(), exit_of(signal=15, expected=True))
    assert isinstance(changes[0], Transition) and changes[0].reason.endswith("as requested")
    assert changes[1:] == [Wake()]


def test_exit_0_is_the_end_of_a_trained_job_and_a_fault_of_any_other() -> None:
    world = training()
    (finding,) = raised(told(world, exit_of(0)))
    assert isinstance(finding.found, RankExit) and finding.found.code == 0
    world.rows.trained = True
    assert told(world, exit_of(0))[1:] == [Wake()]
    assert raised(told(world, exit_of(1))), "any other code of a trained job is a fault"


def test_one_that_could_not_load_its_checkpoint_says_so_of_the_checkpoint() -> None:
    world = placed()
    assert world.rows.attempt is not None
    world.rows.attempt.resume_path = "/checkpoints/7"
    changes = told(world, exit_of(74, log_tail="Traceback\nOSError: shard 3 is short\n"))
    assert Refuse("/checkpoints/7", "OSError: shard 3 is short") in changes and raised(changes)


def test_an_end_told_after_its_life_was_ended_belongs_to_what_ended_it() -> None:
    world = out(training())
    changes = does(world, exit_of(signal=9))
    (finding,) = raised(changes)
    assert finding.late and finding.found.place["incarnation"] == 1
    assert state(world, incarnation=1) == RankState.EXITED
    assert state(world, incarnation=2) == RankState.LAUNCHING


# --- it is late -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("section", "kind"), [(Section.STEP, RankOverdue), (Section.SETUP, SetupTimeout)])
def test_one_that_is_late_hangs_and_is_found_once(section: Section, kind: type) -> None:
    world = training()
    first = does(world, overdue(section))
    assert [type(change) for change in first] == [Wake, Transition, Raise] and type(raised(first)[0].found) is kind
    assert state(world) == RankState.HUNG
    again = does(world, overdue(section))
    assert [type(change) for change in again] == [Wake, Raise], "it hangs already"
    assert len(world.rows.signals) == 1


@pytest.mark.parametrize(
    ("phase", "settled"), [(Phase.EXCHANGE, True), (Phase.VIEW_CHANGE, True), (Phase.COMPUTE, False)]
)
def test_who_was_silent_in_a_wait_is_late_no_more_once_it_speaks(phase: Phase, settled: bool) -> None:
    """However late all of it is told: its word came after the finding. One that computes is late for what it does."""
    world = training()
    does(world, overdue(phase=phase))
    does(world, frames.RankSaid(ref(), OuterError(epoch=2, step=5, error="closed")))
    left = ["outer_error"] if settled else ["rank_overdue", "outer_error"]
    assert [row.kind for row in world.rows.signals.values()] == left


def test_a_late_rank_of_a_life_that_is_out_is_counted_and_moves_nothing() -> None:
    world = out(training())
    (count,) = does(world, overdue())
    assert isinstance(count, Count) and (count.node, count.what) == (NODES[1], "stale_overdue")
    assert (state(world, incarnation=1), state(world, incarnation=2)) == (RankState.LAUNCHING,) * 2
    assert world.rows.signals == {}


def test_a_late_rank_of_an_attempt_that_is_over_is_counted() -> None:
    world = training()
    assert world.rows.attempt is not None
    world.rows.attempt.state = AttemptState.ENDED
    assert [type(change) for change in told(world, overdue())] == [Count]


def test_who_is_gone_is_not_late() -> None:
    world = training()
    does(world, exit_of(1))
    assert [type(change) for change in told(world, overdue())] == [Count]


def test_a_word_about_an_older_life_wakes_nobody() -> None:
    """But its end does: its devices are free."""
    world = out(training())
    bodies = [frames.RankStarted(ref(), 7, 0), frames.RankJoined(ref()), overdue()]
    changes = [change for body in bodies for change in does(world, body)]
    assert not [change for change in changes if isinstance(change, Wake | Publish | Raise)]
    assert Wake(sure=True) in does(world, exit_of(1))


def test_each_of_them_is_an_event() -> None:
    assert set(HEARD) <= set(frames.EventBody.__args__)
