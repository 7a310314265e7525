"""A decision as a row and as an event: what decisions about a job (`recovery.apply`) and about the
fleet (`recovery.fleet_pass`) share. Carries nothing out."""

from typing import Any

import msgspec

from controlplane.changes.diagnostics import SCHEDULED
from controlplane.jobs.models import Job
from controlplane.policies import services as policies
from controlplane.policies.selectors import InForce
from controlplane.policy import plan
from controlplane.policy.fleet import FleetSnapshot
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import Mode
from controlplane.recovery.models import Decision
from controlplane.recovery.present import decision_summary
from controlplane.recovery.snapshots import packed
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from controlplane.runtime.prepared import TEXT, Prepared

_DECISION: Prepared[Decision] = Prepared(
    lambda decision: Decision.objects.filter(pk=decision).select_related("job").defer("snapshot"),
    decision=TEXT,
)


def new_row(
    job: Job | None,
    decision: plan.Decision,
    snapshot: JobSnapshot | FleetSnapshot,
    *,
    by: InForce,
    decide_s: float,
) -> Decision:
    """With the snapshot that replays it, and the policy, which is kept; the row is not saved yet."""
    policies.keep(by.config)
    epoch = job.epoch if job is not None else 0
    return Decision(
        id=new_id("dec"),
        job=job,
        at=now(),
        rule=decision.rule,
        choice=decision.choice,
        reason_code=decision.reason_code,
        sentence=decision.sentence,
        evidence=decision.evidence,
        alternatives=msgspec.to_builtins(decision.alternatives),
        actions=msgspec.to_builtins(decision.actions),
        cost_gpu_s=decision.cost_gpu_s,
        routine=decision.routine,
        mode=str(decision.mode),
        applied=decision.mode is Mode.ENFORCE,
        epoch_before=epoch,
        epoch_after=epoch,
        policy_version=by.config.version,
        policy_documents=dict(by.numbers),
        snapshot=b"" if decision.rule == SCHEDULED else packed(snapshot),
        decide_s=decide_s,
        key=plan.stored_key(decision.key),
    )


def publish_decision(row: Decision) -> None:
    """The event that tells of it, on the job's stream or on that of its incident's node."""
    events.publish(
        "decision.made" if row.applied else "decision.recommended",
        row.sentence,
        job_id=row.job_id or "",
        node_id=_node_of(row),
        entity="decision",
        entity_id=row.id,
        patch=lambda: _patch(row.pk),
        data={"rule": row.rule, "choice": row.choice, "routine": row.routine},
    )


def publish_verdict(row: Decision, sentence: str) -> None:
    """What a person said of a recommendation."""
    events.publish(
        "decision.verdict",
        sentence,
        job_id=row.job_id or "",
        node_id=_node_of(row),
        entity="decision",
        entity_id=row.id,
        patch=lambda: _patch(row.pk),
        data={"verdict": row.verdict},
    )


def _node_of(row: Decision) -> str:
    """Of a decision about the fleet: the node of its incident."""
    return "" if row.job_id or row.incident is None else row.incident.node_id or ""


def _patch(decision_id: str) -> dict[str, Any]:
    """Its summary without its orders, which may be one for each node of the fleet: who shows it reads them."""
    summary = decision_summary(_DECISION.get(decision=decision_id), commands=False)
    return {name: value for name, value in summary.items() if name != "commands"}
