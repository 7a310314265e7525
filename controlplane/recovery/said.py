"""A rank's own reports: steps, flushes, installs, catch-up, saves, the end.

Reports of an incarnation that is out (evicted, or of an ended attempt) change nothing but
a counter and the certificate's evidence: the epoch fences them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from controlplane.checkpoints import services as checkpoints
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.jobs.services import publish_job, publish_replica, refresh_job, transition_rank
from controlplane.policy.signals.numbers import LossNotFinite
from controlplane.policy.signals.ranks import ExchangeFailed
from controlplane.protocol.errors import IdentityMismatch
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
from controlplane.protocol.spec import Parallelism, ranks_per_replica
from controlplane.protocol.states import AttemptState, RankState, ReplicaState
from controlplane.recovery import numerics, recompute, signals, speed, spikes
from controlplane.recovery.models import FlushRow, ViewRow
from controlplane.runtime import counters
from controlplane.runtime.clock import iso

if TYPE_CHECKING:
    from controlplane.recovery.heard import Heard


def is_fenced(rank: Rank) -> bool:
    """Its incarnation is out: what it reports must not count."""
    replica = rank.replica
    return replica.state in (ReplicaState.EVICTED, ReplicaState.ENDED) or replica.attempt.state == AttemptState.ENDED


def _step(facts: "Heard", rank: Rank, said: StepReport) -> None:
    job = facts.jobs[rank.replica.attempt.job_id]
    if is_fenced(rank) and not _was_member(rank, said.epoch):
        counters.count(facts.node.name, "stale_step", detail=f"step {said.step} of epoch {said.epoch}")
        return
    if rank.state == RankState.INITIALIZING:
        transition_rank(rank, RankState.TRAINING, f"trains in epoch {said.epoch}")
    elif rank.state == RankState.HUNG:
        transition_rank(rank, RankState.TRAINING, "it moves again")
    if said.loss_not_finite is not None:
        _nan(facts, rank, said)
    facts.merge.add(job, rank, said, facts.at)
    if spikes.look(job, rank, said):
        facts.touched.add(job.id)


def _was_member(rank: Rank, epoch: int) -> bool:
    """A step committed in an epoch that it was a member of did happen, however late it is told."""
    return _is_in(ViewRow.objects.filter(job_id=rank.replica.attempt.job_id, epoch=epoch).first(), rank)


def _is_in(view: ViewRow | None, rank: Rank) -> bool:
    """Its incarnation is a member of the view: the next life of its replica answers for itself."""
    mine = {"replica": rank.replica.index, "incarnation": rank.replica.incarnation}
    return view is not None and any(mine.items() <= member.items() for member in view.view["members"])


def _is_out(facts: "Heard", rank: Rank, what: str) -> bool:
    """As `is_fenced`; then its report is counted, and nothing else."""
    out = is_fenced(rank)
    if out:
        replica = rank.replica
        detail = f"rank {rank.rank} of replica {replica.index}, incarnation {replica.incarnation}, is out"
        counters.count(facts.node.name, f"stale_{what}", detail=detail)
    return out


def _was_left_out(rank: Rank, since_epoch: int) -> bool:
    """A view after `since_epoch` left this incarnation out for a while: what it held then is old."""
    replica = rank.replica
    mine = {"replica": replica.index, "incarnation": replica.incarnation}
    later = ViewRow.objects.filter(job_id=replica.attempt.job_id, epoch__gt=since_epoch).values_list("view", flat=True)
    return any(mine.items() <= member.items() for view in later for member in view.get("left_out", ()))


def _nan(facts: "Heard", rank: Rank, said: StepReport) -> None:
    facts.touched.add(rank.replica.attempt.job_id)
    found = LossNotFinite(
        **_place(facts, rank),
        attempt=rank.replica.attempt.number,
        step=said.step,
        epoch=said.epoch,
        loss=said.loss_not_finite,
    )
    signals.raise_signal(found, seen_at=facts.at)


def _place(facts: "Heard", rank: Rank) -> dict[str, Any]:
    """What the numbers say accuses no device."""
    return {**signals.place_of(rank), "node_id": facts.node.id, "device_index": None}


def _flush(facts: "Heard", rank: Rank, said: Flush) -> None:
    replica = rank.replica
    mine = (replica.attempt.job_id, replica.attempt.number, replica.index, replica.incarnation, rank.rank)
    if (said.job_id, said.attempt, said.replica, said.incarnation, said.rank) != mine:
        raise IdentityMismatch(f"rank {mine} flushed as {said}")
    view = ViewRow.objects.filter(job_id=said.job_id, epoch=said.epoch).first()
    if view is None or view.install is not None or not _is_in(view, rank):
        counters.count(facts.node.name, "stale_flush", detail=f"epoch {said.epoch}")
        return
    flush = msgspec.to_builtins(said)
    FlushRow.objects.update_or_create(
        view=view, replica=said.replica, rank=said.rank, defaults={"flush": flush}, create_defaults={"flush": flush}
    )
    FlushRow.objects.filter(view=view, replica=said.replica, rank=said.rank).update(at=facts.at)
    layout = msgspec.convert(replica.attempt.layout, Parallelism)
    if view.flush_rows.count() >= ranks_per_replica(layout) * len(view.view["members"]):
        # The last one: the install can be decided. Before it, only time brings a decision.
        facts.touched.add(said.job_id)
        facts.sure.add(said.job_id)


def _outer_error(facts: "Heard", rank: Rank, said: OuterError) -> None:
    replica = rank.replica
    job_id = replica.attempt.job_id
    current = facts.jobs[job_id].epoch
    if is_fenced(rank) or said.epoch != current:
        counters.count(facts.node.name, "stale_outer_error", detail=f"epoch {said.epoch}, the job is in {current}")
        return
    facts.touched.add(job_id)
    found = ExchangeFailed(**_place(facts, rank), epoch=said.epoch, step=said.step, error=said.error)
    signals.raise_signal(found, seen_at=facts.at)


def _caught_up(facts: "Heard", rank: Rank, said: CaughtUp) -> None:
    facts.touched.add(rank.replica.attempt.job_id)
    replica = rank.replica
    if _is_out(facts, rank, "catch_up") or replica.caught_up is not None or _was_left_out(rank, said.epoch):
        return
    told = {**msgspec.to_builtins(said), "at": iso(facts.at)}
    counts = said.role is MemberRole.CONTRIBUTOR
    Replica.objects.filter(pk=replica.pk).update(caught_up=told, contributing=counts, contributed=True)
    replica.caught_up, replica.contributing = told, counts
    outcome = "counts" if counts else "stands by"
    steps = f"{said.replayed_steps} step{'' if said.replayed_steps == 1 else 's'}"
    sentence = f"Replica {replica.index} replayed {steps} and {outcome} from step {said.step} on."
    publish_replica(replica, "replica.caught_up", sentence)


def _view_installed(facts: "Heard", rank: Rank, said: ViewInstalled) -> None:
    view = ViewRow.objects.filter(job_id=rank.replica.attempt.job_id, epoch=said.epoch).first()
    if view is None or not _is_in(view, rank):
        counters.count(facts.node.name, "stale_install", detail=f"epoch {said.epoch}")
        return
    ViewRow.objects.filter(pk=view.pk, installed_at=None).update(installed_at=facts.at)
    if rank.state == RankState.INITIALIZING and not is_fenced(rank):
        transition_rank(rank, RankState.TRAINING, f"is in epoch {said.epoch}")


def _checkpoint(facts: "Heard", rank: Rank, said: CheckpointReport) -> None:
    attempt = rank.replica.attempt
    job = facts.jobs[attempt.job_id]
    fenced = is_fenced(rank)
    if fenced and not rank.replica.ranks.filter(node_id=checkpoints.told_by(job, said.path)).exists():
        # A save that its incarnation has not begun is another's: who is out spoils none of those.
        counters.count(facts.node.name, "stale_checkpoint", detail=f"{job.name}: {said.path}")
        return
    try:
        checkpoints.report(job, attempt, said, at=facts.at, fenced=fenced, node_id=facts.node.id)
    except checkpoints.NotOurs as error:
        counters.count(facts.node.name, "foreign_checkpoint", detail=f"{job.name}: {error}")
    if said.state == "writing" and rank.state == RankState.TRAINING:
        transition_rank(rank, RankState.CHECKPOINTING, f"saves step {said.step}")
    if said.state != "writing" and rank.state == RankState.CHECKPOINTING:
        transition_rank(rank, RankState.TRAINING, f"saved step {said.step}")


def _pruned(facts: "Heard", rank: Rank, said: CheckpointsPruned) -> None:
    if not _is_out(facts, rank, "pruned"):
        checkpoints.pruned(facts.jobs[rank.replica.attempt.job_id], said)


def _timings(facts: "Heard", rank: Rank, said: TimingReport) -> None:
    if _is_out(facts, rank, "timings"):
        return
    job = facts.jobs[rank.replica.attempt.job_id]
    speed.take(job, rank, said, facts.at)
    facts.timed.add(job.id)


def _numerics(facts: "Heard", rank: Rank, said: NumericsReport) -> None:
    """Told by an incarnation that is out as well: what it computed is evidence all the same."""
    facts.touched.add(rank.replica.attempt.job_id)
    numerics.take(facts.jobs[rank.replica.attempt.job_id], rank, said, facts.at)


def _determinism(facts: "Heard", rank: Rank, said: DeterminismReport) -> None:
    numerics.count_steps(rank, said, facts.at)


def _done(facts: "Heard", rank: Rank, said: TrainingDone) -> None:
    facts.touched.add(rank.replica.attempt.job_id)
    job = facts.jobs[rank.replica.attempt.job_id]
    if _is_out(facts, rank, "done") or job.trained:
        return
    Job.objects.filter(pk=job.pk).update(trained=True)
    job.trained = True
    recompute.training_is_over(job)
    publish_job(job, "job.trained", f"All {said.step} steps of {job.name} are committed.")
    refresh_job(job.id)


def _recomputed(facts: "Heard", rank: Rank, said: RecomputeReport) -> None:
    """The job's end waits for it."""
    facts.touched.add(rank.replica.attempt.job_id)
    if not recompute.take(rank, said):
        counters.count(facts.node.name, "foreign_recompute", detail=f"order {said.order_id}")


HANDLERS: dict[type, Callable[["Heard", Rank, Any], None]] = {
    StepReport: _step,
    Flush: _flush,
    OuterError: _outer_error,
    CaughtUp: _caught_up,
    ViewInstalled: _view_installed,
    CheckpointReport: _checkpoint,
    CheckpointsPruned: _pruned,
    TimingReport: _timings,
    NumericsReport: _numerics,
    DeterminismReport: _determinism,
    TrainingDone: _done,
    RecomputeReport: _recomputed,
}
