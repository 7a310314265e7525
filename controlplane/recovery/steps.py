"""Step reports of a batch, merged into one row a step.

Every rank reports every step; rank 0 of a replica brings the micro-batches, the last
pipeline stage the loss. `step` of a report counts from 0; `committed_step` is how many
steps are committed, so the newest step + 1.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Count, F, Sum

from controlplane.changes.packing import Detail, Packed, ids_of, packed
from controlplane.jobs import step_rows
from controlplane.jobs.models import Attempt, Job, JobPace, Rank, Replica, StepRecord
from controlplane.jobs.numbers import FIRST_ATTEMPT, kept_of, spec_of
from controlplane.jobs.present import step_point
from controlplane.policy.ledger.runs import Saved
from controlplane.policy.pace import Commit, Pace, count
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.policy.spent import Spent, begin
from controlplane.protocol.rank import StepReport
from controlplane.protocol.spec import Parallelism, micro_batch_count, ranks_per_replica
from controlplane.recovery import ledger_runs
from controlplane.recovery.models import Signal, ViewRow
from controlplane.recovery.row_queries import NEWEST_NUMBER
from controlplane.recovery.signals import tell_silence
from controlplane.runtime import metrics, windows
from controlplane.runtime.prepared import FIGURE, NUMBER, TEXT, Change, Prepared, Several

Key = tuple[str, int, int]
_CONTRIBUTING: Prepared[int] = Prepared(
    lambda job, attempt: Replica.objects.filter(attempt__job=job, attempt__number=attempt, contributing=True)
    .order_by().values("attempt").annotate(number=Count("pk")).values_list("number", flat=True),
    job=TEXT, attempt=NUMBER,
)  # fmt: skip
_CONTRIBUTORS: Prepared[list[int] | None] = Prepared(
    lambda job, epoch: ViewRow.objects.filter(job=job, epoch=epoch).values_list("install__contributors", flat=True)[:1],
    job=TEXT, epoch=NUMBER,
)  # fmt: skip
"""Of an install that may name thousands of ranks."""
_NOT_RESUMED: Prepared[int] = Prepared(
    lambda job, epoch: ViewRow.objects.filter(job=job, epoch=epoch, resumed_at=None).values_list("pk", flat=True),
    job=TEXT, epoch=NUMBER,
)  # fmt: skip
_TRAINED_S: Prepared[float | None] = Prepared(
    lambda job: JobPace.objects.filter(job=job).values_list("trained_s", flat=True), job=TEXT
)
_SILENT: Prepared[tuple[str, str, datetime, float]] = Prepared(
    lambda jobs: Signal.objects.filter(kind=NodeSilent.KIND, settled_at=None, job__pk__in=jobs)
    .values_list("job_id", "node_id", "seen_at", "threshold"),
    jobs=Several(TEXT),
)  # fmt: skip
_REPLICA_DONE = Change(
    lambda replica, done: (Replica.objects.filter(pk=replica, committed_step__lt=done), {"committed_step": done}),
    replica=NUMBER, done=NUMBER,
)  # fmt: skip
_JOB_DONE = Change(lambda job, done: (Job.objects.filter(pk=job), {"committed_step": done}), job=TEXT, done=NUMBER)
_ADD_TRAINED = Change(
    lambda job, more_s: (
        JobPace.objects.filter(job=job).exclude(trained_s=None), {"trained_s": F("trained_s") + more_s}
    ),
    job=TEXT, more_s=FIGURE,
)  # fmt: skip


@dataclass(slots=True)
class StepMerge:
    """Collects one batch's reports; `write` brings them to the table. `named`: steps that it has reports of, by job and
    attempt; their rows are read at once, at the first that counts. `before`: values of the rows that were read.
    `details`: what the batch tells of steps of large jobs, whose rows do not hold it (`jobs.step_rows`).
    `resumed`: jobs that then have committed the first step of a view; `stalled_s`: by how much stalls of steps grew,
    and `trained_s`: by how much the steps of each job did."""

    named: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    known: dict[Key, StepRecord] = field(default_factory=dict)
    sought: set[Key] = field(default_factory=set)
    rows: dict[Key, StepRecord] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    newest: dict[int, tuple[Replica, int]] = field(default_factory=dict)
    resumed: set[str] = field(default_factory=set)
    before: dict[Key, dict[str, Any]] = field(default_factory=dict)
    details: dict[Key, Detail] = field(default_factory=dict)
    layouts: dict[tuple[str, int], Parallelism] = field(default_factory=dict)
    stalled_s: float = 0.0
    trained_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, job: Job, rank: Rank, said: StepReport, at: datetime) -> None:
        """Take one report in."""
        attempt = rank.replica.attempt
        key = (job.id, attempt.number, said.step)
        row = self.rows.get(key)
        if row is None:
            known = self._known(key)
            if known is not None:
                self.before[key] = step_rows.values_of(known)
            row = known or StepRecord(job=job, attempt=attempt.number, step=said.step, epoch=said.epoch, at=at)
            self.rows[key] = row
            layout = self._layout(job, attempt)
            if attempt.replicas * ranks_per_replica(layout) > step_rows.LARGE_RANKS:
                self.details[key] = Detail()
        self.jobs[job.id] = job
        stalled_s, trained_s = row.stall_s, row.step_time_s or 0.0
        merge_figures(row, rank, said, at)
        merge_detail(self.details.get(key, row), rank, said)
        self.stalled_s += row.stall_s - stalled_s
        self.trained_s[job.id] += (row.step_time_s or 0.0) - trained_s
        before = self.newest.get(rank.replica_id)
        done = said.step + 1
        if before is None or before[1] < done:
            self.newest[rank.replica_id] = (rank.replica, done)

    def _known(self, key: Key) -> StepRecord | None:
        job_id, attempt, step = key
        steps = {step} | self.named.pop((job_id, attempt), set())
        for row in step_rows.read(job_id, attempt, steps) if key not in self.sought else ():
            self.known[job_id, attempt, row.step] = row
        self.sought |= {(job_id, attempt, each) for each in steps}
        return self.known.get(key)

    def _layout(self, job: Job, attempt: Attempt) -> Parallelism:
        key = (job.id, attempt.number)
        if key not in self.layouts:
            self.layouts[key] = msgspec.convert(attempt.layout, Parallelism)
        return self.layouts[key]

    def write(self) -> list[dict[str, Any]]:
        """Upsert all rows, raise the counters, note the first commit of each view, pack steps that are settled;
        returns the points for the browsers, each with its job's id."""
        if not self.rows:
            return []
        new = [row for row in self.rows.values() if row.pk is None]
        lost = {metrics.STALLED: self.stalled_s, metrics.REPEATED: _repeated_s(new)}
        transaction.on_commit(lambda: _count_lost(lost))
        news = self._write_rows(new)
        for replica, done in self.newest.values():
            # The job is locked: nobody else raises it.
            if replica.committed_step < done:
                _REPLICA_DONE(replica=replica.pk, done=done)
        for job_id, job in self.jobs.items():
            mine = [row for row in new if row.job_id == job_id]
            self._raise_job(job, [row for row in self.rows.values() if row.job_id == job_id])
            self._pace(job, mine)
            _add_trained(job, self.trained_s[job_id])
            if mine and any(key[0] == job_id for key in self.details):
                news += step_rows.pack_settled(job_id)
        _tell_commits(new)
        counts = {job_id: micro_batch_count(spec_of(self.jobs[job_id]).spec) for job_id in {row.job_id for row in news}}
        return [{"job_id": row.job_id, **step_point(row, micro_batches=counts[row.job_id])} for row in news]

    def _write_rows(self, new: list[StepRecord]) -> list[StepRecord]:
        """Those of them that are news for a page."""
        parts = {key: part for key, detail in self.details.items() if (part := _part(self.rows[key], detail))}
        for key in self.rows.keys() - self.details.keys():
            row = self.rows[key]
            row.contributors = sum(bool(ids) for ids in row.micro_batches.values())
        StepRecord.objects.bulk_create(new)
        news = list(new)
        written = step_rows.write_changes([(self.rows[key], before) for key, before in self.before.items()])
        for (key, before), names in zip(self.before.items(), written, strict=True):
            if _is_news(self.rows[key], before, names):
                news.append(self.rows[key])
        step_rows.add_parts((self.rows[key], part) for key, part in parts.items())
        for row in news:
            if row.in_parts:
                row.trained = ids_of((row.packed or {}).get("trained", ""))
        return news

    def _raise_job(self, job: Job, rows: list[StepRecord]) -> None:
        ahead = [row for row in rows if row.step + 1 > job.committed_step]
        current = NEWEST_NUMBER.first(job=job.pk) if ahead else None
        done = max((row.step + 1 for row in ahead if row.attempt == current), default=0)
        if done > job.committed_step:
            _JOB_DONE(job=job.pk, done=done)
            job.committed_step = done
        for row in {row.epoch: row for row in reversed(rows) if self._begins(row)}.values():
            first = _NOT_RESUMED.first(job=job.pk, epoch=row.epoch)
            if first is not None and ViewRow.objects.filter(pk=first, resumed_at=None).update(resumed_at=row.at):
                self.resumed.add(job.id)

    def _begins(self, row: StepRecord) -> bool:
        """It was not there, or not of this epoch: whether it is the epoch's first was not asked yet."""
        before = self.before.get((row.job_id, row.attempt, row.step))
        return before is None or before["epoch"] != row.epoch

    def _pace(self, job: Job, new: list[StepRecord]) -> None:
        """Count the commits that nobody had told of before."""
        if not new:
            return
        first = FIRST_ATTEMPT.first(job=job.pk)
        started = first.resume_step if first else 0
        known, spent = kept_of(job)
        pace = known or Pace()
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
        if not JobPace.objects.filter(job=job).update(**kept):
            JobPace.objects.create(job=job, **kept)

    def _gpus(self, job: Job, row: StepRecord) -> int:
        """Devices that contribute in the row's epoch; 0: its install is not known. Who joins with a view is not
        among its first contributors, and counts in it once it has caught up."""
        contributors = _CONTRIBUTORS.first(job=row.job_id, epoch=row.epoch)
        if contributors is None:
            return 0
        first = len(contributors)
        by_now = _CONTRIBUTING.first(job=job.pk, attempt=row.attempt) or 0
        layout = self.layouts[(row.job_id, row.attempt)]
        return max(first, by_now if row.epoch == job.epoch else 0) * ranks_per_replica(layout)


