"""Step reports of a batch, merged into one row a step.

Every rank reports every step; rank 0 of a replica brings the micro-batches, the last
pipeline stage the loss. `step` of a report counts from 0; `committed_step` is how many
steps are committed, so the newest step + 1.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import F, Sum

from controlplane.jobs.models import Job, JobPace, Rank, Replica, StepRecord
from controlplane.jobs.numbers import pace_of, spec_of, spent_of
from controlplane.jobs.present import step_point
from controlplane.policy.ledger.runs import Saved
from controlplane.policy.pace import Commit, Pace, count
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.policy.spent import Spent, begin
from controlplane.protocol.rank import StepReport
from controlplane.protocol.spec import Parallelism, micro_batch_count, ranks_per_replica
from controlplane.recovery import ledger_runs
from controlplane.recovery.models import Signal, ViewRow
from controlplane.recovery.signals import tell_silence
from controlplane.runtime import metrics, windows

Key = tuple[str, int, int]


@dataclass(slots=True)
class StepMerge:
    """Collects one batch's reports; `write` brings them to the table. `resumed`: jobs that then
    have committed the first step of a view; `stalled_s`: by how much stalls of steps grew, and
    `trained_s`: by how much the steps of each job did."""

    rows: dict[Key, StepRecord] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    newest: dict[int, tuple[Replica, int]] = field(default_factory=dict)
    resumed: set[str] = field(default_factory=set)
    layouts: dict[tuple[str, int], Any] = field(default_factory=dict)
    stalled_s: float = 0.0
    trained_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

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
        self.layouts.setdefault((job.id, attempt), rank.replica.attempt.layout)
        stalled_s, trained_s = row.stall_s, row.step_time_s or 0.0
        merge(row, rank, said, at)
        self.stalled_s += row.stall_s - stalled_s
        self.trained_s[job.id] += (row.step_time_s or 0.0) - trained_s
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
        lost = {metrics.STALLED: self.stalled_s, metrics.REPEATED: _repeated_s(new)}
        transaction.on_commit(lambda: _count_lost(lost))
        StepRecord.objects.bulk_create(new)
        StepRecord.objects.bulk_update(old, FIELDS)
        for replica, done in self.newest.values():
            Replica.objects.filter(pk=replica.pk, committed_step__lt=done).update(committed_step=done)
        for job_id, job in self.jobs.items():
            self._raise_job(job, [row for row in self.rows.values() if row.job_id == job_id])
            self._pace(job, [row for row in new if row.job_id == job_id])
            _add_trained(job, self.trained_s[job_id])
        _tell_commits(new)
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

    def _pace(self, job: Job, new: list[StepRecord]) -> None:
        """Count the commits that nobody had told of before."""
        if not new:
            return
        first = job.attempts.order_by("number").first()
        started = first.resume_step if first else 0
        pace = pace_of(job) or Pace()
        spent = spent_of(job)
        # The job is locked: what is kept was moved with each of these.
        set_by = windows.known()
        if spent is None and first is not None and pace.attempt == 0:
            spent = begin(windows.present(first.started_at, set_by).timestamp())
        gpus = {epoch: self._gpus(job, row) for epoch, row in {row.epoch: row for row in new}.items()}
        gone = ledger_runs.Gaps(job)
        for row in sorted(new, key=lambda row: (row.attempt, row.step)):
            commit = Commit(
                attempt=row.attempt,
                step=row.step,
                epoch=row.epoch,
                at_s=windows.present(row.at, set_by).timestamp(),
                gpus=gpus[row.epoch],
                kept=row.step + 1 - started,
                step_s=row.step_time_s,
            )
            count(pace, commit)
            if spent is not None:
                gone.count(spent, commit, pace)
        kept = {"pace": msgspec.to_builtins(pace, str_keys=True)}
        if spent is not None:
            gone.write(add_saves(job, spent))
            kept["spent"] = msgspec.to_builtins(spent)
        JobPace.objects.update_or_create(job=job, defaults=kept)

    def _gpus(self, job: Job, row: StepRecord) -> int:
        """Devices that contribute in the row's epoch; 0: its install is not known. Who joins with a view is not
        among its first contributors, and counts in it once it has caught up."""
        view = ViewRow.objects.filter(job_id=row.job_id, epoch=row.epoch).only("install").first()
        if view is None or not view.install:
            return 0
        first = len(view.install["contributors"])
        by_now = Replica.objects.filter(attempt__job=job, attempt__number=row.attempt, contributing=True).count()
        layout = msgspec.convert(self.layouts[(row.job_id, row.attempt)], Parallelism)
        return max(first, by_now if row.epoch == job.epoch else 0) * ranks_per_replica(layout)


def _tell_commits(new: list[StepRecord]) -> None:
    """The first step since a node's last word proves that its ranks still commit: that is told."""
    silent = Signal.objects.filter(kind=NodeSilent.KIND, settled_at=None, job_id__in={row.job_id for row in new})
    for job_id, node_id, seen_at, limit_s in silent.values_list("job_id", "node_id", "seen_at", "threshold"):
        since = seen_at - timedelta(seconds=limit_s)
        told = {row.pk for row in new if row.job_id == job_id and row.at > since}
        if told and not StepRecord.objects.filter(job_id=job_id, at__gt=since).exclude(pk__in=told).exists():
            tell_silence(str(job_id), str(node_id))


