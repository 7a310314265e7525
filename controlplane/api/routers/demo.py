"""Faults on request. Mounted always, there only in demo mode: elsewhere 404, as if it were not."""

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.access import services as access
from controlplane.access.models import Scope
from controlplane.api import bodies
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.faults import FAULTS, inject, is_of_job
from controlplane.api.idempotency import Effect, once
from controlplane.api.pages import listing
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import job_of, judge, reach
from controlplane.protocol import rest
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["demo"])


@router.get(
    "/demo/faults",
    summary="What can be broken",
    auth=needs(Scope.READ),
    openapi_extra=describe(list[rest.Fault], errors=(404,)),
)
def list_faults(request: HttpRequest) -> HttpResponse:
    """`needs` names what a fault must be aimed at."""
    _only_in_demo()
    items = [
        {
            "kind": kind,
            "title": fault.title,
            "description": fault.description,
            "needs": list(fault.needs),
            "value": None if fault.value is None else msgspec.to_builtins(fault.value),
        }
        for kind, fault in FAULTS.items()
    ]
    return send(listing(items, None, newest_seq()))


@router.post(
    "/demo/faults",
    summary="Break something",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.NewFault, errors=(404, 409, 415, 422)),
)
def inject_fault(request: HttpRequest) -> HttpResponse:
    """The effect follows; watch the incident it opens."""
    # A fault of a job is judged in its project, any other in the fleet, whatever else the body names.
    _only_in_demo()
    body, principal = bodies.read(request, bodies.NewFault), principal_of(request)

    def effect() -> Effect:
        judged = body
        if body.job_id and is_of_job(body.kind):
            # By a name it is the newest that is seen, and no other.
            judged = msgspec.structs.replace(body, job_id=job_of(request, body.job_id, Scope.OPERATE).id)
        else:
            judge(reach(request), None, Scope.OPERATE)
        done = inject(judged, principal.name)
        access.audit(
            principal.name, "demo.fault", body.kind, request_id=request_id_of(request),
            data={"job_id": judged.job_id, "node_id": body.node_id},
        )  # fmt: skip
        return Effect(data={"detail": done.detail, "command_ids": list(done.command_ids), "request": done.request})

    return once(request, effect)


def _only_in_demo() -> None:
    if not settings.HOLDFAST_DEMO:
        raise Problem(Kind.NOT_FOUND, "There is nothing at this address.")
