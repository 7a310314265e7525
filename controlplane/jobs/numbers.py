"""Figures of a job that are computed, not stored: each from rows that can be shown."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import msgspec
from django.db.models import QuerySet

from controlplane.changes.assembly import measured
from controlplane.jobs.models import Attempt, Job, JobPace, Replica
from controlplane.policy.checkpoints import TRUSTED
from controlplane.policy.goodput import effective_ratio
from controlplane.policy.pace import Pace, Undisturbed, productivity, stands_still, undisturbed_step
from controlplane.policy.plan import PREEMPTED
from controlplane.policy.prices import work_at_risk_s
from controlplane.policy.spent import Spent, Wall, wall
from controlplane.protocol.spec import JobSpec, TrainSpec, contributing_devices, replica_count
from controlplane.protocol.states import LIVE_INCIDENT, CheckpointState, EttrBasis, JobState, ReplicaState
from controlplane.runtime import windows
from controlplane.runtime.clock import now
from controlplane.runtime.models import ClockStep

RECENT_STEPS = 20
LOCAL_KIND = "local"
"""Kind of a checkpoint on the nodes' own disks."""
GOOD_CHECKPOINTS = tuple(sorted(TRUSTED))
"""May be resumed from."""
COMMITTED_CHECKPOINTS = (*GOOD_CHECKPOINTS, CheckpointState.PRUNED)
"""Were complete once: what saves took and how far they came stays true."""
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNumbers:
    """Units in the names. `ettr`: kept steps x `undisturbed_step_s` over wall time since the first
    attempt (`policy.goodput.effective_ratio`); `ettr_basis`: what it rests on, or why there is none;
    `replicas_total`: of the newest attempt, which may have been placed with fewer than `replicas_asked` for;
    `last_checkpoint_local`: it lies on the nodes' own disks alone and goes with them; `checkpoint_age_s`: of the
    newest in storage (function of that name), None of a job that has ended; `wall`: all wall time since
    then by what it was; `productivity`: speed of the newest steps, or of the one under way where that takes longer,
    over the job's own best; `learned_step_s`: what decisions take a step to last, by which `work_at_risk_s` is counted
    (`policy.prices`); `eta_s`: what the steps left take at the pace of the newest.
    None: not measured yet; of an ended job's productivity that it has none; of `eta_s` also that no step is committed
    any more (`policy.pace.stands_still`)."""

    total_steps: int
    step_time_s: float | None
    loss: float | None
    eta_s: float | None
    attempt: int
    restarts: int
    preemptions: int
    evictions: int
    replicas_active: int
    replicas_total: int
    replicas_asked: int
    last_checkpoint_step: int | None
    last_checkpoint_local: bool
    checkpoint_age_s: float | None
    learned_step_s: float | None
    work_at_risk_s: float | None
    ettr: float | None
    ettr_basis: EttrBasis
    undisturbed_step_s: float | None
    wall: Wall | None
    productivity: float | None
    open_incident_id: str | None


def spec_of(job: Job) -> JobSpec:
    """The stored spec as types."""
    return msgspec.convert(job.spec, JobSpec)


def numbers_of(job: Job) -> JobNumbers:
    """All of them, from the rows as they are now; none reads more rows for a job that trained longer."""
    spec = spec_of(job).spec
    pace = pace_of(job)
    undisturbed, spent = _undisturbed(spec, pace), spent_of(job)
    first, attempt = (job.attempts.order_by(column).first() for column in ("number", "-number"))
    recent = list(job.steps.order_by("-attempt", "-step").values("loss", "step_time_s", "at")[:RECENT_STEPS])
    times = [row["step_time_s"] for row in recent if row["step_time_s"]]
    step_time_s = median(times) if times else None
    checkpoint = job.checkpoints.filter(state__in=GOOD_CHECKPOINTS).order_by("-step", "-epoch").first()
    saved_step, learned_s = checkpoint.step if checkpoint else None, learned_step_s(job)
    incident = job.incidents.filter(state__in=LIVE_INCIDENT).order_by("-opened_at", "-id").first()
    left = max(0, spec.training.steps - job.committed_step)
    still = pace is not None and stands_still(pace, open_s=_open_s(job, pace))
    running = job.state not in ENDED
    replicas = Replica.objects.filter(attempt__job=job)
    attempts, preempted = job.attempts.count(), job.attempts.filter(end_code=PREEMPTED).count()
    resumed = preempted - (attempt is not None and attempt.end_code == PREEMPTED)
    return JobNumbers(
        total_steps=spec.training.steps,
        step_time_s=step_time_s,
        loss=next((row["loss"] for row in recent if row["loss"] is not None), None),
        eta_s=left * step_time_s if step_time_s is not None and running and not still else None,
        attempt=attempt.number if attempt else 0,
        restarts=attempts - 1 - resumed if attempts else 0,
        preemptions=preempted,
        evictions=replicas.filter(state=ReplicaState.EVICTED).count(),
        replicas_active=replicas.filter(attempt=attempt, contributing=True).count() if attempt and running else 0,
        replicas_total=attempt.replicas if attempt else 0,
        replicas_asked=replica_count(spec),
        last_checkpoint_step=saved_step,
        last_checkpoint_local=checkpoint is not None and checkpoint.kind == LOCAL_KIND,
        checkpoint_age_s=checkpoint_age_s(in_storage(job.checkpoints), first, windows.known()) if running else None,
        learned_step_s=learned_s,
        work_at_risk_s=work_at_risk_s(committed_step=job.committed_step, saved_step=saved_step, step_s=learned_s)
        if running and learned_s is not None
        else None,
        ettr=effective_of(job, first, spent, undisturbed),
        ettr_basis=_basis(job, pace, undisturbed),
        undisturbed_step_s=undisturbed.step_s if undisturbed else None,
        wall=_wall(job, first, spent, undisturbed),
        productivity=productivity_of(job, pace),
        open_incident_id=incident.id if incident else None,
    )


