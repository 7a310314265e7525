"""Figures of many jobs at once: as `jobs.numbers` has them of one, with queries whose number does not grow."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from controlplane.jobs.models import Attempt, Job, JobPace
from controlplane.jobs.numbers import began_s, effective_of, productivity_of, spec_of
from controlplane.policy.pace import Pace, Undisturbed, kept_by, undisturbed_step
from controlplane.policy.spent import Spent
from controlplane.protocol.spec import contributing_devices
from controlplane.runtime.clock import now
from controlplane.runtime.pieces import batched

AT_ONCE = 500
"""Jobs that one query names: a database takes no list of any length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRate:
    """What a job's figures of time rest on. `gpus`: devices of its full strength; `pace` None before its first
    step, `first` before its first attempt; `spent` also of one that trained before that was kept."""

    job: Job
    gpus: int
    pace: Pace | None
    first: Attempt | None
    spent: Spent | None
    undisturbed: Undisturbed | None

    @property
    def ettr(self) -> float | None:
        """As `JobNumbers` has it."""
        return effective_of(self.job, self.first, self.spent, self.undisturbed)

    @property
    def productivity(self) -> float | None:
        """As `JobNumbers` has it."""
        return productivity_of(self.job, self.pace)


def first_attempts(job_ids: Sequence[str]) -> dict[str, Attempt]:
    """By job, of those that had one; of at most `AT_ONCE` jobs."""
    return {attempt.job_id: attempt for attempt in Attempt.objects.filter(job__in=job_ids).order_by("-number")}


def rates(jobs: Iterable[Job]) -> Iterator[JobRate]:
    """Of each; two queries for `AT_ONCE` jobs."""
    for some in batched(jobs, AT_ONCE):
        yield from _rates(some)


def _rates(jobs: Sequence[Job]) -> Iterator[JobRate]:
    ids = [job.id for job in jobs]
    kept = {row.job_id: row for row in JobPace.objects.filter(job__in=ids)}
    firsts = first_attempts(ids)
    for job in jobs:
        gpus = contributing_devices(spec_of(job).spec)
        row = kept.get(job.id)
        pace = msgspec.convert(row.pace, Pace, str_keys=True) if row else None
        spent = msgspec.convert(row.spent, Spent) if row and row.spent else None
        undisturbed = undisturbed_step(pace, wanted_gpus=gpus) if pace else None
        yield JobRate(job=job, gpus=gpus, pace=pace, first=firsts.get(job.id), spent=spent, undisturbed=undisturbed)


@dataclass(frozen=True, slots=True)
class Goodput:
    """`ratio` None: no job began, or none can be judged. `estimated`: that of any is. `unjudged` jobs have kept steps
    whose undisturbed time is not known yet, and are not in the ratio."""

    ratio: float | None
    estimated: bool
    unjudged: int


def goodput(jobs: Iterable[Job], *, since: datetime) -> Goodput:
    """The effective time of several jobs since a moment, each weighted by the devices of its full strength. One that
    began and has kept no step yet counts with all its time."""
    kept_s, all_s, estimated, unjudged = 0.0, 0.0, False, 0
    for rate in rates(jobs):
        if rate.first is None:
            continue
        job = rate.job
        began = max(since.timestamp(), began_s(rate.first, rate.spent))
        kept = job.committed_step - rate.first.resume_step
        if kept and (rate.pace is None or rate.undisturbed is None):
            unjudged += 1
            continue
        if rate.pace is not None and rate.undisturbed is not None:
            kept_s += (kept - kept_by(rate.pace, began, kept=kept)) * rate.undisturbed.step_s * rate.gpus
            estimated = estimated or rate.undisturbed.estimated
        all_s += ((job.finished_at or now()).timestamp() - began) * rate.gpus
    return Goodput(kept_s / all_s if all_s > 0 else None, estimated, unjudged)
