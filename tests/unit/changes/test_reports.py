"""What a rank's own reports mean. Of a life that is out nothing counts but what it did while it was a member."""

from typing import Any

import msgspec
import pytest

from controlplane.changes.hearing import hear
from controlplane.changes.kinds import (
    Change,
    Count,
    JobKey,
    Keep,
    Observe,
    Publish,
    Raise,
    RankKey,
    ReplicaKey,
    Transition,
    ViewKey,
    Wake,
)
from controlplane.changes.reports import REPORTED
from controlplane.changes.speaker import Speaker
from controlplane.policy.plan import AnnounceView, SetReplicaState, StartReplica
from controlplane.policy.signals.numbers import LossNotFinite
from controlplane.policy.signals.ranks import ExchangeFailed
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import RankReport, RankSaid
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, Member, MemberRole
from controlplane.protocol.rank import (
    CaughtUp,
    CheckpointReport,
    DeterminismReport,
    NumericsReport,
    OuterError,
    RecomputeReport,
    SectionTime,
    StepReport,
    TimingReport,
    TrainingDone,
    ViewInstalled,
)
from controlplane.protocol.states import AttemptState, CheckpointState, RankState, ReplicaState
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, home, training, view

AT_S = 990.0
KEY = RankKey(1, 1, 1, 0)
NONE = SectionTime(0.0, 0.0, 0.0, 0.0)
STEP = StepReport(step=5, epoch=2, step_time_s=1.0, tokens=1, micro_batches=())
EVERY: tuple[RankReport, ...] = (
    STEP,
    Flush(JOB_ID, 1, 2, 1, 1, 0, 5, False, MemberRole.CONTRIBUTOR),
    OuterError(epoch=2, step=5, error="closed"),
    CaughtUp(epoch=2, step=5, replayed_steps=1, fetch_s=2.0, fetch_bytes=0, donor=0),
    ViewInstalled(epoch=2, step=5, rolled_forward=False, waited_s=0.0),
    CheckpointReport(step=5, path="/checkpoints/5", state="complete", kind="interval", epoch=2),
    CheckpointsPruned(oldest_kept=(1, 1)),
    TimingReport(1, 5, 2, NONE, NONE, NONE, NONE, NONE),
    NumericsReport(5, 2, "loss_spike", "transient", "1.0", "2.0"),
    DeterminismReport(5, 5, 5, 0.0),
    TrainingDone(step=5),
    RecomputeReport("rec_1", (), "", "device", 1.0),
)


def told(world: World, said: RankReport, incarnation: int = 1, rank: int = 0, replica: int = 1) -> list[Change]:
    node = NODES[replica]
    body = RankSaid(RankRef(JOB_ID, 1, replica, incarnation, rank), said)
    return hear(world.store, body, Speaker(node, node, AT_S))


def does(world: World, said: RankReport, **whom: int) -> list[Change]:
    """Carried out as well."""
    changes = told(world, said, **whom)
    world.store.commit(changes, seen_s=AT_S)
    assert world.checkers.violations == []
    return changes


def at(world: World, state: RankState) -> World:
    """Rank 0 of replica 1 is in that state."""
    world.rows.replicas[1].states[0] = state
    return world


def out(world: World) -> World:
    """Replica 1's first life is out, and a second one has its place."""
    world.do(SetReplicaState(replica=1, incarnation=1, to=ReplicaState.EVICTED))
    world.do(StartReplica(replica=1, incarnation=2, placements=home(1)))
    return world


def counted(changes: list[Change]) -> list[str]:
    return [change.what for change in changes if isinstance(change, Count)]


def flush(epoch: int, replica: int = 1, rank: int = 0, **fields: Any) -> Flush:
    given: dict[str, Any] = {"incarnation": 1, "committed_step": 5, "prepared": False, "role": MemberRole.CONTRIBUTOR}
    return Flush(job_id=JOB_ID, attempt=1, epoch=epoch, replica=replica, rank=rank, **(given | fields))


def caught_up(epoch: int = 2, role: MemberRole = MemberRole.CONTRIBUTOR) -> CaughtUp:
    return CaughtUp(epoch=epoch, step=7, replayed_steps=1, fetch_s=2.5, fetch_bytes=9, donor=0, role=role)


# --- a life that is out -------------------------------------------------------------------------------


def test_each_kind_of_report_is_tried_here() -> None:
    assert {type(said) for said in EVERY} == set(REPORTED)


