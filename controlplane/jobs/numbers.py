"""Figures of a job that are computed, not stored: each from rows that can be shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import msgspec
from django.db.models import Case, Count, Q, QuerySet, When

from controlplane.changes.assembly import measured
from controlplane.jobs.models import Attempt, Job, JobPace, Replica, StepRecord
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
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared, figures_of

RECENT_STEPS = 20
LOCAL_KIND = "local"
"""Kind of a checkpoint in the nodes' own memory or on their disks."""
STORAGE_FIRST = (Case(When(kind=LOCAL_KIND, then=1), default=0), "-epoch")
"""Of saves of one step, that which outlives the nodes."""
Stored = tuple[int, datetime]
"""Step and commit of a checkpoint in storage."""
GOOD_CHECKPOINTS = tuple(sorted(TRUSTED))
"""May be resumed from."""
COMMITTED_CHECKPOINTS = (*GOOD_CHECKPOINTS, CheckpointState.PRUNED)
"""Were complete once: what saves took and how far they came stays true."""
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def _of_job(name: str, job: Any) -> QuerySet[Any]:
    """The job's rows of an app above, by the name of the relation."""
    found: QuerySet[Any] = Job._meta.get_field(name).related_model._default_manager.filter(job=job)
    return found


FIRST_ATTEMPT: Prepared[Attempt] = Prepared(
    lambda job: Attempt.objects.filter(job=job).order_by("number")[:1], job=TEXT
)
NEWEST_ATTEMPT: Prepared[Attempt] = Prepared(
    lambda job: Attempt.objects.filter(job=job).order_by("-number")[:1], job=TEXT
)
_ATTEMPTS: Prepared[tuple[int, int]] = Prepared(
    lambda job: figures_of(
        Attempt.objects.filter(job=job), number_of=Count("pk"), preempted=Count("pk", filter=Q(end_code=PREEMPTED))
    ),
    job=TEXT,
)
_REPLICAS: Prepared[tuple[int, int]] = Prepared(
    lambda job, attempt: figures_of(
        Replica.objects.filter(attempt__job=job),
        evicted=Count("pk", filter=Q(state=ReplicaState.EVICTED)),
        contributing_of_it=Count("pk", filter=Q(attempt=attempt, contributing=True)),
    ),
    job=TEXT, attempt=NUMBER,
)  # fmt: skip
_RECENT: Prepared[dict[str, Any]] = Prepared(
    lambda job: StepRecord.objects.filter(job=job).order_by("-attempt", "-step")
    .values("loss", "step_time_s", "at")[:RECENT_STEPS],
    job=TEXT,
)  # fmt: skip
_NEWEST_SAVE: Prepared[tuple[int, str]] = Prepared(
    lambda job: _of_job("checkpoints", job).filter(state__in=GOOD_CHECKPOINTS)
    .order_by("-step", *STORAGE_FIRST).values_list("step", "kind")[:1],
    job=TEXT,
)  # fmt: skip
_IN_STORAGE: Prepared[Stored] = Prepared(lambda job: in_storage(_of_job("checkpoints", job)), job=TEXT)
_OPEN_INCIDENT: Prepared[str] = Prepared(
    lambda job: _of_job("incidents", job).filter(state__in=LIVE_INCIDENT)
    .order_by("-opened_at", "-id").values_list("id", flat=True)[:1],
    job=TEXT,
)  # fmt: skip
_PACE: Prepared[tuple[Any, Any]] = Prepared(
    lambda job: JobPace.objects.filter(job=job).values_list("pace", "spent"), job=TEXT
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNumbers:
    """Units in the names. `ettr`: kept steps x `undisturbed_step_s` over wall time since the first
    attempt (`policy.goodput.effective_ratio`); `ettr_basis`: what it rests on, or why there is none;
    `replicas_total`: of the newest attempt, which may have been placed with fewer than `replicas_asked` for;
    `last_checkpoint_local`: it lies with the nodes alone and goes with them; `stored_checkpoint_step`: of the newest
    in storage, `checkpoint_age_s` its age (function of that name), both None of a job that has ended; `wall`: all wall
    time since then by what it was; `productivity`: speed of the newest steps, or of the one under way where that takes
    longer, over the job's own best; `learned_step_s`: what decisions take a step to last, by which `work_at_risk_s` is
    counted (`policy.prices`), and `work_at_risk_stored_s`, which is lost where the nodes go too; `eta_s`: what the
    steps left take at the pace of the newest.
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
    stored_checkpoint_step: int | None
    checkpoint_age_s: float | None
    learned_step_s: float | None
    work_at_risk_s: float | None
    work_at_risk_stored_s: float | None
    ettr: float | None
    ettr_basis: EttrBasis
    undisturbed_step_s: float | None
    wall: Wall | None
    productivity: float | None
    open_incident_id: str | None


def spec_of(job: Job) -> JobSpec:
    """The stored spec as types."""
    return msgspec.convert(job.spec, JobSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """What the rows of a job say, of which its numbers are made; of many jobs `numbers_of_many` reads the same.
    `losses` and `times_s` of its newest steps, `calm_s` of those in which no membership changed, the newest first;
    `saved`: step and kind of the newest checkpoint that may be resumed from; `in_storage`: those in the job's
    storage; `contributing`: replicas of the newest attempt; `steps`: how the clock was set."""

    first: Attempt | None
    newest: Attempt | None
    pace: Pace | None
    spent: Spent | None
    losses: Sequence[float | None]
    times_s: Sequence[float | None]
    calm_s: Sequence[float | None]
    saved: tuple[int, str] | None
    in_storage: Sequence[Stored]
    attempts: int
    preempted: int
    evicted: int
    contributing: int
    open_incident_id: str | None
    steps: list[ClockStep]


def numbers_of(job: Job) -> JobNumbers:
    """All of them, from the rows as they are now; none reads more rows for a job that trained longer."""
    pace, spent = kept_of(job)
    newest = NEWEST_ATTEMPT.first(job=job.pk)
    recent = _RECENT(job=job.pk)
    attempts, preempted = _ATTEMPTS.first(job=job.pk) or (0, 0)
    evicted, contributing = _REPLICAS.first(job=job.pk, attempt=newest.pk if newest else 0) or (0, 0)
    rows = JobRows(
        first=FIRST_ATTEMPT.first(job=job.pk),
        newest=newest,
        pace=pace,
        spent=spent,
        losses=[row["loss"] for row in recent],
        times_s=[row["step_time_s"] for row in recent],
        calm_s=_CALM_STEPS(job=job.pk),
        saved=_NEWEST_SAVE.first(job=job.pk),
        in_storage=_IN_STORAGE(job=job.pk) if job.state not in ENDED else (),
        attempts=attempts,
        preempted=preempted,
        evicted=evicted,
        contributing=contributing,
        open_incident_id=_OPEN_INCIDENT.first(job=job.pk),
        steps=windows.known() if job.state not in ENDED else [],
    )
    return numbers_from(job, rows)


def numbers_from(job: Job, rows: JobRows) -> JobNumbers:
    """All of them, from these rows."""
    spec, pace, newest = spec_of(job).spec, rows.pace, rows.newest
    undisturbed = _undisturbed(spec, pace)
    times = [time_s for time_s in rows.times_s if time_s]
    step_time_s = median(times) if times else None
    (saved_step, saved_as), learned_s = rows.saved or (None, ""), measured.step_s(_known(rows.calm_s))
    left = max(0, spec.training.steps - job.committed_step)
    still = pace is not None and stands_still(pace, open_s=_open_s(job, pace))
    running = job.state not in ENDED
    stored_step = max((step for step, _ in rows.in_storage), default=None)
    resumed = rows.preempted - (newest is not None and newest.end_code == PREEMPTED)
    return JobNumbers(
        total_steps=spec.training.steps,
        step_time_s=step_time_s,
        loss=next((loss for loss in rows.losses if loss is not None), None),
        eta_s=left * step_time_s if step_time_s is not None and running and not still else None,
        attempt=newest.number if newest else 0,
        restarts=rows.attempts - 1 - resumed if rows.attempts else 0,
        preemptions=rows.preempted,
        evictions=rows.evicted,
        replicas_active=rows.contributing if running else 0,
        replicas_total=newest.replicas if newest else 0,
        replicas_asked=replica_count(spec),
        last_checkpoint_step=saved_step,
        last_checkpoint_local=saved_as == LOCAL_KIND,
        stored_checkpoint_step=stored_step,
        checkpoint_age_s=checkpoint_age_s(rows.in_storage, rows.first, rows.steps) if running else None,
        learned_step_s=learned_s,
        work_at_risk_s=_at_risk_s(job, saved_step, learned_s),
        work_at_risk_stored_s=_at_risk_s(job, stored_step, learned_s),
        ettr=effective_of(job, rows.first, rows.spent, undisturbed),
        ettr_basis=_basis(job, pace, undisturbed),
        undisturbed_step_s=undisturbed.step_s if undisturbed else None,
        wall=_wall(job, rows.first, rows.spent, undisturbed),
        productivity=productivity_of(job, pace),
        open_incident_id=rows.open_incident_id,
    )


def _at_risk_s(job: Job, saved_step: int | None, step_s: float | None) -> float | None:
    if step_s is None or job.state in ENDED:
        return None
    return work_at_risk_s(committed_step=job.committed_step, saved_step=saved_step, step_s=step_s)


def productivity_of(job: Job, pace: Pace | None) -> float | None:
    """As it is now; None of a job that has ended, and while there is too little to go by."""
    return productivity(pace, open_s=_open_s(job, pace)) if pace and job.state not in ENDED else None


def _open_s(job: Job, pace: Pace) -> float:
    """Since its newest commit."""
    return (job.finished_at or now()).timestamp() - pace.at_s


def in_storage(rows: QuerySet[Any]) -> QuerySet[Any, Stored]:
    """Those checkpoints of `rows` that the job's storage holds and that may be resumed from: one with the nodes goes
    with them."""
    good = rows.filter(state__in=GOOD_CHECKPOINTS).exclude(kind=LOCAL_KIND).exclude(committed_at=None)
    return good.values_list("step", "committed_at")


def checkpoint_age_s(stored: Iterable[Stored], first: Attempt | None, steps: list[ClockStep]) -> float | None:
    """Seconds since the newest of these was committed (`in_storage`); of a job that has none since its first attempt
    began, as all of that would be repeated. None before that. `steps`: of `windows.known`."""
    # The newest by the clock is not the newest once that was set back.
    ages_s = [windows.age_s(at, steps) for _, at in stored]
    return min(ages_s, default=windows.age_s(first.started_at, steps) if first is not None else None)


def _calm_steps(job: Any) -> QuerySet[StepRecord, float | None]:
    rows = StepRecord.objects.filter(job=job, stall_s=0.0).order_by("-attempt", "-step")
    return rows.values_list("step_time_s", flat=True)[: measured.RECENT]


_CALM_STEPS = Prepared(_calm_steps, job=TEXT)


def calm_steps(job: Job) -> list[float]:
    """Seconds of the newest steps in which no membership changed, the newest first."""
    return _known(_CALM_STEPS(job=job.id))


def _known(times_s: Iterable[float | None]) -> list[float]:
    return [time_s for time_s in times_s if time_s]


def learned_step_s(job: Job) -> float | None:
    """What decisions take a step of it to last: the mean of those; None before there are enough."""
    return measured.step_s(calm_steps(job))


def pace_of(job: Job) -> Pace | None:
    """None before its first step."""
    return kept_of(job)[0]


def spent_of(job: Job) -> Spent | None:
    """None before its first step, and of one that trained before it was kept."""
    return kept_of(job)[1]


def kept_of(job: Job) -> tuple[Pace | None, Spent | None]:
    """As `pace_of` and `spent_of`, of one row."""
    row = _PACE.first(job=job.pk)
    return (None, None) if row is None else as_kept(*row)


def as_kept(pace: Any, spent: Any) -> tuple[Pace, Spent | None]:
    """A row of `JobPace` as types."""
    return msgspec.convert(pace, Pace, str_keys=True), msgspec.convert(spent, Spent) if spent else None


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
