"""The restart ledger in rows: written with each decision that climbs a rung, read as budget."""

from collections.abc import Iterable, Iterator
from typing import Any

from django.db.models import Count

from controlplane.changes.assembly.counted import Try, idle
from controlplane.changes.assembly.snapshot import Ledger
from controlplane.jobs.models import Job, Replica
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, spec_of
from controlplane.policy.budget import Entry, Rung
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import UNFIT, ReplicaState
from controlplane.recovery import counts
from controlplane.recovery.models import Decision, Restart
from controlplane.runtime import windows
from controlplane.runtime.clock import iso

Json = dict[str, Any]
MAX_ENTRIES = 200


def write(job: Job, row: Decision, snapshot: JobSnapshot, entered: Iterable[Entry]) -> None:
    """In the transaction that carries so much of the decision out: no rung is taken without its entry."""
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
        for entry in entered
    )


def ledger_of(job: Job) -> Ledger:
    """What is charged."""
    charged = counts.restarts().filter(job=job)
    return Ledger(
        restarts=charged.count(),
        in_window=windows.within(charged, "at", spec_of(job).spec.resiliency.budget.window_s).count(),
        evictions=Replica.objects.filter(attempt__job=job, state=ReplicaState.EVICTED).count(),
    )


def tries_of(job: Job) -> Iterator[Try]:
    """Newest first, each as far as it is asked for."""
    for attempt in job.attempts.order_by("-number"):
        newer = job.checkpoints.filter(attempt=attempt.number, step__gt=attempt.resume_step)
        saved = attempt.end_code != UNFIT and newer.filter(state__in=COMMITTED_CHECKPOINTS).exists()
        yield Try(ended=attempt.ended_at is not None, end_code=attempt.end_code, saved=saved)


def job_budget(job: Job) -> Json:
    """What is spent and left, by rung, and the newest entries."""
    wanted, fact = spec_of(job).spec.resiliency.budget, ledger_of(job)
    counts = dict(Restart.objects.filter(job=job).values_list("rung").annotate(n=Count("pk")).values_list("rung", "n"))
    rows = Restart.objects.filter(job=job).select_related("decision").order_by("-id")[:MAX_ENTRIES]
    return {
        "max_restarts": wanted.max_restarts,
        "restarts_total": fact.restarts,
        "restarts_per_window": wanted.restarts_per_window,
        "restarts_in_window": fact.in_window,
        "window_s": wanted.window_s,
        "max_no_progress": wanted.max_no_progress,
        "no_progress_cycles": idle(tries_of(job)),
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
