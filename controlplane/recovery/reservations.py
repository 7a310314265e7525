"""Reservations of nodes for projects: set and cancelled by people; `fleet.reservations` writes the rows.

What runs on the nodes stays; who starts there from then on is the queue's and placement's to mind. Jobs that look for
devices are looked at again when one is set or cancelled.
"""

from collections.abc import Sequence
from datetime import datetime

from controlplane.access import projects
from controlplane.access import services as access
from controlplane.fleet import reservations
from controlplane.fleet.models import Reservation
from controlplane.jobs.selectors import wanting_nodes
from controlplane.jobs.services import wake_job_later
from controlplane.policy import capabilities
from controlplane.recovery.windows import MAX_NODES, MAX_OF_NODE, check_times, locked
from controlplane.runtime import events
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import Conflict, Invalid, NotFound, refuse
from controlplane.runtime.locks import lock_row


def reserve(
    project: str,
    nodes: Sequence[str],
    times: tuple[datetime, datetime],
    *,
    reason: str,
    actor: str,
    request_id: str = "",
) -> Reservation:
    """These nodes, all or none, from one moment until the other. Raises NotFound, Invalid for times that are none,
    Conflict where one is reserved then already."""
    starts_at, ends_at = times
    check_times("reservation", starts_at, ends_at, "")
    if not 0 < len(nodes) <= MAX_NODES:
        raise Invalid(f"a reservation is of 1 to {MAX_NODES} nodes, not {len(nodes)}")
    with events.unit_of_work():
        projects.project(project)
        found = [locked(node_id) for node_id in sorted(set(nodes))]
        for node in found:
            if (other := reservations.overlapping(node, starts_at, ends_at).first()) is not None:
                at = f"from {iso(other.starts_at)} until {iso(other.ends_at)}"
                raise Conflict(f"node {node.name!r} is reserved {at} already ({other.pk})")
            if reservations.holding().filter(nodes=node).count() >= MAX_OF_NODE:
                raise Conflict(f"node {node.name!r} has {MAX_OF_NODE} reservations that are not over: cancel one")
        row = reservations.plan(project, found, starts_at, ends_at, reason, actor)
        data = {"project": project, "nodes": [node.name for node in found]}
        data |= {"starts_at": iso(starts_at), "ends_at": iso(ends_at)}
        access.audit(actor, "reservation.set", row.pk, reason=reason, request_id=request_id, data=data)
        _wake()
    return row


def cancel(reservation_id: str, *, reason: str, actor: str, request_id: str = "") -> Reservation:
    """Its nodes are everybody's again. Raises NotFound, Conflict where it is over."""
    with events.unit_of_work():
        row = lock_row(Reservation, reservation_id)
        if row is None:
            raise NotFound(f"no reservation {reservation_id!r}")
        refuse(capabilities.known_end(row.over_by)["cancel"])
        data = {"project": row.project}
        access.audit(actor, "reservation.cancel", row.pk, reason=reason, request_id=request_id, data=data)
        reservations.end(row, f"{actor} ({reason})")
        _wake()
    return row


def project_of(reservation_id: str) -> str:
    """Whose it is. Raises NotFound."""
    found = Reservation.objects.filter(pk=reservation_id).values_list("project", flat=True).first()
    if found is None:
        raise NotFound(f"no reservation {reservation_id!r}")
    return found


def _wake() -> None:
    for job_id in wanting_nodes():
        wake_job_later(job_id, sure=True)
