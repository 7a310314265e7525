"""What a rank's own reports mean: steps, flushes, installs, catch-up, saves, the end.

Of a life that is out (its incarnation, or its whole attempt) nothing counts but what is evidence of what it did
while it was a member: the epoch fences everything else, which is counted as stale. A rank is in an epoch by the
view of that epoch: the next life of its replica answers for itself.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from controlplane.changes.kinds import (
    Change,
    Count,
    JobKey,
    Keep,
    Observe,
    Publish,
    Raise,
    ReplicaKey,
    Transition,
    ViewKey,
    Wake,
)
from controlplane.changes.rows import Rank, Rows
from controlplane.changes.speaker import Speaker, key_of, moment, place_of, stale
from controlplane.policy.signals.numbers import LossNotFinite
from controlplane.policy.signals.ranks import ExchangeFailed
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import RankReport
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.membership import Flush, MemberRole
from controlplane.protocol.rank import (
    CaughtUp,
    CheckpointReport,
    DeterminismReport,
    NumericsReport,
    OuterError,
    RecomputeReport,
    StepReport,
    TimingReport,
    TrainingDone,
    ViewInstalled,
)
from controlplane.protocol.spec import ranks_per_replica
from controlplane.protocol.states import RankState, ReplicaState


def reported(rows: Rows, rank: Rank, said: RankReport, speaker: Speaker) -> Iterator[Change]:
    """What a report of this rank changes. Raises IdentityMismatch: it speaks for another."""
    yield from REPORTED[type(said)](rows, rank, said, speaker)


def _place(rows: Rows, rank: Rank) -> dict[str, Any]:
    """What the numbers and the exchange say accuses no device."""
    return {**place_of(rows, rank), "device_index": None}


def _is_member(rows: Rows, rank: Rank, epoch: int) -> bool:
    found = rows.in_view(epoch, rank.replica, rank.incarnation)
    return found is not None and found.is_member


def _trains(rank: Rank, why: str) -> Transition:
    return Transition(key_of(rank), RankState.TRAINING, why)


def _step(rows: Rows, rank: Rank, said: StepReport, speaker: Speaker) -> Iterator[Change]:
    """One committed in an epoch that it was a member of did happen, however late it is told. Its numbers are no news
    then: what they called for is done, and another attempt is none of theirs."""
    if rank.fenced and not _is_member(rows, rank, said.epoch):
        yield Count(speaker.node, "stale_step", f"step {said.step} of epoch {said.epoch}")
        return
    if not rank.fenced and rank.state == RankState.INITIALIZING:
        yield _trains(rank, f"trains in epoch {said.epoch}")
    elif not rank.fenced and rank.state == RankState.HUNG:
        yield _trains(rank, "it moves again")
    if said.loss_not_finite is not None and not rank.fenced:
        yield Wake()
        found = LossNotFinite(
            **_place(rows, rank), attempt=rank.attempt, step=said.step, epoch=said.epoch, loss=said.loss_not_finite
        )
        yield Raise(found)
    yield from _counts_already(rows, rank, said, speaker)
    yield Keep(key_of(rank), said)


def _counts_already(rows: Rows, rank: Rank, said: StepReport, speaker: Speaker) -> Iterator[Change]:
    """A joiner computes nothing. One that has, in the view that it joined with, has caught up: its word of that was
    told to a database that was set back since, and is not said again."""
    joins = rank.rank == 0 and rank.replica_state == ReplicaState.CATCHING_UP and not rank.fenced
    if joins and said.micro_batches:
        role = MemberRole.CONTRIBUTOR
        report = CaughtUp(
            epoch=said.epoch,
            step=said.step,
            replayed_steps=0,
            fetch_s=0.0,
            fetch_bytes=0,
            donor=-1,
            role=role,
        )
        yield from _caught_up(rows, rank, report, speaker)


def _flush(rows: Rows, rank: Rank, said: Flush, speaker: Speaker) -> Iterator[Change]:
    """With the last one the install can be decided; before it, only time brings a decision."""
    mine = (rows.job_id, rank.attempt, rank.replica, rank.incarnation, rank.rank)
    if (said.job_id, said.attempt, said.replica, said.incarnation, said.rank) != mine:
        raise IdentityMismatch(f"rank {mine} flushed as {said}")
    found = rows.in_view(said.epoch, rank.replica, rank.incarnation)
    if rank.fenced or found is None or found.commanded or not found.is_member:
        yield Count(speaker.node, "stale_flush", f"epoch {said.epoch}")
        return
    yield Keep(key_of(rank), said)
    wanted = ranks_per_replica(rows.attempt(rank.attempt).layout) * found.members
    if rows.flushes_beside(said.epoch, rank.replica, rank.rank) + 1 >= wanted:
        yield Wake(sure=True)


def _outer_error(rows: Rows, rank: Rank, said: OuterError, speaker: Speaker) -> Iterator[Change]:
    current = rows.standing().epoch
    if rank.fenced or said.epoch != current:
        yield Count(speaker.node, "stale_outer_error", f"epoch {said.epoch}, the job is in {current}")
        return
    yield Wake()
    yield Raise(ExchangeFailed(**_place(rows, rank), epoch=said.epoch, step=said.step, error=said.error))


def _caught_up(rows: Rows, rank: Rank, said: CaughtUp, speaker: Speaker) -> Iterator[Change]:
    """Once; what it held before it was left out is old. In an epoch of which it is no member here it was another life
    by its number, of before the database was set back."""
    if rank.fenced or not _is_member(rows, rank, said.epoch):
        yield stale(rank, "catch_up", speaker)
        return
    replica = rows.incarnation(rank.attempt, rank.replica, rank.incarnation)
    if replica is None or replica.caught_up:
        return
    if rows.was_left_out(rank.replica, rank.incarnation, since_epoch=said.epoch):
        return
    yield Wake()
    counts = said.role is MemberRole.CONTRIBUTOR
    key = ReplicaKey(rank.attempt, rank.replica, rank.incarnation)
    caught_up = {**msgspec.to_builtins(said), "at": moment(speaker.at_s)}
    yield Observe(key, {"caught_up": caught_up, "contributing": counts, "contributed": True})
    steps = f"{said.replayed_steps} step{'' if said.replayed_steps == 1 else 's'}"
    outcome = "counts" if counts else "stands by"
    sentence = f"Replica {rank.replica} replayed {steps} and {outcome} from step {said.step} on."
    yield Publish("replica.caught_up", sentence, subject=key)


def _view_installed(rows: Rows, rank: Rank, said: ViewInstalled, speaker: Speaker) -> Iterator[Change]:
    """The first one of the view is evidence of when it began, whatever became of its rank since."""
    found = rows.in_view(said.epoch, rank.replica, rank.incarnation)
    if found is None or not found.is_member:
        yield Count(speaker.node, "stale_install", f"epoch {said.epoch}")
        return
    if not found.installed:
        yield Observe(ViewKey(said.epoch), {"installed_s": speaker.at_s})
    if rank.state == RankState.INITIALIZING and not rank.fenced:
        yield _trains(rank, f"is in epoch {said.epoch}")


def _checkpoint(rows: Rows, rank: Rank, said: CheckpointReport, speaker: Speaker) -> Iterator[Change]:
    """Who is out spoils none but a save that its incarnation has begun: any other is another's."""
    if rank.fenced and not rows.has_reported_save(said.path, rank):
        yield Count(speaker.node, "stale_checkpoint", said.path)
        return
    yield Keep(key_of(rank), said)
    if rank.fenced:
        return
    if said.state == "writing" and rank.state == RankState.TRAINING:
        yield Transition(key_of(rank), RankState.CHECKPOINTING, f"saves step {said.step}")
    if said.state == "writing":
        return
    yield Wake()  # a request to save, or to save and yield, waits for it
    if rank.state == RankState.CHECKPOINTING:
        yield _trains(rank, f"saved step {said.step}")


