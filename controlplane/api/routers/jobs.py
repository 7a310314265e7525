"""Jobs: list, submit, one job, and what people may order."""

from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import AwareDatetime, Field

from controlplane.access.models import Scope
from controlplane.api import bodies, etags, pages, records, specs
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.fields import Fields, of_rows, only
from controlplane.api.idempotency import Effect, once
from controlplane.api.placements import try_placement
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import acted, job_of, may_submit, reach
from controlplane.api.why import why
from controlplane.engines import views as engine_views
from controlplane.jobs import environment, selectors, services
from controlplane.jobs.capable import job_acts, with_acts
from controlplane.jobs.models import Job
from controlplane.jobs.present import attempt_view, job_summaries, job_summary
from controlplane.protocol import rest
from controlplane.protocol.states import JobState
from controlplane.recovery import requests, resumptions, unheard
from controlplane.recovery import selectors as recovery
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of
from controlplane.scheduling.models import SpareReservation

router = Router(tags=["jobs"])
LEAVES = (
    "Replica {} leaves once another has taken its place, or at once where no device is free for one; request it"
    " again to have it leave now."
)
LEAVES_NOW = "Replica {} leaves the view now; its processes end when the others train without it."


class JobFilter(pages.Listing):
    """Query of the job list."""

    state: Annotated[str | None, Field(max_length=200, description="One state, or several with commas.")] = None
    q: Annotated[str, Field(max_length=100, description="Part of the name or project.")] = ""
    project: Annotated[str, Field(max_length=63, description="Of this project alone.")] = ""
    labels: Annotated[
        str, Field(max_length=1000, description="key=value of the job's labels; several with commas, all of them.")
    ] = ""
    node: Annotated[str, Field(max_length=100, description="That hold a device of this node now, by id or name.")] = ""
    since: Annotated[AwareDatetime | None, Field(description="Submitted at this instant or later.")] = None
    sort: Annotated[
        Literal["-created", "created", "-priority", "priority", "name", "-name"],
        Field(description="By when it was submitted, its priority or its name; - is downwards."),
    ] = "-created"
    fields: Fields = ""


@router.get("/jobs", summary="List jobs", auth=needs(Scope.READ), openapi_extra=describe(list[rest.Job], errors=(422,)))
def list_jobs(request: HttpRequest, query: Query[JobFilter]) -> HttpResponse:
    """Newest first, unless `sort` says otherwise; at equal priority or name by when they were submitted."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Job, of="a job")
    rows = selectors.jobs(among=reach(request).only("project"), q=query.q)
    rows = rows.filter(project=query.project) if query.project else rows
    rows = selectors.on_node(rows, query.node) if query.node else rows
    rows = rows.filter(created_at__gte=query.since) if query.since else rows
    states = [state for state in (query.state or "").split(",") if state]
    unknown = [state for state in states if state not in set(JobState)]
    if unknown:
        told = rest.FieldError("/query/state", f"{unknown[0]!r} is no job state", f"use {', '.join(JobState)}")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[told])
    if states:
        rows = rows.filter(state__in=states)
    pairs = [pair.partition("=") for pair in query.labels.split(",") if pair]
    bad = next(("".join(pair) for pair in pairs if not (pair[0] and pair[1])), None)
    if bad is not None:
        told = rest.FieldError("/query/labels", f"{bad!r} is no key=value", "write key=value")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[told])
    rows = selectors.with_labels(rows, {key: value for key, _, value in pairs})
    found, after = pages.sorted_page(rows, query, query.sort, name="jobs")
    items = only(with_acts(job_summaries(found), found), names)
    return send(pages.listing(items, after, seq, total=pages.counted(query, rows)))


@router.post(
    "/jobs",
    summary="Submit a job",
    auth=needs_in_project(Scope.SUBMIT),
    openapi_extra=describe(rest.Job, status=201, body=rest.SpecBody, errors=(200, 409, 413, 415, 422)),
)
def submit(
    request: HttpRequest,
    dry_run: Annotated[bool, Field(description="Check and place, but submit nothing.")] = False,
) -> HttpResponse:
    """JSON, or YAML with content type application/yaml. Every fault is told at once. Into a project in which you may
    submit, with a priority of at most its maximum."""
    result, principal = specs.read(request), principal_of(request)
    if result.spec is not None:
        may_submit(request, result.spec)
    if dry_run:
        placement, waits_for = try_placement(result.spec, reach(request)) if result.spec else (None, "")
        return send(specs.dry_run(result, placement, waits_for))
    spec = specs.required(result)

    def effect() -> Effect:
        job = services.submit_job(
            spec, owner=principal.username, actor=principal.name, request_id=request_id_of(request)
        )
        row = Job.objects.get(pk=job.pk)
        return Effect(data=with_acts([job_summary(row)], [row])[0], status=201, location=f"/api/v1/jobs/{job.id}")

    return once(request, effect)


@router.get(
    "/jobs/{rid:job_id}",
    summary="One job",
    auth=needs(Scope.READ),
    openapi_extra=describe(rest.JobDetail, errors=(304, 404, 412)),
)
def get_job(request: HttpRequest, job_id: str) -> HttpResponse:
    """By id, or by the name of the newest job of that name. Has an ETag. The values of `spec.env`
    are for the job's owner and for admins; others read `***`."""
    seq = newest_seq()
    row, principal = job_of(request, job_id), principal_of(request)
    sees_env = principal.may(Scope.ADMIN) or row.owner == principal.username
    detail = _detail(row, spec=environment.with_values(row) if sees_env else environment.without_values(row.spec))
    return etags.answer(request, records.job(row), detail, seq, kept=True)