@pytest.mark.parametrize("said", EVERY, ids=lambda said: type(said).__name__)
def test_a_life_that_is_out_moves_and_wakes_nothing_but_by_evidence(said: RankReport) -> None:
    world = out(at(training(), RankState.INITIALIZING))
    before = {index: (row.state, row.contributing, row.caught_up) for index, row in world.rows.replicas.items()}
    changes = does(world, said)
    assert not [change for change in changes if isinstance(change, Transition | Raise | Publish)]
    evidence = isinstance(said, NumericsReport | RecomputeReport)
    assert bool([change for change in changes if isinstance(change, Wake)]) == evidence
    assert (before, {}, False) == (
        {index: (row.state, row.contributing, row.caught_up) for index, row in world.rows.replicas.items()},
        world.rows.flushes,
        world.rows.trained,
    )


@pytest.mark.parametrize("said", EVERY, ids=lambda said: type(said).__name__)
def test_so_does_one_of_an_attempt_that_is_over(said: RankReport) -> None:
    world = at(training(), RankState.INITIALIZING)
    assert world.rows.attempt is not None
    world.rows.attempt.state = AttemptState.ENDED
    changes = told(world, said)
    assert not [change for change in changes if isinstance(change, Transition | Raise | Publish)]


@pytest.mark.parametrize("said", EVERY, ids=lambda said: type(said).__name__)
def test_a_node_speaks_for_its_own_ranks_alone(said: RankReport) -> None:
    body = RankSaid(RankRef(JOB_ID, 1, 1, 1, 0), said)
    with pytest.raises(IdentityMismatch):
        hear(training().store, body, Speaker(NODES[0], NODES[0], AT_S))


# --- steps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "moves"),
    [(RankState.INITIALIZING, True), (RankState.HUNG, True), (RankState.TRAINING, False), (RankState.EXITED, False)],
)
def test_who_commits_a_step_trains(before: RankState, moves: bool) -> None:
    changes = does(at(training(), before), STEP)
    assert [change.to for change in changes if isinstance(change, Transition)] == [RankState.TRAINING] * moves
    assert changes[-1] == Keep(KEY, STEP) and Wake() not in changes


def test_a_step_of_an_epoch_that_it_was_a_member_of_counts_however_late_it_is_told() -> None:
    world = out(training())
    assert told(world, STEP) == [Keep(KEY, STEP)]
    late = StepReport(step=6, epoch=9, step_time_s=1.0, tokens=1, micro_batches=())
    assert counted(told(world, late)) == ["stale_step"]
    assert told(world, STEP, incarnation=2) == [Keep(RankKey(1, 1, 2, 0), STEP)], "who is not out is heard"


def test_a_loss_that_is_no_number_is_found_and_accuses_no_device() -> None:
    said = StepReport(step=5, epoch=2, step_time_s=1.0, tokens=1, micro_batches=(), loss=float("nan"))
    changes = does(at(training(), RankState.TRAINING), said)
    assert [type(change) for change in changes] == [Wake, Raise, Keep]
    (found,) = [change.found for change in changes if isinstance(change, Raise)]
    assert isinstance(found, LossNotFinite) and found.loss == "nan"
    assert (found.place["device_index"], found.place["node_id"]) == (None, NODES[1])


@pytest.mark.parametrize("over", ["its replica", "its attempt"])
def test_a_loss_of_who_is_out_is_kept_and_calls_for_nothing_any_more(over: str) -> None:
    """All ranks say the same of one bad step: what comes when the first word has ended the attempt is of no other."""
    world = out(training()) if over == "its replica" else training()
    if over == "its attempt":
        assert world.rows.attempt is not None
        world.rows.attempt.state = AttemptState.ENDED
    said = StepReport(step=5, epoch=2, step_time_s=1.0, tokens=1, micro_batches=(), loss=float("nan"))
    assert told(world, said) == [Keep(KEY, said)]


# --- flushes --------------------------------------------------------------------------------------------


def announced(*members: int) -> World:
    """View 3, of which no install was ordered."""
    world = training()
    world.do(AnnounceView(view=view(world, *members)))
    return world


def test_the_last_flush_of_a_view_wakes_the_job_and_none_before_it() -> None:
    world = announced(0, 1)
    ranks = [(replica, rank) for replica in (0, 1) for rank in (0, 1)]
    woke = [Wake(sure=True) in does(world, flush(3, *each), replica=each[0], rank=each[1]) for each in ranks]
    assert woke == [False, False, False, True]
    assert len(world.rows.flushes) == 4
    assert Wake(sure=True) in does(world, flush(3, 1, 1), rank=1), "it is told again as often as it is said"
    assert len(world.rows.flushes) == 4


