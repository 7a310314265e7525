"""Decisions of the policy in the audit log. Called by `recovery.apply` and `recovery.fleet_pass` inside the
decision's own unit of work; decides nothing."""

from typing import Any

from controlplane.access.audit import audit
from controlplane.jobs.models import Job
from controlplane.recovery import journal
from controlplane.recovery.models import Decision
from controlplane.runtime.prepared import TEXT, Prepared

_STATE: Prepared[dict[str, Any]] = Prepared(lambda job: Job.objects.filter(pk=job).values("state", "epoch"), job=TEXT)


def audit_decision(row: Decision, before: dict[str, Any]) -> None:
    """Append it, with a digest of its row in the journal. `before`: state and epoch of the job until
    now, empty for a decision about the fleet, whose target is the node."""
    audit(
        "policy",
        f"decision.{row.choice}",
        row.job_id or (row.incident.node_id if row.incident else "") or "fleet",
        reason=row.sentence,
        decision_id=row.id,
        data={
            "rule": row.rule, "reason_code": row.reason_code, "mode": row.mode, "applied": row.applied,
            "routine": row.routine, journal.DIGEST: journal.digest(row),
        },
        before=before,
        after=(_STATE.first(job=row.job_id) if row.job_id else None) or {},
    )  # fmt: skip
