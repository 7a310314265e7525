"""Incidents: opened by the first failure, joined by everything that belongs to it, closed
by the policy. One live incident a job; simultaneous faults share it."""

from django.db import transaction

from controlplane.jobs.models import Job
from controlplane.jobs.services import refresh_job
from controlplane.policy import plan
from controlplane.protocol.states import IncidentState
from controlplane.recovery import proof
from controlplane.recovery.models import Incident, Signal
from controlplane.recovery.phases import compute_phases
from controlplane.recovery.present import incident_summary
from controlplane.runtime import events, guard, metrics
from controlplane.runtime.clock import after, now
from controlplane.runtime.ids import new_id

# Rules whose decisions are about a fault; everything else only joins what is open.
FAULT_RULES = ("replica_failure", "restart", "device_fault", "outer_error", "device_risk", "numerics", "straggler")
CERTIFICATE_DELAY_S = 1.0
TITLE_MAX = 200


def live_incident(job: Job) -> Incident | None:
    """The one that is not resolved."""
    return Incident.objects.filter(job=job).exclude(state=IncidentState.RESOLVED).first()


def incident_for(job: Job, decision: plan.Decision) -> Incident | None:
    """The job's live incident; a new one when the decision is about a fault. Its signals join it."""
    incident = live_incident(job)
    told = bool(decision.signal_ids and decision.actions) or decision.rule in ("replica_failure", "restart")
    if incident is None and told and decision.rule in FAULT_RULES and not decision.routine:
        incident = _open(job, decision)
    if incident is not None and decision.signal_ids:
        Signal.objects.filter(id__in=decision.signal_ids, incident=None).update(incident=incident)
    return incident


def _open(job: Job, decision: plan.Decision) -> Incident:
    first = Signal.objects.filter(id__in=decision.signal_ids).order_by("seen_at").first()
    incident = Incident.objects.create(
        id=new_id("inc"),
        job=job,
        node=first.node if first else None,
        title=decision.sentence[:TITLE_MAX],
        opened_at=first.seen_at if first else now(),
    )
    publish_incident(incident, "incident.opened", decision.sentence)
    transaction.on_commit(lambda: proof.pin(incident))
    return incident


def progress(incident_id: str | None, *, acted: bool) -> None:
    """Refresh the phases; the first act moves it to recovering."""
    incident = Incident.objects.filter(pk=incident_id).first()
    if incident is None:
        return
    if acted and incident.state == IncidentState.OPEN:
        guard.move(incident, "incident", IncidentState.RECOVERING)
        publish_incident(incident, "incident.recovering", f"Acting on: {incident.title}")
    refresh_phases(incident)


def refresh_phases(incident: Incident) -> None:
    """Recompute the phase times; publish if they changed."""
    phases = compute_phases(incident)
    if phases == incident.phases:
        return
    Incident.objects.filter(pk=incident.pk).update(phases=phases)
    incident.phases = phases
    publish_incident(incident, "incident.phases", "")


def resolve(job: Job, note: str) -> None:
    """Close what is open for the job; its certificate is due shortly after, when the last
    reports are in."""
    incident = live_incident(job)
    if incident is None:
        return
    moment = now()
    guard.move(
        incident,
        "incident",
        IncidentState.RESOLVED,
        resolved_at=moment,
        outcome=note,
        certificate_due_at=after(CERTIFICATE_DELAY_S),
        certificate={"state": "pending", "step": job.committed_step, "checks": [], "generated_at": None},
    )
    incident.refresh_from_db()
    refresh_phases(incident)
    publish_incident(incident, "incident.resolved", note)
    for phase in incident.phases:
        metrics.RECOVERY.labels(phase=phase["name"]).observe(max(0.0, phase["since_fault_s"]))


def publish_incident(incident: Incident, kind: str, sentence: str) -> None:
    """An event with the incident's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        job_id=incident.job_id or "",
        node_id=incident.node_id or "",
        entity="incident",
        entity_id=incident.id,
        patch=lambda: incident_summary(Incident.objects.select_related("job").get(pk=incident.pk)),
    )
    if incident.job_id:
        refresh_job(incident.job_id)
