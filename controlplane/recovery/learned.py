"""What this job's own rows have measured: times, saves, budgets."""

from statistics import mean

from django.db.models import Avg, Max

from controlplane.jobs.models import Job, Replica
from controlplane.jobs.numbers import GOOD_CHECKPOINTS, spec_of
from controlplane.policy.snapshot import BudgetFact, LearnedTimes, SaveFact
from controlplane.protocol.states import CheckpointState, ReplicaState
from controlplane.recovery.models import Decision
from controlplane.runtime.clock import ago

MIN_STEPS = 3
RECENT = 50
SAVE_LIMIT_S = 600.0


def learned_of(job: Job) -> LearnedTimes:
    """None where there is not enough data."""
    times = _undisturbed(job)
    joined = Replica.objects.filter(attempt__job=job, ranks__joined_at__isnull=False)
    starts = [
        (row["last"] - row["created_at"]).total_seconds()
        for row in joined.values("created_at").annotate(last=Max("ranks__joined_at"))[:RECENT]
    ]
    caught = [row["fetch_s"] for row in joined.exclude(caught_up=None).values_list("caught_up", flat=True) if row]
    save_s = job.checkpoints.filter(state__in=GOOD_CHECKPOINTS).aggregate(t=Avg("total_s"))["t"]
    return LearnedTimes(
        step_s=mean(times) if len(times) >= MIN_STEPS else None,
        step_max_s=max(times) if len(times) >= MIN_STEPS else None,
        save_s=save_s,
        start_replica_s=mean(starts) if starts else None,
        catch_up_s=mean(caught) if caught else None,
    )


def saves_of(job: Job) -> SaveFact:
    """The newest of each kind; `interval_s` from the measured step time."""
    rows = job.checkpoints.order_by("-started_at")
    started = rows.values_list("started_at", flat=True).first()
    committed = rows.filter(state__in=GOOD_CHECKPOINTS).aggregate(at=Max("committed_at"))["at"]
    # The order itself counts too: a second alarm must not ask again before the first is answered.
    asked = job.commands.filter(kind="request_save", body__save_kind="emergency").aggregate(at=Max("created_at"))["at"]
    step_s = learned_step_s(job)
    interval = spec_of(job).spec.checkpoint.interval_steps
    return SaveFact(
        last_started_s=started.timestamp() if started else None,
        last_committed_s=committed.timestamp() if committed else None,
        interval_s=step_s * interval if step_s is not None else None,
        last_emergency_s=asked.timestamp() if asked else None,
        in_progress=rows.filter(state=CheckpointState.WRITING, started_at__gte=ago(SAVE_LIMIT_S)).exists(),
    )


def learned_step_s(job: Job) -> float | None:
    """Mean of the recent steps; None before there are enough."""
    times = _undisturbed(job)
    return mean(times) if len(times) >= MIN_STEPS else None


def _undisturbed(job: Job) -> list[float]:
    """Seconds of the recent steps in which no membership changed."""
    rows = job.steps.filter(stall_s=0.0).order_by("-id").values_list("step_time_s", flat=True)
    return [time_s for time_s in rows[:RECENT] if time_s]


def budget_of(job: Job) -> BudgetFact:
    """Restarts are attempts beyond the first; `no_progress_cycles` ended attempts in a row
    that committed nothing beyond their start."""
    window_s = spec_of(job).spec.resiliency.budget.window_s
    restarts = Decision.objects.filter(job=job, rule="restart", applied=True)
    idle = 0
    for attempt in job.attempts.exclude(ended_at=None).order_by("-number"):
        if job.steps.filter(attempt=attempt.number).exists():
            break
        idle += 1
    return BudgetFact(
        restarts_total=max(0, job.attempts.count() - 1),
        restarts_in_window=restarts.filter(at__gte=ago(window_s)).count(),
        evictions_total=Replica.objects.filter(attempt__job=job, state=ReplicaState.EVICTED).count(),
        no_progress_cycles=idle,
    )
