"""Incidents of several jobs with one cause become parts of one of the fleet (`policy.shared_causes`, ADR 0048).

Called by `fleet_pass`, under the fleet's lock. Nothing is decided by it: each job goes its own way, and the whole says
what they have in common. It is over when all its parts are.
"""

from collections import defaultdict

from django.db.models import QuerySet

from controlplane.fleet.models import Node
from controlplane.policy.rules import common_stall
from controlplane.policy.shared_causes import OF_NODES, SILENT, JobIncident, Shared, shared
from controlplane.protocol.states import IncidentState
from controlplane.recovery import shared_rows
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.runtime.prepared import Prepared

STORAGE_STALL = "storage_stall"


def waits() -> bool:
    """A cause of two jobs is not linked yet, or one of several jobs is over. Asked without the lock."""
    return bool(_unlinked()) or bool(_OVER())


def merge() -> int:
    """Link what has one cause, and close what is over; returns how many rows changed."""
    linked = sum(shared_rows.link(found, parts) for found, parts in _unlinked())
    return linked + sum(shared_rows.end(whole) for whole in _OVER())


def _unlinked() -> list[tuple[Shared, list[Incident]]]:
    """Each with its incidents, of which one at least is no part of anything. Only nodes that findings name are read."""
    rows = {row.id: row for row in _LIVE()}
    if len({row.job_id for row in rows.values()}) < 2:
        return []
    described = _described(rows)
    named = sorted({node_id for each in described for node_id in each.named})
    nodes = Node.objects.filter(pk__in=named).values_list("id", "name", "segment", "revoked_at")
    names = {node_id: name for node_id, name, _, _ in nodes}
    segments = {node_id: segment for node_id, _, segment, revoked_at in nodes if revoked_at is None}
    found = [(each, [rows[part] for part in each.parts]) for each in shared(described, segments, names)]
    return [(each, parts) for each, parts in found if any(part.part_of_id is None for part in parts)]


def _live() -> QuerySet[Incident]:
    return Incident.objects.filter(job__isnull=False).exclude(state=IncidentState.RESOLVED).order_by("opened_at", "id")


def _over() -> QuerySet[Incident]:
    """Those of several jobs that stand open, and none of whose parts does."""
    wholes = Incident.objects.exclude(shared="").exclude(state=IncidentState.RESOLVED).order_by("id")
    return wholes.exclude(pk__in=_live().filter(part_of__isnull=False).values("part_of"))


_LIVE: Prepared[Incident] = Prepared(_live)
_OVER: Prepared[Incident] = Prepared(_over)


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
