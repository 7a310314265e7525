"""Reservations of nodes for projects, which operators of the fleet set and cancel."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.reach import judged, reach
from controlplane.api.routers.windows import check_nodes, nodes_of
from controlplane.fleet import reservations as rows
from controlplane.fleet.models import Reservation
from controlplane.protocol import rest
from controlplane.recovery import reservations
from controlplane.runtime.clock import iso
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["fleet"], auth=needs(Scope.READ))


class ReservationFilter(pages.Listing):
    """Query of the list of reservations."""

    project: Annotated[str, Field(max_length=63, description="Only for this project.")] = ""
    node_id: Annotated[str, Field(max_length=32, description="Only of this node.")] = ""
    holds: Annotated[bool, Field(description="Only those that are not over.")] = False


@router.get(
    "/reservations", summary="List reservations", openapi_extra=describe(list[rest.Reservation], errors=(404, 422))
)
def list_reservations(request: HttpRequest, query: Query[ReservationFilter]) -> HttpResponse:
    """Which nodes are reserved for projects, newest first. Those of projects that you do not see have no names."""
    seq, rights = newest_seq(), reach(request)
    found = rows.holding().order_by() if query.holds else Reservation.objects.all()
    found = found.filter(nodes=query.node_id) if query.node_id else found
    if query.project:
        judged(request, query.project, Scope.READ, f"no project {query.project!r}")
        found = found.filter(project=query.project)
    page, after = pages.page(found.prefetch_related("nodes"), query, name="reservations")
    return send(pages.listing([rows.view(row, rights) for row in page], after, seq, total=pages.counted(query, found)))


@router.get(
    "/reservations/{rid:reservation_id}",
    summary="One reservation",
    openapi_extra=describe(rest.OneReservation, errors=(304, 404, 412)),
)
def get_reservation(request: HttpRequest, reservation_id: str) -> HttpResponse:
    """Has an ETag. Of a project that you do not see its nodes and times alone."""
    seq, row = newest_seq(), rows.one(reservation_id)
    return etags.answer(request, records.reservation(row), rows.view(row, reach(request)), seq)


@router.post(
    "/reservations",
    summary="Reserve nodes for a project",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.NewReservation, errors=(404, 409, 415, 422)),
)
def reserve(request: HttpRequest) -> HttpResponse:
    """Some nodes, or those that are in a segment now. From its begin until its end jobs of the project alone start
    there, and before it no others that are not expected to be over by then; what runs there stays."""
    body, actor = bodies.read(request, bodies.NewReservation), principal_of(request).name
    check_nodes(body, "reservation")
    judged(request, body.project, Scope.READ, f"no project {body.project!r}")

    def effect() -> Effect:
        times, request_id = (body.starts_at, body.ends_at), request_id_of(request)
        named = nodes_of(body)
        row = reservations.reserve(body.project, named, times, reason=body.reason, actor=actor, request_id=request_id)
        nodes = "1 node is" if len(set(named)) == 1 else f"{len(set(named))} nodes are"
        when = f"from {iso(row.starts_at)} until {iso(row.ends_at)}"
        return Effect(data={"detail": f"{nodes} reserved for project {row.project} {when}.", "reservation": row.pk})

    return once(request, effect)


@router.post(
    "/reservations/{rid:reservation_id}:cancel",
    summary="Cancel a reservation",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def cancel(request: HttpRequest, reservation_id: str) -> HttpResponse:
    """Its nodes are everybody's again; what runs there stays. 409 where it is over."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name
    missing = f"no reservation {reservation_id!r}"
    judged(request, reservations.project_of(reservation_id), Scope.READ, missing)

    def effect() -> Effect:
        etags.check(request, lambda: records.reservation(rows.one(reservation_id)))
        row = reservations.cancel(reservation_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"Nothing is reserved for project {row.project} by {row.pk} any more."})

    return once(request, effect)
