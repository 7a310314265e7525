"""Step reports of a batch, merged into one row a step.

Every rank reports every step; rank 0 of a replica brings the micro-batches, the last
pipeline stage the loss. `step` of a report counts from 0; `committed_step` is how many
steps are committed, so the newest step + 1.
"""

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.jobs.models import Job, Rank, Replica, StepRecord
from controlplane.jobs.numbers import spec_of
from controlplane.jobs.present import step_point
from controlplane.protocol.rank import StepReport
from controlplane.protocol.spec import micro_batch_count
from controlplane.recovery.models import ViewRow

Key = tuple[str, int, int]


@dataclass(slots=True)
class StepMerge:
    """Collects one batch's reports; `write` brings them to the table. `resumed`: jobs that then
    have committed the first step of a view."""

    rows: dict[Key, StepRecord] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    newest: dict[int, tuple[Replica, int]] = field(default_factory=dict)
    resumed: set[str] = field(default_factory=set)

    def add(self, job: Job, rank: Rank, said: StepReport, at: datetime) -> None:
        """Take one report in."""
        attempt = rank.replica.attempt.number
        key = (job.id, attempt, said.step)
        row = self.rows.get(key)
        if row is None:
            row = StepRecord.objects.filter(job=job, attempt=attempt, step=said.step).first() or StepRecord(
                job=job, attempt=attempt, step=said.step, epoch=said.epoch, at=at
            )
            self.rows[key] = row
        self.jobs[job.id] = job
        merge(row, rank, said, at)
        before = self.newest.get(rank.replica_id)
        done = said.step + 1
        if before is None or before[1] < done:
            self.newest[rank.replica_id] = (rank.replica, done)

    def write(self) -> list[dict[str, Any]]:
        """Upsert all rows, raise the counters, note the first commit of each view; returns
        the points for the browsers, each with its job's id."""
        if not self.rows:
            return []
        new = [row for row in self.rows.values() if row.pk is None]
        old = [row for row in self.rows.values() if row.pk is not None]
        StepRecord.objects.bulk_create(new)
        StepRecord.objects.bulk_update(old, FIELDS)
        for replica, done in self.newest.values():
            Replica.objects.filter(pk=replica.pk, committed_step__lt=done).update(committed_step=done)
        for job_id, job in self.jobs.items():
            mine = [row for row in self.rows.values() if row.job_id == job_id]
            self._raise_job(job, mine)
        counts = {job_id: micro_batch_count(spec_of(job).spec) for job_id, job in self.jobs.items()}
        return [
            {"job_id": row.job_id, **step_point(row, micro_batches=counts[row.job_id])} for row in self.rows.values()
        ]

    def _raise_job(self, job: Job, rows: list[StepRecord]) -> None:
        current = job.attempts.order_by("-number").values_list("number", flat=True).first()
        done = max((row.step + 1 for row in rows if row.attempt == current), default=0)
        if done > job.committed_step:
            Job.objects.filter(pk=job.pk).update(committed_step=done)
            job.committed_step = done
        for row in rows:
            first = ViewRow.objects.filter(job=job, epoch=row.epoch, resumed_at=None)
            if first.update(resumed_at=row.at):
                self.resumed.add(job.id)


FIELDS = (
    "epoch", "at", "loss", "grad_norm", "step_time_s", "exchange_s", "stall_s", "tokens", "contributors",
    "micro_batches", "trained", "parameter_hashes",
)  # fmt: skip


def merge(row: StepRecord, rank: Rank, said: StepReport, at: datetime) -> None:
    """Fold one report into the row. Reports are told at least once, so this is idempotent."""
    replica = str(rank.replica.index)
    row.epoch = max(row.epoch, said.epoch)
    row.at = min(row.at, at)
    row.loss = row.loss if said.loss is None else finite(said.loss)
    row.grad_norm = row.grad_norm if said.grad_norm is None else finite(said.grad_norm)
    row.step_time_s = max(row.step_time_s or 0.0, said.step_time_s)
    row.exchange_s = max(row.exchange_s or 0.0, said.exchange_s)
    row.stall_s = max(row.stall_s, said.stall_s)
    row.tokens = max(row.tokens, said.tokens)
    if rank.rank == 0:
        row.micro_batches = {**row.micro_batches, replica: list(said.micro_batches)}
        row.contributors = sum(bool(ids) for ids in row.micro_batches.values())
        if said.trained:
            row.trained = list(said.trained)
    if said.parameter_hash is not None:
        told = {**row.parameter_hashes.get(str(rank.rank), {}), replica: said.parameter_hash[:64]}
        row.parameter_hashes = {**row.parameter_hashes, str(rank.rank): told}


def finite(value: float) -> float | None:
    """NaN and infinities have no place in JSON or a chart; the signal tells of them."""
    return value if math.isfinite(value) else None
