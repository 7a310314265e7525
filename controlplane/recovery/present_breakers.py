"""Breakers as the API, the page and the events' patches show them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet, Value

from controlplane.changes.assembly.counted import WINDOW_S
from controlplane.jobs.models import Rank
from controlplane.policy import capabilities
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.rules import replica_failure
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.models import Decision
from controlplane.runtime.clock import iso

Json = dict[str, Any]
HOLD = "hold"
"""The choice of a decision that leaves it to people."""


def newest() -> QuerySet[Breaker]:
    """The open ones first, then the newest."""
    return Breaker.objects.order_by("-opened_at", "-id")


def open_ones() -> list[Json]:
    """For the overview."""
    return breaker_summaries(list(Breaker.objects.filter(closed_at=None).order_by("segment")))


def breaker_summary(row: Breaker) -> Json:
    """One that is open, or was, with what waits for it: jobs of which something was held, and their devices."""
    return breaker_summaries([row])[0]


def breaker_summaries(rows: Sequence[Breaker]) -> list[Json]:
    """`breaker_summary` of each, in two queries for all of them."""
    held = _held_by(rows)
    placed = Rank.objects.filter(released_at=None, replica__attempt__job__in=set().union(*held.values()))
    waiting = placed.exclude(replica__attempt__job__state__in=TERMINAL_JOB).order_by()
    by_job = waiting.values("replica__attempt__job_id").annotate(gpus=Count("pk"))
    gpus = dict(by_job.values_list("replica__attempt__job_id", "gpus"))
    return [
        {
            "id": row.id,
            "code": row.code,
            "segment": row.segment,
            "reason": row.reason,
            "opened_at": iso(row.opened_at),
            "decision_id": row.decision_id,
            "closed_at": iso(row.closed_at),
            "closed_by": row.closed_by,
            "close_reason": row.close_reason,
            "held_jobs": len(held[row.id]),
            "held_gpus": sum(gpus.get(job_id, 0) for job_id in held[row.id]),
            "capabilities": capabilities.breaker(row.closed_by),
        }
        for row in rows
    ]


def _held_by(rows: Sequence[Breaker]) -> dict[str, set[str]]:
    """Of each breaker, by its id, the jobs of which something was held while it was open: each once, however many
    decisions held it."""
    found: dict[str, set[str]] = {row.id: set() for row in rows}
    if not rows:
        return found
    first, *others = (_holds(row) for row in rows)
    for breaker_id, job_id in first.union(*others):
        found[breaker_id].add(job_id)
    return found


def _holds(row: Breaker) -> QuerySet[Decision, tuple[str, str]]:
    """Its id with that of each job."""
    # A job's pass may meet the cap before the fleet's opens the breaker for it.
    since = row.opened_at - timedelta(seconds=WINDOW_S)
    while_open = Q(at__gte=since) if row.closed_at is None else Q(at__range=(since, row.closed_at))
    # Compared in the database: SQLite reads a segment that is named like a number as one.
    holds = Decision.objects.annotate(breaker=Value(row.id)).filter(
        while_open, rule=replica_failure.RULE, choice=HOLD, job__isnull=False, evidence__segment=row.segment
    )
    return holds.order_by().values_list("breaker", "job_id").distinct()
