"""Incidents of several jobs with one cause become parts of one of the fleet (`policy.shared_causes`, ADR 0048).

Called by `fleet_pass`, under the fleet's lock. Nothing is decided by it: each job goes its own way, and the whole says
what they have in common. It is over when all its parts are.
"""

from collections import defaultdict

from django.db.models import QuerySet

from controlplane.fleet.models import Node
from controlplane.policy.rules import common_stall
from controlplane.policy.shared_causes import OF_NODES, SILENT, JobIncident, shared
from controlplane.protocol.states import IncidentState
from controlplane.recovery import shared_rows
from controlplane.recovery.models import Decision, Incident, Signal

STORAGE_STALL = "storage_stall"


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
    for found in shared(_described(rows), segments, names):
        changed += shared_rows.link(found, [rows[part] for part in found.parts])
    return changed + sum(shared_rows.end(whole) for whole in _wholes())


def _live() -> QuerySet[Incident]:
    return Incident.objects.filter(job__isnull=False).exclude(state=IncidentState.RESOLVED).order_by("opened_at", "id")


def _wholes() -> QuerySet[Incident]:
    return Incident.objects.exclude(shared="").exclude(state=IncidentState.RESOLVED).order_by("id")


def _described(rows: dict[str, Incident]) -> list[JobIncident]:
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
