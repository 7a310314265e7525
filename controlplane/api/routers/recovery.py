"""Incidents and decisions."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies, pages
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.problems import Kind, Problem
from controlplane.protocol import rest
from controlplane.protocol.states import IncidentState
from controlplane.recovery import around, incidents, selectors
from controlplane.recovery.present import decision_summary, incident_summary
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["recovery"], auth=needs(Scope.READ))


class IncidentFilter(pages.Paging):
    """Query of the incident list."""

    state: Annotated[str | None, Field(max_length=100, description="One state, or several with commas.")] = None


@router.get("/incidents", summary="List incidents", openapi_extra=describe(list[rest.Incident], errors=(422,)))
def list_incidents(request: HttpRequest, query: Query[IncidentFilter]) -> HttpResponse:
    """Newest first."""
    seq = newest_seq()
    rows = selectors.incidents()
    states = [state for state in (query.state or "").split(",") if state]
    if set(states) - set(IncidentState):
        told = rest.FieldError("/query/state", "no incident state", f"use {', '.join(IncidentState)}")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[told])
    if states:
        rows = rows.filter(state__in=states)
    found, after = pages.page(rows, query, name="incidents")
    return send(pages.listing([incident_summary(row) for row in found], after, seq, total=rows.count()))


@router.get(
    "/incidents/{rid:incident_id}", summary="One incident", openapi_extra=describe(rest.IncidentDetail, errors=(404,))
)
def get_incident(request: HttpRequest, incident_id: str) -> HttpResponse:
    """With its signals, decisions and their commands, stacks and events."""
    seq = newest_seq()
    return send(selectors.incident_detail(incident_id) | {"as_of_seq": seq})


class ReadingsQuery(Schema):
    """How many points of each device's series at most."""

    max_points: Annotated[int, Field(ge=2, le=2000)] = around.MAX_POINTS


@router.get(
    "/incidents/{rid:incident_id}/readings",
    summary="Device readings around the fault",
    openapi_extra=describe(rest.IncidentReadings, errors=(404, 422)),
)
def get_incident_readings(request: HttpRequest, incident_id: str, query: Query[ReadingsQuery]) -> HttpResponse:
    """Of the devices that its findings name, at most 8 on 4 nodes. Every sample counts for what is said; the
    series have at most `max_points`."""
    return send(around.incident_readings(incident_id, max_points=query.max_points))


@router.post(
    "/incidents/{rid:incident_id}:acknowledge",
    summary="Acknowledge an incident",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 415, 422)),
)
def acknowledge(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Somebody has seen it: a lost job is no more on the overview, and what waits for hardware is
    theirs now, and so resolved. 409 where somebody was first."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        row = incidents.acknowledge(incident_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"Acknowledged: {row.title}."})

    return once(request, effect)


@router.get(
    "/decisions/{rid:decision_id}", summary="One decision", openapi_extra=describe(rest.Decision, errors=(404,))
)
def get_decision(request: HttpRequest, decision_id: str) -> HttpResponse:
    """With its evidence, alternatives and commands."""
    seq = newest_seq()
    return send(decision_summary(selectors.decision(decision_id)) | {"as_of_seq": seq})
