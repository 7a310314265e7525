"""Rows that count within a window of time: acts of the governor, what it suspects, restarts of a budget.

Each way back over a step of the clock is known (`runtime.windows`), so none of them follows the clock.
"""

from typing import Any

from django.db.models import Q, QuerySet

from controlplane.policy.findings import KINDS
from controlplane.policy.rules.registry import DESTRUCTIVE
from controlplane.policy.rules.replica_failure import COLLECT
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.recovery.models import Decision, Restart, Signal

ENDS_NOTHING = ("tell", COLLECT)
SUSPECT = with_trait(Trait.SUSPECT)


def acts() -> QuerySet[Decision]:
    """Destructive ones, over the whole fleet."""
    return Decision.objects.filter(rule__in=DESTRUCTIVE, applied=True).exclude(choice__in=ENDS_NOTHING)


def suspicions() -> QuerySet[Signal]:
    """Findings that name a device or a node; one of hardware counts also when it was acted on."""
    counts = Q(settled_at=None) | Q(kind__in=KINDS, incident__isnull=False)
    return Signal.objects.filter(counts, kind__in=SUSPECT, node_id__isnull=False)


def restarts() -> QuerySet[Restart]:
    """Charged ones, of every job."""
    return Restart.objects.filter(charged=True)


def counted() -> tuple[tuple[QuerySet[Any], str], ...]:
    """All of them, each with the column of its time."""
    return (acts(), "at"), (suspicions(), "seen_at"), (restarts(), "at")
