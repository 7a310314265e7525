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


def goodput(jobs: Iterable[Job], *, since: datetime) -> tuple[float | None, bool]:
    """The effective time of several jobs since a moment, each weighted by the devices of its full
    strength (None when none of them has trained), and whether that of any is estimated."""
    kept_s, all_s, estimated = 0.0, 0.0, False
    for rate in rates(jobs):
        if rate.pace is None or rate.undisturbed is None or rate.first is None:
            continue
        job = rate.job
        began = max(since.timestamp(), began_s(rate.first, rate.spent))
        kept = job.committed_step - rate.first.resume_step
        kept_s += (kept - kept_by(rate.pace, began, kept=kept)) * rate.undisturbed.step_s * rate.gpus
        all_s += ((job.finished_at or now()).timestamp() - began) * rate.gpus
        estimated = estimated or rate.undisturbed.estimated
    return kept_s / all_s if all_s > 0 else None, estimated