def _tell_commits(new: list[StepRecord]) -> None:
    """The first step since a node's last word proves that its ranks still commit: that is told."""
    for job_id, node_id, seen_at, limit_s in _SILENT(jobs={row.job_id for row in new}):
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
    if not more_s and _TRAINED_S.first(job=job.pk) is not None:
        return
    if not _ADD_TRAINED(job=job.pk, more_s=more_s):
        JobPace.objects.filter(job=job).update(trained_s=job.steps.aggregate(total=Sum("step_time_s"))["total"] or 0.0)


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


def _is_news(row: StepRecord, before: Mapping[str, Any], changed: Collection[str]) -> bool:
    """For a page: of a large job's step not each replica that tells of it is."""
    if row.in_parts and set(changed) <= {"contributors", "in_parts"}:
        return bool(before["contributors"].bit_length() < row.contributors.bit_length())
    return bool(changed)


def _part(row: StepRecord, detail: Detail) -> Packed:
    """What the batch tells of a step of a large job; {}: nothing new. The ledger that the exchange counted is the same
    from everybody, and is in the row; who tells another one has it in his part."""
    part = packed(detail)
    known = row.packed or {}
    if "trained" in part and "trained" not in known:
        row.packed = known = {**known, "trained": part["trained"]}
    if part.get("trained") == known.get("trained"):
        part.pop("trained", None)
    row.contributors += sum(bool(ids) for ids in detail.micro_batches.values())
    row.in_parts = row.in_parts or bool(part)
    return part


def merge_figures(row: StepRecord, rank: Rank, said: StepReport, at: datetime) -> None:
    """Fold one report's numbers into the row. Reports are told at least once, so this is idempotent."""
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


def merge_detail(into: StepRecord | Detail, rank: Rank, said: StepReport) -> None:
    """Fold the rest of it into what is told of the step. Idempotent too."""
    replica = str(rank.replica.index)
    if rank.rank == 0:
        into.micro_batches = {**into.micro_batches, replica: list(said.micro_batches)}
        if said.trained:
            into.trained = list(said.trained)
    if said.parameter_hash is not None:
        hashes = {**into.parameter_hashes.get(str(rank.rank), {}), replica: said.parameter_hash[:64]}
        into.parameter_hashes = {**into.parameter_hashes, str(rank.rank): hashes}


def finite(value: float) -> float | None:
    """NaN and infinities have no place in JSON or a chart; the signal tells of them."""
    return value if math.isfinite(value) else None
