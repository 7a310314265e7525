"""One rank of a job: a fault on purpose, a look at it, and what looks have found."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies, pages
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.rank_orders import command_rank, inject_fault, look_at
from controlplane.api.reach import acted, job_of
from controlplane.protocol import rest
from controlplane.recovery import selectors as recovery
from controlplane.recovery.present import look_view
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["jobs"])


class DiagnosticQuery(pages.Listing):
    """Of one order only."""

    command_id: Annotated[str | None, Field(max_length=32)] = None


@router.post(
    "/jobs/{rid:job_id}:fault",
    summary="Break a rank on purpose",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.FaultRank, errors=(404, 409, 412, 415, 422)),
)
def fault(request: HttpRequest, job_id: str) -> HttpResponse:
    """Only where the job's spec sets `resiliency.allow_faults`; elsewhere 409. `request` tells whether its agent
    has given it."""
    body, principal = bodies.read(request, bodies.FaultRank), principal_of(request)

    def effect() -> Effect:
        row = inject_fault(
            acted(request, job_id, body),
            body.replica,
            body.rank,
            fault=body.fault,
            value=body.value,
            actor=principal.name,
            reason=body.reason,
            request_id=request_id_of(request),
        )
        detail = f"{body.fault} is on its way to rank {body.rank} of replica {body.replica}."
        return Effect(data={"detail": detail, "request": row.id})

    return once(request, effect)


@router.post(
    "/jobs/{rid:job_id}:debug",
    summary="Run a diagnostic on a rank",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.DebugRank, errors=(404, 409, 412, 415, 422)),
)
def debug(request: HttpRequest, job_id: str) -> HttpResponse:
    """The answer comes to `/jobs/{job}/diagnostics?command_id=`, also from a rank that hangs."""
    body, principal = bodies.read(request, bodies.DebugRank), principal_of(request)

    def effect() -> Effect:
        command = look_at(
            acted(request, job_id, body),
            body.replica,
            body.rank,
            diagnostic=body.diagnostic,
            duration_s=body.duration_s,
            actor=principal.name,
            reason=body.reason,
            request_id=request_id_of(request),
        )
        detail = f"Requested from its agent: {body.diagnostic} of rank {body.rank} of replica {body.replica}."
        return Effect(data={"detail": detail, "command_ids": [command.id]})

    return once(request, effect)


@router.post(
    "/jobs/{rid:job_id}:command-rank",
    summary="Have a rank do something",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.CommandRank, errors=(404, 409, 412, 415, 422)),
)
def command(request: HttpRequest, job_id: str) -> HttpResponse:
    """Once, beside its training. `/jobs/{job}/commands` has the rank's answer: succeeded or failed, its detail, and
    what it has found as `result`."""
    body, principal = bodies.read(request, bodies.CommandRank), principal_of(request)

    def effect() -> Effect:
        row = command_rank(acted(request, job_id, body), body, actor=principal.name, request_id=request_id_of(request))
        detail = f"Requested from its agent: {row.body['name']} in rank {body.rank} of replica {body.replica}."
        return Effect(data={"detail": detail, "command_ids": [row.id]})

    return once(request, effect)


@router.get(
    "/jobs/{rid:job_id}/diagnostics",
    summary="Results of diagnostics",
    auth=needs(Scope.READ),
    openapi_extra=describe(list[rest.RankDiagnostic], errors=(404, 422)),
)
def diagnostics(request: HttpRequest, job_id: str, query: Query[DiagnosticQuery]) -> HttpResponse:
    """Newest first. Untrusted text of the job."""
    seq = newest_seq()
    rows = recovery.diagnostics(job_of(request, job_id).id, command_id=query.command_id)
    found, after = pages.page(rows, query, name="diagnostics")
    items, total = [look_view(row) for row in found], pages.counted(query, rows)
    return send(pages.listing(items, after, seq, total=total), compress=False)