def test_a_flush_that_comes_again_is_no_other_rank() -> None:
    world = announced(0, 1)
    for _ in range(4):
        assert Wake(sure=True) not in does(world, flush(3))


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (training(), flush(2)),
        (announced(0, 2), flush(3)),
        (announced(0, 1), flush(9)),
        (announced(0, 1), flush(2)),
        (out(announced(0, 1)), flush(3)),
    ],
    ids=["the install is ordered", "it is no member", "no such view", "a newer view is announced", "its life is out"],
)
def test_a_flush_that_no_install_waits_for_is_stale(world: World, said: Flush) -> None:
    assert counted(does(world, said)) == ["stale_flush"]
    assert world.rows.flushes == {}


@pytest.mark.parametrize("other", [{"rank": 1}, {"replica": 0}, {"incarnation": 2}])
def test_a_rank_flushes_for_itself_alone(other: dict[str, int]) -> None:
    with pytest.raises(IdentityMismatch, match="flushed as"):
        told(announced(0, 1), flush(3, **other))


# --- exchange, catch-up, install ----------------------------------------------------------------------------


def test_a_broken_exchange_of_the_present_epoch_is_found() -> None:
    world = training()
    changes = does(world, OuterError(epoch=2, step=5, error="closed"))
    assert [type(change) for change in changes] == [Wake, Raise]
    assert isinstance(changes[1], Raise) and isinstance(changes[1].found, ExchangeFailed)
    does(world, OuterError(epoch=2, step=5, error="closed"))
    assert len(world.rows.signals) == 1
    assert counted(told(world, OuterError(epoch=1, step=5, error="closed"))) == ["stale_outer_error"]


@pytest.mark.parametrize(
    ("role", "counts", "words"),
    [(MemberRole.CONTRIBUTOR, True, "counts"), (MemberRole.STANDBY, False, "stands by")],
)
def test_who_caught_up_counts_or_stands_by(role: MemberRole, counts: bool, words: str) -> None:
    world = training()
    wake, observe, publish = does(world, caught_up(role=role))
    assert wake == Wake() and isinstance(observe, Observe) and isinstance(publish, Publish)
    assert observe.columns["caught_up"]["at"] == "1970-01-01T00:16:30.000000Z"
    assert publish.subject == ReplicaKey(1, 1, 1)
    assert publish.sentence == f"Replica 1 replayed 1 step and {words} from step 7 on."
    row = world.rows.replicas[1]
    assert (row.contributing, row.caught_up, row.contributed) == (counts, role, True)
    assert world.rows.catch_ups == [2.5]
    assert told(world, caught_up(role=role), rank=1) == [], "its ranks say it one by one"


def test_a_joiner_that_computes_has_caught_up_also_where_its_word_of_that_is_lost() -> None:
    world = training()
    row = world.rows.replicas[1]
    row.state, row.contributing = ReplicaState.CATCHING_UP, False
    does(world, STEP)
    assert not row.contributing, "a joiner's steps hold nothing of its own"
    does(world, msgspec.structs.replace(STEP, micro_batches=(1, 4)))
    assert (row.contributing, row.caught_up, row.contributed) == (True, MemberRole.CONTRIBUTOR, True)
    assert world.rows.catch_ups == [], "how long it took is not known"


def test_steps_of_before_it_was_left_out_do_not_say_that_it_has_caught_up() -> None:
    world = training()
    left = view(world, 0, 2)
    out = (Member(1, 1, MemberRole.CONTRIBUTOR),)
    world.do(AnnounceView(view=type(left)(left.job_id, 1, 3, left.members, left_out=out)))
    world.do(AnnounceView(view=view(world, 0, 1, 2)))
    row = world.rows.replicas[1]
    row.state, row.contributing, row.caught_up = ReplicaState.CATCHING_UP, False, ""
    does(world, msgspec.structs.replace(STEP, micro_batches=(1, 4)))
    assert not row.contributing
    does(world, msgspec.structs.replace(STEP, micro_batches=(1, 4), epoch=4))
    assert row.contributing


