"""The restart ledger in rows: written with each decision that climbs a rung, read as budget."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from django.db.models import Count, Q, QuerySet

from controlplane.changes.assembly.counted import Try, idle
from controlplane.changes.assembly.snapshot import Ledger
from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Attempt, Job, Replica
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, spec_of
from controlplane.policy.budget import OF_A_REPLICA, Entry, Rung
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import UNFIT, ReplicaState
from controlplane.recovery import counts
from controlplane.recovery.models import Decision, Restart
from controlplane.runtime import windows
from controlplane.runtime.clock import ago, iso
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import MOMENT, NUMBER, TEXT, Prepared, figures_of

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
            program=entry.program,
        )
        for entry in entered
    )


def _charged(job: Any) -> QuerySet[Restart]:
    return counts.restarts().filter(job=job)


def _charged_since(job: Any, since: Any, attempt: Any) -> QuerySet[Any, tuple[Any, ...]]:
    lately, here = Q(at__gte=since), Q(attempt=attempt, rung__in=sorted(map(str, OF_A_REPLICA)))
    return figures_of(
        _charged(job),
        all=Count("pk"),
        of_window=Count("pk", filter=lately),
        attempts=Count("pk", filter=Q(rung=str(Rung.ATTEMPT))),
        of_attempt=Count("pk", filter=here),
        of_program=Count("pk", filter=lately & Q(program=True)),
    )


def _evicted(job: Any) -> QuerySet[Any, tuple[Any, ...]]:
    return figures_of(Replica.objects.filter(attempt__job=job, state=ReplicaState.EVICTED), number=Count("pk"))


_CHARGED = Prepared(_charged_since, job=TEXT, since=MOMENT, attempt=NUMBER)
_EVICTED = Prepared(_evicted, job=TEXT)


def ledger_of(job: Job, attempt: int, steps: list[ClockStep] | None = None) -> Ledger:
    """What is charged, `attempt` being the newest (0: none). `steps`: of `windows.known`, which who asks often reads
    once."""
    steps = windows.known() if steps is None else steps
    window_s = spec_of(job).spec.resiliency.budget.window_s
    counted = _CHARGED(job=job.id, since=ago(window_s), attempt=attempt)[0]
    restarts, in_window, attempts, of_attempt, of_program = counted
    if steps:
        lately = windows.within(_charged(job), "at", window_s, steps)
        in_window, of_program = lately.count(), lately.filter(program=True).count()
    return Ledger(
        restarts=restarts,
        in_window=in_window,
        evictions=_EVICTED(job=job.id)[0][0],
        attempts=attempts,
        of_attempt=of_attempt,
        of_program=of_program,
    )


def _attempts(job: Any) -> QuerySet[Attempt, tuple[int, int, str, datetime | None]]:
    rows = Attempt.objects.filter(job=job).order_by("-number")
    return rows.values_list("number", "resume_step", "end_code", "ended_at")


def _saved(job: Any, attempt: Any, step: Any) -> QuerySet[Checkpoint, Any]:
    rows = Checkpoint.objects.filter(job=job, attempt=attempt, step__gt=step, state__in=COMMITTED_CHECKPOINTS)
    return rows.values_list("pk", flat=True)[:1]


_ATTEMPTS = Prepared(_attempts, job=TEXT)
_SAVED = Prepared(_saved, job=TEXT, attempt=NUMBER, step=NUMBER)


def tries_of(job: Job) -> Iterator[Try]:
    """Newest first, each as far as it is asked for."""
    for number, resume_step, end_code, ended_at in _ATTEMPTS(job=job.id):
        saved = end_code != UNFIT and bool(_SAVED(job=job.id, attempt=number, step=resume_step))
        yield Try(ended=ended_at is not None, end_code=end_code, saved=saved)


def job_budget(job: Job) -> Json:
    """What is spent and left, by rung, and the newest entries."""
    newest = next(iter(_ATTEMPTS(job=job.id)), None)
    wanted, fact = spec_of(job).spec.resiliency.budget, ledger_of(job, newest[0] if newest else 0)
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
        "max_attempt_restarts": _limit(wanted.max_attempt_restarts),
        "attempt_restarts": fact.attempts,
        "restarts_per_attempt": _limit(wanted.restarts_per_attempt),
        "restarts_in_attempt": fact.of_attempt,
        "program_restarts_per_window": _limit(wanted.program_restarts_per_window),
        "program_in_window": fact.of_program,
        "rungs": {str(rung): counts.get(str(rung), 0) for rung in Rung},
        "entries": [_line(row) for row in rows],
    }


def _limit(wanted: int | str) -> int | None:
    return wanted if isinstance(wanted, int) else None


def _line(row: Restart) -> Json:
    return {
        "at": iso(row.at),
        "attempt": row.attempt,
        "rung": row.rung,
        "charged": row.charged,
        "program": row.program,
        "replica": row.replica,
        "incarnation": row.incarnation,
        "decision_id": row.decision_id,
        "reason_code": row.decision.reason_code,
        "sentence": row.decision.sentence,
    }