def productivity_of(job: Job, pace: Pace | None) -> float | None:
    """As it is now; None of a job that has ended, and while there is too little to go by."""
    return productivity(pace, open_s=_open_s(job, pace)) if pace and job.state not in ENDED else None


def _open_s(job: Job, pace: Pace) -> float:
    """Since its newest commit."""
    return (job.finished_at or now()).timestamp() - pace.at_s


def in_storage(rows: QuerySet[Any]) -> QuerySet[Any, datetime]:
    """When those checkpoints of `rows` were committed that the job's storage holds and that may be resumed from: one
    on the nodes' own disks goes with them."""
    good = rows.filter(state__in=GOOD_CHECKPOINTS).exclude(kind=LOCAL_KIND).exclude(committed_at=None)
    return good.values_list("committed_at", flat=True)


def checkpoint_age_s(committed: Iterable[datetime], first: Attempt | None, steps: list[ClockStep]) -> float | None:
    """Seconds since the newest of these moments (of `in_storage`); of a job that has none since its first attempt
    began, as all of that would be repeated. None before that. `steps`: of `windows.known`."""
    # The newest by the clock is not the newest once that was set back.
    ages_s = [windows.age_s(at, steps) for at in committed]
    return min(ages_s, default=windows.age_s(first.started_at, steps) if first is not None else None)


def calm_steps(job: Job) -> list[float]:
    """Seconds of the newest steps in which no membership changed, the newest first."""
    rows = job.steps.filter(stall_s=0.0).order_by("-attempt", "-step").values_list("step_time_s", flat=True)
    return [time_s for time_s in rows[: measured.RECENT] if time_s]


def learned_step_s(job: Job) -> float | None:
    """What decisions take a step of it to last: the mean of those; None before there are enough."""
    return measured.step_s(calm_steps(job))


def pace_of(job: Job) -> Pace | None:
    """None before its first step."""
    row = JobPace.objects.filter(job=job).first()
    return msgspec.convert(row.pace, Pace, str_keys=True) if row else None


def spent_of(job: Job) -> Spent | None:
    """None before its first step, and of one that trained before it was kept."""
    kept = JobPace.objects.filter(job=job).values_list("spent", flat=True).first()
    return msgspec.convert(kept, Spent) if kept else None


def _wall(job: Job, first: Attempt | None, spent: Spent | None, undisturbed: Undisturbed | None) -> Wall | None:
    if first is None or undisturbed is None or spent is None:
        return None
    return wall(
        spent,
        kept=job.committed_step - first.resume_step,
        undisturbed_step_s=undisturbed.step_s,
        until_s=(job.finished_at or now()).timestamp(),
        training=job.state in (JobState.RUNNING, *ENDED),
    )


def _undisturbed(spec: TrainSpec, pace: Pace | None) -> Undisturbed | None:
    return undisturbed_step(pace, wanted_gpus=contributing_devices(spec)) if pace else None


def _basis(job: Job, pace: Pace | None, undisturbed: Undisturbed | None) -> EttrBasis:
    if undisturbed is not None:
        return EttrBasis.ESTIMATED if undisturbed.estimated else EttrBasis.OBSERVED
    uncounted = pace is None and job.state in ENDED and job.committed_step > 0
    return EttrBasis.NOT_COUNTED if uncounted else EttrBasis.TOO_FEW_STEPS


def began_s(first: Attempt, spent: Spent | None) -> float:
    """When its first attempt did, by the present clock (Unix seconds): what is counted is moved with it."""
    return spent.began_s if spent is not None else first.started_at.timestamp()


def effective_of(job: Job, first: Attempt | None, spent: Spent | None, undisturbed: Undisturbed | None) -> float | None:
    """Kept steps x the undisturbed step over wall time since the first attempt, which is all of it:
    waiting for a place, starts, stalls and steps trained again count as what they are."""
    if first is None or undisturbed is None:
        return None
    wall_s = (job.finished_at or now()).timestamp() - began_s(first, spent)
    kept = job.committed_step - first.resume_step
    return effective_ratio(committed=kept, undisturbed_step_s=undisturbed.step_s, wall_s=wall_s)