def test_what_it_held_before_it_was_left_out_is_old() -> None:
    world = training()
    left = view(world, 0, 2)
    world.do(
        AnnounceView(
            view=type(left)(left.job_id, 1, 3, left.members, left_out=(Member(1, 1, MemberRole.CONTRIBUTOR),))
        ),
        SetReplicaState(replica=1, incarnation=1, to=ReplicaState.SUSPECT),
    )
    assert told(world, caught_up(epoch=2)) == []
    world.do(AnnounceView(view=view(world, 0, 1, 2)))
    assert counted(told(world, caught_up(epoch=3))) == ["stale_catch_up"], "it was no member of that view"
    assert isinstance(told(world, caught_up(epoch=4))[0], Wake)


def test_a_life_of_the_same_name_from_before_the_database_was_set_back_does_not_count_for_this_one() -> None:
    world = training()
    world.do(AnnounceView(view=view(world, 0, 2)))
    assert counted(told(world, caught_up(epoch=3))) == ["stale_catch_up"], "by our rows it is in no such view"
    assert counted(told(world, caught_up(epoch=9))) == ["stale_catch_up"], "nor is there one of that number"
    assert not world.rows.replicas[1].contributing or world.rows.catch_ups == []


def test_who_is_in_a_view_trains_and_the_first_says_when_it_began() -> None:
    world = at(training(), RankState.INITIALIZING)
    world.rows.install = None
    said = ViewInstalled(epoch=2, step=5, rolled_forward=False, waited_s=0.0)
    first, moves = told(world, said)
    assert first == Observe(ViewKey(2), {"installed_s": AT_S})
    assert isinstance(moves, Transition) and moves.to == RankState.TRAINING
    assert counted(told(world, ViewInstalled(epoch=9, step=5, rolled_forward=False, waited_s=0.0))) == ["stale_install"]


# --- saves, the end, evidence -------------------------------------------------------------------------------


def save(state: Any) -> CheckpointReport:
    return CheckpointReport(step=7, path="/checkpoints/7", state=state, kind="interval", epoch=2)


def test_a_rank_saves_from_its_first_word_of_a_save_to_its_last() -> None:
    world = at(training(), RankState.TRAINING)
    for said, to, wakes in (("writing", RankState.CHECKPOINTING, []), ("complete", RankState.TRAINING, [Wake()])):
        changes = does(world, save(said))
        assert [type(change) for change in changes] == [Keep, *map(type, wakes), Transition]
        assert world.rows.replicas[1].states[0] == to
        assert told(world, save(said)) == [Keep(KEY, save(said)), *wakes], "whoever waits for the save is woken"
    assert [fact.step for fact in world.rows.checkpoints] == [7]
    assert world.rows.attempt is not None and world.rows.attempt.saved


def test_a_save_that_was_not_finished_is_none() -> None:
    world = at(training(), RankState.TRAINING)
    does(world, save("writing"))
    does(world, save("failed"))
    assert world.rows.checkpoints == [] and world.rows.replicas[1].states[0] == RankState.TRAINING


def test_who_is_out_spoils_the_save_that_it_began_and_no_other() -> None:
    world = at(training(), RankState.TRAINING)
    does(world, save("writing"))
    other = CheckpointReport(step=9, path="/checkpoints/9", state="writing", kind="interval", epoch=2)
    does(world, other, replica=0)
    out(world)
    assert told(world, save("complete")) == [Keep(KEY, save("complete"))]
    does(world, save("complete"))
    assert counted(does(world, other)) == ["stale_checkpoint"]
    states = {path: row.state for path, row in world.rows.saves.items()}
    assert states == {"/checkpoints/7": CheckpointState.CORRUPT, "/checkpoints/9": CheckpointState.WRITING}
    assert world.rows.checkpoints == []


def test_the_end_of_training_is_told_once() -> None:
    world = training()
    changes = does(world, TrainingDone(step=60))
    assert changes[:2] == [Wake(), Observe(JobKey(), {"trained": True})]
    assert isinstance(changes[-1], Publish) and changes[-1].sentence == "All 60 steps of sim are committed."
    assert world.rows.trained and told(world, TrainingDone(step=60)) == []


@pytest.mark.parametrize("said", [EVERY[6], EVERY[7]], ids=lambda said: type(said).__name__)
def test_what_says_nothing_once_a_life_is_out_is_kept_of_the_others(said: RankReport) -> None:
    assert told(training(), said) == [Keep(KEY, said)]
    assert len(counted(told(out(training()), said))) == 1


@pytest.mark.parametrize("said", [EVERY[8], EVERY[11]], ids=lambda said: type(said).__name__)
def test_evidence_is_kept_and_called_for_whoever_tells_it(said: RankReport) -> None:
    for world in (training(), out(training())):
        assert told(world, said) == [Wake(), Keep(KEY, said)]
