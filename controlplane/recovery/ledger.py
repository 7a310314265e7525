"""The restart ledger in rows: written with each decision that climbs a rung, read as budget."""

from typing import Any

from django.db.models import Count

from controlplane.jobs.models import Job, Replica
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, spec_of
from controlplane.policy import plan
from controlplane.policy.budget import Rung, entries
from controlplane.policy.plan import ORDERED
from controlplane.policy.snapshot import BudgetFact, JobSnapshot
from controlplane.protocol.states import UNFIT, ReplicaState
from controlplane.recovery import counts
from controlplane.recovery.models import Decision, Restart
from controlplane.runtime import windows
from controlplane.runtime.clock import iso

Json = dict[str, Any]
MAX_ENTRIES = 200


def write(job: Job, row: Decision, decision: plan.Decision, snapshot: JobSnapshot) -> None:
    """In the transaction that carries the decision out: no rung is taken without its entry."""
    attempt = snapshot.attempt.number if snapshot.attempt else 0
    Restart.objects.bulk_create(
        Restart(
            job=job,
            decision=row,
            at=row.at,
            attempt=attempt,
            rung=str(entry.rung),
            charged=entry.charged,
            replica=entry.replica,
            incarnation=entry.incarnation,
        )
        for entry in entries(decision, snapshot)
    )


def budget_of(job: Job) -> BudgetFact:
    """What is charged, and how many ended attempts in a row brought no newer checkpoint."""
    window_s = spec_of(job).spec.resiliency.budget.window_s
    charged = counts.restarts().filter(job=job)
    return BudgetFact(
        restarts_total=charged.count(),
        restarts_in_window=windows.within(charged, "at", window_s).count(),
        evictions_total=Replica.objects.filter(attempt__job=job, state=ReplicaState.EVICTED).count(),
        no_progress_cycles=_idle_attempts(job),
    )


def job_budget(job: Job) -> Json:
    """What is spent and left, by rung, and the newest entries."""
    wanted, fact = spec_of(job).spec.resiliency.budget, budget_of(job)
    counts = dict(Restart.objects.filter(job=job).values_list("rung").annotate(n=Count("pk")).values_list("rung", "n"))
    rows = Restart.objects.filter(job=job).select_related("decision").order_by("-id")[:MAX_ENTRIES]
    return {
        "max_restarts": wanted.max_restarts,
        "restarts_total": fact.restarts_total,
        "restarts_per_window": wanted.restarts_per_window,
        "restarts_in_window": fact.restarts_in_window,
        "window_s": wanted.window_s,
        "max_no_progress": wanted.max_no_progress,
        "no_progress_cycles": fact.no_progress_cycles,
        "rungs": {str(rung): counts.get(str(rung), 0) for rung in Rung},
        "entries": [_line(row) for row in rows],
    }


def _line(row: Restart) -> Json:
    return {
        "at": iso(row.at),
        "attempt": row.attempt,
        "rung": row.rung,
        "charged": row.charged,
        "replica": row.replica,
        "incarnation": row.incarnation,
        "decision_id": row.decision_id,
        "reason_code": row.decision.reason_code,
        "sentence": row.decision.sentence,
    }


def _idle_attempts(job: Job) -> int:
    """Ended attempts in a row, newest first, without a checkpoint beyond where they began; the
    one that lives breaks the row as soon as it has brought one. What a person's order ended, or
    no node would start, is passed over: it was not given the time. Steps alone are no progress:
    the next attempt would train them again."""
    idle = 0
    for attempt in job.attempts.exclude(end_code=UNFIT).order_by("-number"):
        newer = job.checkpoints.filter(attempt=attempt.number, step__gt=attempt.resume_step)
        if newer.filter(state__in=COMMITTED_CHECKPOINTS).exists():
            break
        idle += attempt.ended_at is not None and attempt.end_code != ORDERED
    return idle