@router.post(
    "/jobs/{rid:job_id}:cancel",
    summary="Cancel a job",
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.ActOfJob, errors=(404, 409, 412, 415, 422)),
    auth=needs_in_project(Scope.OPERATE),
)
def cancel(request: HttpRequest, job_id: str) -> HttpResponse:
    """Stops its ranks and ends it. A second time is no error."""
    body, principal = bodies.read(request, bodies.ActOfJob), principal_of(request)

    def effect() -> Effect:
        row = acted(request, job_id, body)
        services.cancel_job(row.id, reason=body.reason, actor=principal.name, request_id=request_id_of(request))
        return Effect(data={"detail": f"{row.name} is being cancelled."})

    return once(request, effect)


@router.post(
    "/jobs/{rid:job_id}:checkpoint",
    summary="Save a checkpoint",
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.ActOfJob, errors=(404, 409, 412, 415, 422)),
    auth=needs_in_project(Scope.OPERATE),
)
def checkpoint(request: HttpRequest, job_id: str) -> HttpResponse:
    """The ranks save at their next step boundary; `request` ends when a newer checkpoint is committed."""
    body, principal = bodies.read(request, bodies.ActOfJob), principal_of(request)

    def effect() -> Effect:
        row = acted(request, job_id, body)
        asked = requests.checkpoint(row, reason=body.reason, actor=principal.name, request_id=request_id_of(request))
        return Effect(data={"detail": "A checkpoint was requested for the next step boundary.", "request": asked.id})

    return once(request, effect)


@router.post(
    "/jobs/{rid:job_id}:preempt",
    summary="Preempt a job",
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.ActOfJob, errors=(404, 409, 412, 415, 422)),
    auth=needs_in_project(Scope.OPERATE),
)
def preempt(request: HttpRequest, job_id: str) -> HttpResponse:
    """It saves, yields its devices and waits until it is resumed; `request` ends when its attempt does. Until then it
    can be withdrawn."""
    body, principal = bodies.read(request, bodies.ActOfJob), principal_of(request)

    def effect() -> Effect:
        row = acted(request, job_id, body)
        asked = requests.preempt(row, reason=body.reason, actor=principal.name, request_id=request_id_of(request))
        return Effect(data={"detail": f"{row.name} saves and yields its devices.", "request": asked.id})

    return once(request, effect)


@router.post(
    "/jobs/{rid:job_id}:resume",
    summary="Resume a preempted job",
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.ActOfJob, errors=(404, 409, 412, 415, 422)),
    auth=needs_in_project(Scope.OPERATE),
)
def resume(request: HttpRequest, job_id: str) -> HttpResponse:
    """One that a person preempted is in the queue again, and continues from its newest checkpoint when there is room.
    One that the queue preempted is there already."""
    body, principal = bodies.read(request, bodies.ActOfJob), principal_of(request)

    def effect() -> Effect:
        row = acted(request, job_id, body)
        asked = requests.resume(row, reason=body.reason, actor=principal.name, request_id=request_id_of(request))
        return Effect(data={"detail": f"{row.name} continues when there is room for it.", "request": asked.id})

    return once(request, effect)


@router.post(
    "/jobs/{rid:job_id}:evict-replica",
    summary="Evict a replica",
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.EvictReplica, errors=(404, 409, 412, 415, 422)),
    auth=needs_in_project(Scope.OPERATE),
)
def evict(request: HttpRequest, job_id: str) -> HttpResponse:
    """Another is started beside the replica and takes its place. Where no device is free for one, or it is
    ordered again, a view leaves it out, its processes end once the others train without it, and it is
    replaced. `request` ends with its processes."""
    body, principal = bodies.read(request, bodies.EvictReplica), principal_of(request)

    def effect() -> Effect:
        row = acted(request, job_id, body)
        asked, at_once = requests.evict(
            row, body.replica, reason=body.reason, actor=principal.name, request_id=request_id_of(request)
        )
        detail = (LEAVES_NOW if at_once else LEAVES).format(body.replica)
        return Effect(data={"detail": detail, "request": asked.id})

    return once(request, effect)


def _detail(row: Job, *, spec: dict[str, Any]) -> dict[str, Any]:
    attempts = selectors.attempts(row)
    layout = attempts[-1].layout if attempts else None
    not_heard, proved = unheard.of_job(row), resumptions.of_attempts(row)
    spares = SpareReservation.objects.filter(job=row).select_related("device__node").order_by("device_id")
    return job_summary(row) | {
        "capabilities": job_acts([row])[row.pk],
        "spec": spec,
        "layout": None if layout is None else _layout(layout, attempts[-1].replicas),
        "attempts": [_attempt(attempt) | {"certificate": proved.get(attempt.number)} for attempt in attempts],
        "spares": [
            {"node_id": s.device.node_id, "node_name": s.device.node.name, "device_index": s.device.index}
            for s in spares
        ],
        "why": why(
            row.state,
            recovery.waits_for(row) or row.state_reason,
            cancel_requested=row.cancel_requested,
            held=recovery.held_by(row),
            unheard=[told["sentence"] for told in not_heard],
        ),
        "unheard": not_heard,
        "engine": engine_views.of_job(row.pk),
    }


def _attempt(attempt: Any) -> dict[str, Any]:
    view = attempt_view(attempt)
    return view | {"layout": _layout(view["layout"], attempt.replicas)}


def _layout(layout: dict[str, Any], replicas: int) -> dict[str, Any]:
    return {name: layout.get(name, 1) for name in ("tp", "pp", "vp", "cp", "ep", "replica_dp")} | {"dp": replicas}
