"""Rows of incidents that several jobs share: their parts are linked, and the whole ends with them."""

from controlplane.policy.shared_causes import NODE, Shared
from controlplane.protocol.states import IncidentOutcome, IncidentState
from controlplane.recovery.incidents import publish_incident
from controlplane.recovery.models import Incident
from controlplane.runtime import guard
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id

WORST = (IncidentOutcome.LOST, IncidentOutcome.MITIGATED, IncidentOutcome.RECOVERED, IncidentOutcome.WITHDRAWN)
"""How the whole ended: as the worst of its parts did."""


def link(found: Shared, parts: list[Incident]) -> int:
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


def end(whole: Incident) -> int:
    """Each of its parts is over: it ends as the worst of them. Returns 1."""
    parts = list(whole.parts.all())
    outcomes = {row.outcome for row in parts}
    outcome = next((each for each in WORST if each in outcomes), IncidentOutcome.RECOVERED)
    note = f"All {len(parts)} incidents that were parts of it are over."
    guard.move(whole, "incident", IncidentState.RESOLVED, resolved_at=now(), outcome=outcome, resolution=note)
    whole.refresh_from_db()
    publish_incident(whole, "incident.resolved", note)
    return 1
