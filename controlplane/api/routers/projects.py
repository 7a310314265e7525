"""Projects: what they may use and use now, and who is in them."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access import projects
from controlplane.access.models import Scope
from controlplane.access.project_models import Membership, Project
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import judged, reach
from controlplane.policy.ledger.bill import month_of
from controlplane.protocol import rest
from controlplane.recovery.bills import bill
from controlplane.recovery.project_use import Use, use_of_projects
from controlplane.runtime.clock import iso, now_s
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["projects"], auth=needs(Scope.READ))
SHOWN_MEMBERS = 500


@router.get("/projects", summary="List projects", openapi_extra=describe(list[rest.Project], errors=(422,)))
def list_projects(request: HttpRequest, query: Query[pages.Listing]) -> HttpResponse:
    """Those that you see, by name, with what they use now."""
    seq = newest_seq()
    rows = projects.all_projects().filter(reach(request).only("name"))
    found, after = pages.page(rows, query, name="projects", key="name", ascending=True)
    use = use_of_projects()
    return send(
        pages.listing([_view(request, row, use) for row in found], after, seq, total=pages.counted(query, rows))
    )


@router.get(
    "/projects/{rid:name}", summary="One project", openapi_extra=describe(rest.ProjectDetail, errors=(304, 404, 412))
)
def get_project(request: HttpRequest, name: str) -> HttpResponse:
    """With its members. Has an ETag."""
    judged(request, name, Scope.READ, f"no project {name!r}")
    seq, row = newest_seq(), projects.project(name)
    members = projects.members(row)
    view = _view(request, row, use_of_projects()) | {
        "members": [_member(member) for member in members[:SHOWN_MEMBERS]],
        "member_count": members.count(),
    }
    return etags.answer(request, records.project(row), view, seq)


class BillQuery(Schema):
    """Which month, and how much of it by job."""

    month: Annotated[
        str | None, Field(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$", description="YYYY-MM, in UTC; absent: this one.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=pages.MAX_LIMIT, description="Jobs, the largest first.")] = 100


@router.get(
    "/projects/{rid:name}/bill", summary="A project's bill", openapi_extra=describe(rest.Bill, errors=(404, 422))
)
def get_bill(request: HttpRequest, name: str, query: Query[BillQuery]) -> HttpResponse:
    """What it pays for a month, by class of the ledger and by job. A month is closed some days after its end; what the
    ledger says of it later is a line of its own."""
    judged(request, name, Scope.READ, f"no project {name!r}")
    projects.project(name)
    try:
        return send(bill(name, query.month or month_of(now_s()), limit=query.limit))
    except ValueError as error:
        fault = rest.FieldError("/query/month", "there is no such month", "write YYYY-MM")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[fault]) from error


@router.post(
    "/projects",
    summary="Make a project",
    auth=needs(Scope.ADMIN),
    openapi_extra=describe(rest.Project, status=201, body=bodies.NewProject, errors=(409, 415, 422)),
)
def create(request: HttpRequest) -> HttpResponse:
    """Private and without a limit unless told otherwise. Its name stays: a project is neither renamed nor removed."""
    body, actor = bodies.read(request, bodies.NewProject), principal_of(request).name
    settings = _settings(body)

    def effect() -> Effect:
        row = projects.create(body.name, settings, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data=_view(request, row, {}), status=201, location=f"/api/v1/projects/{row.name}")

    return once(request, effect)


@router.post(
    "/projects/{rid:name}:set",
    summary="Change a project",
    auth=needs(Scope.ADMIN),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.SetProject, errors=(404, 409, 412, 415, 422)),
)
def change(request: HttpRequest, name: str) -> HttpResponse:
    """What is named gets another value; the rest stays. Jobs that were submitted keep their priority."""
    body, actor = bodies.read(request, bodies.SetProject), principal_of(request).name
    settings = _settings(body)

    def effect() -> Effect:
        etags.check(request, lambda: records.held_project(name))
        projects.change(name, settings, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"The project {name} is changed: {', '.join(settings) or 'nothing'}."})

    return once(request, effect)


@router.post(
    "/projects/{rid:name}:set-member",
    summary="Give an account a role in a project",
    auth=needs_in_project(Scope.ADMIN),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.SetMember, errors=(404, 409, 412, 415, 422)),
)
def set_member(request: HttpRequest, name: str) -> HttpResponse:
    """By an administrator of the project, or of the fleet."""
    body, actor = bodies.read(request, bodies.SetMember), principal_of(request).name

    def effect() -> Effect:
        judged(request, name, Scope.ADMIN, f"no project {name!r}")
        etags.check(request, lambda: records.held_project(name))
        made = projects.set_member(
            name, body.account, body.role, reason=body.reason, actor=actor, request_id=request_id_of(request)
        )
        return Effect(data={"detail": f"{body.account} is {made.role} in the project {name}."})

    return once(request, effect)


@router.post(
    "/projects/{rid:name}:remove-member",
    summary="Take an account out of a project",
    auth=needs_in_project(Scope.ADMIN),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.RemoveMember, errors=(404, 409, 412, 415, 422)),
)
def remove_member(request: HttpRequest, name: str) -> HttpResponse:
    """By an administrator of the project, or of the fleet. Its jobs stay, and open streams lose sight of the project
    within 5 s."""
    body, actor = bodies.read(request, bodies.RemoveMember), principal_of(request).name

    def effect() -> Effect:
        judged(request, name, Scope.ADMIN, f"no project {name!r}")
        etags.check(request, lambda: records.held_project(name))
        projects.remove_member(name, body.account, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"{body.account} is no member of the project {name} any more."})

    return once(request, effect)


def _settings(body: bodies.ProjectSettings) -> dict[str, Any]:
    """Those that the body names."""
    named = {name: getattr(body, name) for name in projects.SETTINGS}
    return {name: value for name, value in named.items() if value is not msgspec.UNSET}


def _view(request: HttpRequest, row: Project, use: Mapping[str, Use]) -> dict[str, Any]:
    now = use.get(row.name, Use())
    return projects.settings_of(row) | {
        "name": row.name,
        "created_at": iso(row.created_at),
        "created_by": row.created_by,
        "scope": str(reach(request).within(row.name) or Scope.READ.value),
        "in_use_gpus": now.in_use_gpus,
        "borrowed_gpus": now.borrowed_gpus(row.quota_gpus),
        "waiting_gpus": now.waiting_gpus,
        "waiting_jobs": now.waiting_jobs,
        "live_jobs": now.live_jobs,
    }


def _member(row: Membership) -> dict[str, Any]:
    return {"account": row.account.get_username(), "role": row.role, "since": iso(row.since)}
