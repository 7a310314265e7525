"""What people have asked for, and what came of it."""

from enum import StrEnum
from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.fields import Fields, of_rows, only
from controlplane.api.idempotency import Effect, once
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import reach, request_of
from controlplane.jobs.seen import seen
from controlplane.protocol import rest
from controlplane.protocol.states import RequestKind, RequestState
from controlplane.recovery import asked, requests
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["requests"], auth=needs(Scope.READ))
Words = Annotated[str | None, Field(max_length=100)]
Id = Annotated[str, Field(max_length=32)]


class RequestFilter(pages.Listing):
    """Query of the list of requests."""

    kind: Annotated[Words, Field(description="One kind, or several with commas.")] = None
    state: Annotated[Words, Field(description="One state, or several with commas.")] = None
    job_id: Annotated[Id, Field(description="Only what was asked of this job.")] = ""
    node_id: Annotated[Id, Field(description="Only what was asked of this node.")] = ""
    fields: Fields = ""


@router.get("/requests", summary="List requests", openapi_extra=describe(list[rest.Request], errors=(422,)))
def list_requests(request: HttpRequest, query: Query[RequestFilter]) -> HttpResponse:
    """What people asked for (evict, checkpoint, drain, fault), newest first."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Request, of="a request")
    kinds, states = _words("kind", query.kind, RequestKind), _words("state", query.state, RequestState)
    rows = asked.requests(kinds=kinds, states=states, job_id=query.job_id, node_id=query.node_id)
    rights = reach(request)
    rows = rows.filter(rights.only("job__project", none_too=True))
    found, after = pages.page(rows, query, name="requests")
    views = seen(rights, [asked.view(row) for row in found])
    return send(pages.listing(only(views, names), after, seq, total=pages.counted(query, rows)))


@router.get(
    "/requests/{rid:request_id}",
    summary="One request",
    openapi_extra=describe(rest.RequestDetail, errors=(304, 404, 412)),
)
def get_request(request: HttpRequest, request_id: str) -> HttpResponse:
    """With its parts, the evictions of a drain. Has an ETag."""
    seq = newest_seq()
    row, rights = request_of(request, request_id), reach(request)
    parts = asked.requests(drain=row.pk).filter(rights.only("job__project", none_too=True)).order_by("id")
    view = seen(rights, asked.view(row)) | {"parts": [seen(rights, asked.view(part)) for part in parts]}
    return etags.answer(request, records.request(row), view, seq)


@router.post(
    "/requests/{rid:request_id}:withdraw",
    summary="Withdraw a request",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def withdraw(request: HttpRequest, request_id: str) -> HttpResponse:
    """What has not happened yet does not happen; what cannot be undone any more is carried to its end. 409 when it
    has ended."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        row = request_of(request, request_id, Scope.OPERATE)
        etags.check(request, lambda: records.held_request(row))
        requests.withdraw(row, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"The request {row.pk} is taken back.", "request": row.pk})

    return once(request, effect)


def _words(name: str, given: str | None, known: type[StrEnum]) -> list[str]:
    """Those of a list with commas. Raises Problem for one that is none."""
    words = [word for word in (given or "").split(",") if word]
    wrong = next((word for word in words if word not in set(known)), None)
    if wrong is not None:
        told = rest.FieldError(f"/query/{name}", f"{wrong!r} is no {name} of a request", f"use {', '.join(known)}")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[told])
    return words
