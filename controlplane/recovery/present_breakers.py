"""Breakers as the API, the page and the events' patches show them."""

from typing import Any

from controlplane.policy import capabilities
from controlplane.recovery.disruption_models import Breaker
from controlplane.runtime.clock import iso


def breaker_summary(row: Breaker) -> dict[str, Any]:
    """One that is open, or was."""
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
        "capabilities": capabilities.breaker(row.closed_by),
    }