def add_saves(job: Job, spent: Spent, *, all_until_s: float | None = None) -> list[Saved]:
    """What saves that were committed since the last look held training up: those up to the newest step, or, as
    the clock was set meanwhile and tells another time from now on, all of them until that moment of it. Returns
    them."""
    moments_s = (spent.saves_until_s, spent.at_s)
    since, until = (datetime.fromtimestamp(moment_s, tz=UTC) for moment_s in moments_s)
    saves = job.checkpoints.filter(committed_at__gt=since)
    saves = saves.filter(committed_at__lte=until) if all_until_s is None else saves
    counted = windows.of_clock_before(saves, since)
    saves = saves.exclude(pk__in=counted) if counted else saves
    found = [Saved(at.timestamp(), of_s) for at, of_s in saves.values_list("committed_at", "blocking_s") if of_s]
    spent.saved_s += sum(save.blocking_s for save in found)
    spent.saves_until_s = max(spent.saves_until_s, spent.at_s) if all_until_s is None else all_until_s
    return found


def _add_trained(job: Job, more_s: float) -> None:
    """Raise the sum; a job that trained before it was kept is summed this once."""
    kept = JobPace.objects.filter(job=job)
    if not kept.exclude(trained_s=None).update(trained_s=F("trained_s") + more_s):
        kept.update(trained_s=job.steps.aggregate(total=Sum("step_time_s"))["total"] or 0.0)


def _repeated_s(new: list[StepRecord]) -> float:
    """Time of those steps among `new` that an earlier attempt of their job had trained already."""
    again = [row for row in new if row.attempt > 1]
    if not again:
        return 0.0
    steps = StepRecord.objects.filter(job_id__in={row.job_id for row in again}, step__in={row.step for row in again})
    first: dict[tuple[str, int], int] = {}
    for job_id, step, attempt in steps.values_list("job_id", "step", "attempt"):
        first[job_id, step] = min(attempt, first.get((job_id, step), attempt))
    return sum(row.step_time_s or 0.0 for row in again if first.get((row.job_id, row.step), row.attempt) < row.attempt)


def _count_lost(lost_s: dict[str, float]) -> None:
    for cause, seconds in lost_s.items():
        metrics.LOST_WORK.labels(cause=cause).inc(seconds)


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
    if rank.replica.contributing:
        # A joiner's clock began before it was in the group: what it waited held nobody up.
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
