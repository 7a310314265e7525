"""Failures of a window of the ledger, from the incidents of its jobs. Reads rows; the core counts."""

from datetime import datetime

from controlplane.policy.ledger.account import Account
from controlplane.policy.ledger.failures import Failure, failures_of, up_s
from controlplane.protocol.rest.ledger import LedgerFailures
from controlplane.recovery.ledger_load import Scope
from controlplane.recovery.models import Incident
from controlplane.recovery.phases import recovery_s
from controlplane.runtime.clock import from_s

FAULT, DETECTED = "fault", "detected"


def failures(scope: Scope, found: Account) -> LedgerFailures | None:
    """Of the window that was judged; None of one node, as failures are of jobs."""
    return (
        None
        if scope.node
        else failures_of(_incidents(scope, from_s(found.since_s), from_s(found.until_s)), up_s(found))
    )


def _incidents(scope: Scope, since: datetime, until: datetime) -> list[Failure]:
    rows = Incident.objects.filter(scope.about(), job__isnull=False, opened_at__gte=since, opened_at__lt=until)
    return [_failure(row) for row in rows.only("phases") if row.phases and row.phases[0]["name"] == FAULT]


def _failure(row: Incident) -> Failure:
    detected = [float(phase["since_fault_s"]) for phase in row.phases if phase["name"] == DETECTED]
    return Failure(detected_s=detected[0] if detected else None, recovered_s=recovery_s(row))
