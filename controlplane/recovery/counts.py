"""Rows that count within a window of time: acts of the disruption budget, what it suspects, charged restarts, saves.

Each way back over a step of the clock is known (`runtime.windows`), so none of them follows the clock.
"""

from typing import Any

from django.db.models import Q, QuerySet

from controlplane.changes.assembly.counted import ENDS_NOTHING, SUSPECT
from controlplane.checkpoints.models import Checkpoint
from controlplane.policy.findings import KINDS
from controlplane.policy.rules.registry import DESTRUCTIVE
from controlplane.recovery.disruption_models import Act, Breaker
from controlplane.recovery.models import Decision, Restart, Signal


def acts() -> QuerySet[Decision]:
    """As `counted.is_act`, over the whole fleet."""
    return Decision.objects.filter(rule__in=DESTRUCTIVE, applied=True).exclude(choice__in=ENDS_NOTHING)


def suspicions() -> QuerySet[Signal]:
    """As `counted.is_suspicion`."""
    counts = Q(settled_at=None) | Q(kind__in=KINDS, incident__isnull=False)
    return Signal.objects.filter(counts, kind__in=SUSPECT, node_id__isnull=False)


def restarts() -> QuerySet[Restart]:
    """Charged ones, of every job."""
    return Restart.objects.filter(charged=True)


def saves() -> QuerySet[Checkpoint]:
    """What held training up."""
    return Checkpoint.objects.filter(blocking_s__gt=0.0)


def counted() -> tuple[tuple[QuerySet[Any], str], ...]:
    """All of them, each with the column of its time."""
    done, closed = Act.objects.all(), Breaker.objects.exclude(closed_at=None)
    return (
        (done, "at"),
        (closed, "closed_at"),
        (acts(), "at"),
        (suspicions(), "seen_at"),
        (restarts(), "at"),
        (saves(), "committed_at"),
    )
