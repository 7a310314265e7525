"""Breakers as the API, the page and the events' patches show them."""

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet

from controlplane.changes.assembly.counted import WINDOW_S
from controlplane.jobs.models import Rank
from controlplane.policy import capabilities
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.rules import replica_failure
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.models import Decision
from controlplane.runtime.clock import iso

HOLD = "hold"
"""The choice of a decision that leaves it to people."""


def newest() -> QuerySet[Breaker]:
    """The open ones first, then the newest."""
    return Breaker.objects.order_by("-opened_at", "-id")


def open_ones() -> list[dict[str, Any]]:
    """For the overview."""
    return [breaker_summary(row) for row in Breaker.objects.filter(closed_at=None).order_by("segment")]


def breaker_summary(row: Breaker) -> dict[str, Any]:
    """One that is open, or was, with what waits for it: jobs of which something was held, and their devices."""
    # A job's pass may meet the cap before the fleet's opens the breaker for it.
    since = row.opened_at - timedelta(seconds=WINDOW_S)
    held = Decision.objects.filter(
        rule=replica_failure.RULE, choice=HOLD, at__gte=since, job__isnull=False, evidence__segment=row.segment
    )
    if row.closed_at is not None:
        held = held.filter(at__lte=row.closed_at)
    jobs = set(held.order_by().values_list("job_id", flat=True).distinct())
    placed = Rank.objects.filter(released_at=None, replica__attempt__job__in=jobs)
    waiting = placed.exclude(replica__attempt__job__state__in=TERMINAL_JOB)
    return {
        "id": row.id,
        "code": row.code,
        "segment": row.segment,
        "reason": row.reason,
        "opened_at": iso(row.opened_at),
        "decision_id": row.decision_id,
        "closed_at": iso(row.closed_at),
        "closed_by": row.closed_by,
        "close_reason": row.close_reason,
        "held_jobs": len(jobs),
        "held_gpus": waiting.count(),
        "capabilities": capabilities.breaker(row.closed_by),
    }
