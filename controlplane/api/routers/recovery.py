"""Incidents and decisions."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import pages
from controlplane.api.auth import needs
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.problems import Kind, Problem
from controlplane.protocol import rest
from controlplane.protocol.states import IncidentState
from controlplane.recovery import selectors
from controlplane.recovery.present import decision_summary, incident_summary
from controlplane.runtime.events import newest_seq

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
        told = rest.Told("/query/state", "no incident state", f"use {', '.join(IncidentState)}")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[told])
    if states:
        rows = rows.filter(state__in=states)
    found, after = pages.page(rows, query, name="incidents")
    return send(pages.listing([incident_summary(row) for row in found], after, seq))


@router.get(
    "/incidents/{rid:incident_id}", summary="One incident", openapi_extra=describe(rest.IncidentDetail, errors=(404,))
)
def get_incident(request: HttpRequest, incident_id: str) -> HttpResponse:
    """With its signals, decisions and their commands, stacks and events."""
    seq = newest_seq()
    return send(selectors.incident_detail(incident_id) | {"as_of_seq": seq})


@router.get(
    "/decisions/{rid:decision_id}", summary="One decision", openapi_extra=describe(rest.Decision, errors=(404,))
)
def get_decision(request: HttpRequest, decision_id: str) -> HttpResponse:
    """With its evidence, alternatives and commands."""
    seq = newest_seq()
    return send(decision_summary(selectors.decision(decision_id)) | {"as_of_seq": seq})
