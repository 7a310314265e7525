"""Incidents and decisions."""

from typing import Annotated, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import AwareDatetime, Field

from controlplane.access.models import Scope
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.fields import Fields, of_rows, only
from controlplane.api.idempotency import Effect, once
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import decision_of, incident_of, reach
from controlplane.protocol import rest
from controlplane.protocol.states import IncidentState
from controlplane.recovery import around, incidents, recommended, selectors, verdicts
from controlplane.recovery.present import decision_summary, incident_summary
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["recovery"], auth=needs(Scope.READ))


class IncidentFilter(pages.Listing):
    """Query of the incident list."""

    state: Annotated[str | None, Field(max_length=100, description="One state, or several with commas.")] = None
    q: Annotated[str, Field(max_length=100, description="Part of the title, or of the name of its job or node.")] = ""
    since: Annotated[AwareDatetime | None, Field(description="Opened at this instant or later.")] = None
    sort: Annotated[Literal["-opened", "opened"], Field(description="By when it was opened; - is downwards.")] = (
        "-opened"
    )
    fields: Fields = ""


@router.get("/incidents", summary="List incidents", openapi_extra=describe(list[rest.Incident], errors=(422,)))
def list_incidents(request: HttpRequest, query: Query[IncidentFilter]) -> HttpResponse:
    """Newest first, unless `sort` says otherwise."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Incident, of="an incident")
    rows = selectors.incidents(q=query.q).filter(reach(request).only("job__project", none_too=True))
    states = [state for state in (query.state or "").split(",") if state]
    if set(states) - set(IncidentState):
        told = rest.FieldError("/query/state", "no incident state", f"use {', '.join(IncidentState)}")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[told])
    if states:
        rows = rows.filter(state__in=states)
    rows = rows.filter(opened_at__gte=query.since) if query.since else rows
    found, after = pages.sorted_page(rows, query, query.sort, name="incidents")
    items = only(map(incident_summary, found), names)
    return send(pages.listing(items, after, seq, total=pages.counted(query, rows)))


@router.get(
    "/incidents/{rid:incident_id}",
    summary="One incident",
    openapi_extra=describe(rest.IncidentDetail, errors=(304, 404, 412)),
)
def get_incident(request: HttpRequest, incident_id: str) -> HttpResponse:
    """With its signals, decisions and their commands, stacks and events. Has an ETag."""
    seq = newest_seq()
    row = incident_of(request, incident_id)
    return etags.answer(request, records.incident(row), selectors.incident_detail(row.pk, reach(request).only), seq)


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
    return send(around.incident_readings(incident_of(request, incident_id).pk, max_points=query.max_points))


@router.post(
    "/incidents/{rid:incident_id}:acknowledge",
    summary="Acknowledge an incident",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def acknowledge(request: HttpRequest, incident_id: str) -> HttpResponse:
    """Somebody has seen it: a lost job is no more on the overview, and what waits for hardware is
    theirs now, and so resolved. 409 where somebody was first."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        incident_of(request, incident_id, Scope.OPERATE)
        etags.check(request, lambda: records.held_incident(incident_id))
        row = incidents.acknowledge(incident_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"Acknowledged: {row.title}."})

    return once(request, effect)


@router.get(
    "/decisions/{rid:decision_id}",
    summary="One decision",
    openapi_extra=describe(rest.DecisionDetail, errors=(304, 404, 412)),
)
def get_decision(request: HttpRequest, decision_id: str) -> HttpResponse:
    """With its evidence, alternatives and commands; of one that was only recommended also what people said of it.
    Has an ETag."""
    seq, row = newest_seq(), decision_of(request, decision_id)
    return etags.answer(request, records.decision(row), decision_summary(row) | recommended.shown(row), seq)


def _word(request: HttpRequest, decision_id: str, act: str) -> HttpResponse:
    body, who = bodies.read(request, bodies.WithReason), principal_of(request)
    said = {"reason": body.reason, "person": f"user:{who.username}", "actor": who.name}

    def effect() -> Effect:
        seen = decision_of(request, decision_id, Scope.OPERATE)
        etags.check(request, lambda: records.held_decision(seen))
        row = verdicts.say(decision_id, act, **said, request_id=request_id_of(request))
        left = recommended.shown(row)["approvals_needed"] if act == "approve" else 0
        return Effect(data={"detail": _SAID[act] if not left else "Approved. A second person has to approve it too."})

    return once(request, effect)


_SAID = {
    "approve": "Approved: the next pass carries it out, if it is still recommended.",
    "reject": "Rejected: it is not carried out.",
    "hold": "Held: it is not carried out by itself, until somebody approves it.",
}


@router.post(
    "/decisions/{rid:decision_id}:approve",
    summary="Approve a recommended decision",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def approve_decision(request: HttpRequest, decision_id: str) -> HttpResponse:
    """Have it carried out. 409 where the policy does not recommend it any more; one that is expected to cost
    more than the policy's `second_approver_gpu_s` takes two people."""
    return _word(request, decision_id, "approve")


@router.post(
    "/decisions/{rid:decision_id}:reject",
    summary="Reject a recommended decision",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def reject_decision(request: HttpRequest, decision_id: str) -> HttpResponse:
    """It is not carried out, unless somebody approves it later."""
    return _word(request, decision_id, "reject")


@router.post(
    "/decisions/{rid:decision_id}:hold",
    summary="Hold a recommended decision",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def hold_decision(request: HttpRequest, decision_id: str) -> HttpResponse:
    """Stop the countdown of a job with `resiliency.act_after_s`: it waits for an approval or a rejection."""
    return _word(request, decision_id, "hold")
