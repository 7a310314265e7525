"""Incidents of several jobs with one cause become parts of one of the fleet (`policy.shared_causes`, ADR 0048).

Called by `fleet_pass`, under the fleet's lock. Nothing is decided by it: each job goes its own way, and the whole says
what they have in common. It is over when all its parts are.
"""

from collections import defaultdict

from django.db.models import QuerySet

from controlplane.fleet.models import Node
from controlplane.policy.rules import common_stall
from controlplane.policy.shared_causes import NODE, OF_NODES, SILENT, JobIncident, Shared, shared
from controlplane.protocol.states import IncidentOutcome, IncidentState
from controlplane.recovery.incidents import publish_incident
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.runtime import guard
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id

STORAGE_STALL = "storage_stall"
WORST = (IncidentOutcome.LOST, IncidentOutcome.MITIGATED, IncidentOutcome.RECOVERED, IncidentOutcome.WITHDRAWN)
"""How the whole ended: as the worst of its parts did."""


def waits() -> bool:
    """Two jobs have an incident, or one of several is not over."""
    jobs = _live().order_by().values_list("job_id", flat=True).distinct()
    return len(jobs[:2]) > 1 or _wholes().exists()


def merge() -> int:
    """Link what has one cause, and close what is over; returns how many rows changed."""
    rows = {row.id: row for row in _live()}
    segments = dict(Node.objects.filter(revoked_at=None).values_list("id", "segment"))
    names = dict(Node.objects.values_list("id", "name"))
    changed = 0
    for found in shared(_facts(rows), segments, names):
        changed += _link(found, [rows[part] for part in found.parts])
    return changed + sum(_end(whole) for whole in _wholes())


def _live() -> QuerySet[Incident]:
    return Incident.objects.filter(job__isnull=False).exclude(state=IncidentState.RESOLVED).order_by("opened_at", "id")


def _wholes() -> QuerySet[Incident]:
    return Incident.objects.exclude(shared="").exclude(state=IncidentState.RESOLVED).order_by("id")


def _facts(rows: dict[str, Incident]) -> list[JobIncident]:
    silent, named = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    found = Signal.objects.filter(incident__in=rows, kind__in=OF_NODES, node_id__isnull=False).order_by()
    for incident_id, kind, node_id in found.values_list("incident_id", "kind", "node_id"):
        named[incident_id or ""].add(node_id or "")
        if kind == SILENT:
            silent[incident_id or ""].add(node_id or "")
    stalls = Decision.objects.filter(incident__in=rows, rule=common_stall.RULE, reason_code=STORAGE_STALL)
    saving = set(stalls.values_list("incident_id", flat=True))
    return [
        JobIncident(
            id=row.id,
            job_id=row.job_id or "",
            opened_s=row.opened_at.timestamp(),
            silent=tuple(sorted(silent[row.id])),
            named=tuple(sorted(named[row.id])),
            saving=row.id in saving,
        )
        for row in rows.values()
    ]


def _link(found: Shared, parts: list[Incident]) -> int:
    """To the whole that one of them has already, or to a new one."""
    known = next((row.part_of_id for row in parts if row.part_of_id), None)
    new = [row for row in parts if row.part_of_id is None]
    if not new:
        return 0
    whole = Incident.objects.filter(pk=known).exclude(state=IncidentState.RESOLVED).first() if known else None
    if whole is None:
        whole = Incident.objects.create(
            id=new_id("inc"),
            node_id=found.subject if found.kind == NODE else None,
            title=found.title,
            opened_at=parts[0].opened_at,
            shared=found.kind,
        )
        kind = "incident.opened"
    else:
        Incident.objects.filter(pk=whole.pk).update(title=found.title)
        kind = "incident.joined"
    Incident.objects.filter(pk__in=[row.pk for row in new]).update(part_of=whole)
    publish_incident(whole, kind, f"One cause of {len(parts)} incidents: {found.title}.")
    for row in new:
        publish_incident(row, "incident.part", f"Part of: {found.title}.")
    return len(new)


def _end(whole: Incident) -> int:
    """It is over when each of its parts is: as the worst of them."""
    parts = list(whole.parts.all())
    if any(row.state != IncidentState.RESOLVED for row in parts):
        return 0
    outcomes = {row.outcome for row in parts}
    outcome = next((each for each in WORST if each in outcomes), IncidentOutcome.RECOVERED)
    note = f"All {len(parts)} incidents that were parts of it are over."
    guard.move(whole, "incident", IncidentState.RESOLVED, resolved_at=now(), outcome=outcome, resolution=note)
    whole.refresh_from_db()
    publish_incident(whole, "incident.resolved", note)
    return 1
