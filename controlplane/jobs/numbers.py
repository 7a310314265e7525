"""Figures of a job that are computed, not stored: each from rows that can be shown."""

from dataclasses import dataclass
from statistics import median

import msgspec
from django.db.models import Sum

from controlplane.jobs.models import Job, Replica
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.states import CheckpointState, IncidentState, JobState, ReplicaState
from controlplane.runtime.clock import age_s, now

RECENT_STEPS = 20
LOCAL_KIND = "local"
"""Kind of a checkpoint on the nodes' own disks."""
GOOD_CHECKPOINTS = (
    CheckpointState.COMPLETE,
    CheckpointState.VERIFIED,
    CheckpointState.RESTORE_TESTED,
    CheckpointState.REPLICATED,
)
"""May be resumed from."""
COMMITTED_CHECKPOINTS = (*GOOD_CHECKPOINTS, CheckpointState.PRUNED)
"""Were complete once: what saves took and how far they came stays true."""
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNumbers:
    """Units in the names. `ettr`: effective training time over wall time since the first
    attempt, 0..1; None before the first step. None elsewhere: not measured yet."""

    total_steps: int
    step_time_s: float | None
    loss: float | None
    eta_s: float | None
    attempt: int
    restarts: int
    evictions: int
    replicas_active: int
    replicas_total: int
    last_checkpoint_step: int | None
    last_checkpoint_age_s: float | None
    work_at_risk_s: float | None
    ettr: float | None
    open_incident_id: str | None


def spec_of(job: Job) -> JobSpec:
    """The stored spec as types."""
    return msgspec.convert(job.spec, JobSpec)


def numbers_of(job: Job, *, whole: bool = True) -> JobNumbers:
    """All of them, from the rows as they are now. Not `whole`: without the ETTR, which reads
    every step and which no event carries."""
    spec = spec_of(job).spec
    attempt = job.attempts.order_by("-number").first()
    recent = list(job.steps.order_by("-attempt", "-step").values("loss", "step_time_s", "at")[:RECENT_STEPS])
    times = [row["step_time_s"] for row in recent if row["step_time_s"]]
    step_time_s = median(times) if times else None
    checkpoint = job.checkpoints.filter(state__in=GOOD_CHECKPOINTS).order_by("-step", "-epoch").first()
    incident = job.incidents.exclude(state=IncidentState.RESOLVED).first()
    left = max(0, spec.training.steps - job.committed_step)
    running = job.state not in ENDED
    replicas = Replica.objects.filter(attempt__job=job)
    return JobNumbers(
        total_steps=spec.training.steps,
        step_time_s=step_time_s,
        loss=next((row["loss"] for row in recent if row["loss"] is not None), None),
        eta_s=left * step_time_s if step_time_s is not None and running else None,
        attempt=attempt.number if attempt else 0,
        restarts=max(0, job.attempts.count() - 1),
        evictions=replicas.filter(state=ReplicaState.EVICTED).count(),
        replicas_active=replicas.filter(attempt=attempt, contributing=True).count() if attempt and running else 0,
        replicas_total=attempt.replicas if attempt else 0,
        last_checkpoint_step=checkpoint.step if checkpoint else None,
        last_checkpoint_age_s=age_s(checkpoint.committed_at) if checkpoint else None,
        work_at_risk_s=_work_at_risk_s(job, checkpoint.step if checkpoint else 0, step_time_s) if running else None,
        ettr=_ettr(job) if whole else None,
        open_incident_id=incident.id if incident else None,
    )


def _work_at_risk_s(job: Job, saved_step: int, step_time_s: float | None) -> float | None:
    """Training time that a loss of every replica would cost now."""
    return None if step_time_s is None else max(0, job.committed_step - saved_step) * step_time_s


def _ettr(job: Job) -> float | None:
    """Time in steps that count (each step once, less its stall) over wall time."""
    first = job.attempts.order_by("number").first()
    if first is None:
        return None
    newest: dict[int, float] = {}
    totals = job.steps.values("attempt").annotate(t=Sum("step_time_s"), stall=Sum("stall_s")).order_by("attempt")
    for row in totals:
        newest[row["attempt"]] = max(0.0, (row["t"] or 0.0) - (row["stall"] or 0.0))
    useful_s = sum(newest.values()) - _repeated_s(job)
    wall_s = ((job.finished_at or now()) - first.started_at).total_seconds()
    return max(0.0, min(1.0, useful_s / wall_s)) if newest and wall_s > 0 else None


def _repeated_s(job: Job) -> float:
    """Time of steps that a later attempt trained again from its checkpoint."""
    lost_s = 0.0
    for attempt in job.attempts.filter(number__gt=1):
        again = job.steps.filter(attempt__lt=attempt.number, step__gte=attempt.resume_step)
        lost_s += again.aggregate(t=Sum("step_time_s"))["t"] or 0.0
    return lost_s