def _done(rows: Rows, rank: Rank, said: TrainingDone, speaker: Speaker) -> Iterator[Change]:
    if rank.fenced:
        yield stale(rank, "done", speaker)
        return
    if rows.has_trained():
        return
    yield Wake()
    yield Observe(JobKey(), {"trained": True})
    yield Keep(key_of(rank), said)
    yield Publish("job.trained", f"All {said.step} steps of {rows.standing().name} are committed.")


def _unless_out(what: str) -> Callable[[Rows, Rank, Any, Speaker], Iterator[Change]]:
    """Kept, of a life that is not out."""

    def take(rows: Rows, rank: Rank, said: Any, speaker: Speaker) -> Iterator[Change]:
        yield stale(rank, what, speaker) if rank.fenced else Keep(key_of(rank), said)

    return take


def _evidence(rows: Rows, rank: Rank, said: Any, speaker: Speaker) -> Iterator[Change]:
    """Also of a life that is out: what it computed is evidence all the same."""
    yield Wake()
    yield Keep(key_of(rank), said)


def _kept(rows: Rows, rank: Rank, said: Any, speaker: Speaker) -> Iterator[Change]:
    yield Keep(key_of(rank), said)


REPORTED: dict[type, Callable[[Rows, Rank, Any, Speaker], Iterator[Change]]] = {
    StepReport: _step,
    Flush: _flush,
    OuterError: _outer_error,
    CaughtUp: _caught_up,
    ViewInstalled: _view_installed,
    CheckpointReport: _checkpoint,
    CheckpointsPruned: _unless_out("pruned"),
    TimingReport: _unless_out("timings"),
    NumericsReport: _evidence,
    DeterminismReport: _kept,
    TrainingDone: _done,
    RecomputeReport: _evidence,
}
assert set(REPORTED) == set(RankReport.__args__), "every report has its meaning"
