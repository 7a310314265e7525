"""What ranks have said, as rows: `changes.kinds.Keep` in the database. Decides nothing about the report itself.

Steps of a batch are merged first and written once (`recovery.steps`); ranks that told of their speed are scored then.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from controlplane.checkpoints import services as checkpoints
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.frames import RankReport
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.membership import Flush
from controlplane.protocol.rank import (
    CheckpointReport,
    DeterminismReport,
    NumericsReport,
    RecomputeReport,
    StepReport,
    TimingReport,
    TrainingDone,
)
from controlplane.recovery import numerics, recompute, speed, spikes
from controlplane.recovery.heard import Heard
from controlplane.recovery.models import FlushRow, ViewRow
from controlplane.recovery.row_facts import is_fenced
from controlplane.runtime import bulk, counters
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared

_VIEW: Prepared[int] = Prepared(
    lambda job, epoch: ViewRow.objects.filter(job=job, epoch=epoch).values_list("pk", flat=True), job=TEXT, epoch=NUMBER
)


def keep(heard: Heard, job: Job, rank: Rank, said: RankReport) -> None:
    """Of this rank of the job, which is locked."""
    KEPT[type(said)](heard, job, rank, said)


def _step(heard: Heard, job: Job, rank: Rank, said: StepReport) -> None:
    heard.merge.add(job, rank, said, heard.at)
    if spikes.look(job, rank, said):
        heard.wake(job.id)


def _flush(heard: Heard, job: Job, rank: Rank, said: Flush) -> None:
    """The newest of a rank is its answer."""
    view, flush = _VIEW.get(job=job.pk, epoch=said.epoch), msgspec.to_builtins(said)
    known = FlushRow.objects.filter(view=view, replica=said.replica, rank=said.rank)
    if not known.update(flush=flush, at=heard.at):
        # The job is locked: nobody else writes one.
        row = (said.replica, said.rank, json.dumps(flush))
        bulk.insert(FlushRow, {"view_id": view, "at": heard.at}, ("replica", "rank", "flush"), [row])


def _checkpoint(heard: Heard, job: Job, rank: Rank, said: CheckpointReport) -> None:
    try:
        checkpoints.report(job, rank.replica.attempt, said, at=heard.at, fenced=is_fenced(rank), node_id=heard.node.id)
    except checkpoints.NotOurs as error:
        counters.count(heard.node.name, "foreign_checkpoint", detail=f"{job.name}: {error}")


def _timings(heard: Heard, job: Job, rank: Rank, said: TimingReport) -> None:
    speed.take(job, rank, said, heard.at)
    heard.timed.add(job.id)


def _recomputed(heard: Heard, job: Job, rank: Rank, said: RecomputeReport) -> None:
    if not recompute.take(rank, said):
        counters.count(heard.node.name, "foreign_recompute", detail=f"order {said.order_id}")


KEPT: dict[type, Callable[[Heard, Job, Rank, Any], None]] = {
    StepReport: _step,
    Flush: _flush,
    CheckpointReport: _checkpoint,
    CheckpointsPruned: lambda heard, job, rank, said: checkpoints.pruned(job, said),
    TimingReport: _timings,
    NumericsReport: lambda heard, job, rank, said: numerics.take(job, rank, said, heard.at),
    DeterminismReport: lambda heard, job, rank, said: numerics.count_steps(rank, said, heard.at),
    TrainingDone: lambda heard, job, rank, said: recompute.training_is_over(job),
    RecomputeReport: _recomputed,
}
