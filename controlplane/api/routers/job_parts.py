"""What belongs to one job: replicas, steps, events, decisions, incidents, checkpoints, commands, logs."""

from typing import Annotated

import msgspec
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import pages
from controlplane.api.auth import needs
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.eventlog import EventQuery, event_page
from controlplane.api.fields import Fields, of_rows, only
from controlplane.api.reach import job_of, reach
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.present import checkpoint_summary
from controlplane.dispatch import selectors as dispatch
from controlplane.dispatch.present import command_summary
from controlplane.jobs import selectors
from controlplane.protocol import rest
from controlplane.recovery import selectors as recovery
from controlplane.recovery.capable import with_acts
from controlplane.recovery.learned import timeouts_of
from controlplane.recovery.ledger import job_budget
from controlplane.recovery.numerics import job_numerics
from controlplane.recovery.present import decision_summaries, incident_summary
from controlplane.recovery.queue_view import job_queue
from controlplane.recovery.speed import job_speed
from controlplane.runtime.events import newest_seq

router = Router(tags=["jobs"], auth=needs(Scope.READ))
NOT_THERE = (404, 422)
Small = Annotated[int | None, Field(ge=0, le=2**31)]
Step = Annotated[int, Field(ge=0, le=2**53)]


class PartQuery(pages.Listing):
    """Query of a list of what belongs to a job."""

    fields: Fields = ""


class ReplicaQuery(Schema):
    """Which attempt, and which slot of it; all of them by default. `current`: the newest incarnations of the newest
    attempt alone."""

    attempt: Small = None
    index: Small = None
    current: bool = False
    fields: Fields = ""


class StepQuery(Schema):
    """A window of committed steps; the newest attempt by default. `points`: not the first of
    the window but at most so many of all of it, evenly spread, the newest among them."""

    since_step: Step = 0
    attempt: Small = None
    limit: Annotated[int, Field(ge=1, le=pages.MAX_STEPS)] = pages.MAX_STEPS
    points: Annotated[int | None, Field(ge=2, le=pages.MAX_STEPS)] = None
    fields: Fields = ""


class DecisionQuery(PartQuery):
    """`routine` true or false shows only those; absent shows both."""

    routine: bool | None = None


class LogQuery(Schema):
    """Which rank's output, of which of its lives (default: the newest of which something was kept),
    and how many lines of its end."""

    replica: Annotated[int, Field(ge=0, le=2**31)] = 0
    rank: Annotated[int, Field(ge=0, le=2**31)] = 0
    incarnation: Annotated[int | None, Field(ge=0, le=2**31)] = None
    attempt: Annotated[int | None, Field(ge=1, le=2**31)] = None
    tail: Annotated[int, Field(ge=1, le=10_000)] = 200


@router.get(
    "/jobs/{rid:job_id}/replicas",
    summary="Replicas of a job",
    openapi_extra=describe(list[rest.Replica], errors=NOT_THERE),
)
def replicas(request: HttpRequest, job_id: str, query: Query[ReplicaQuery]) -> HttpResponse:
    """Every incarnation with its ranks, newest attempt first, in one page: of a large job as `fields` without ranks, or
    of one slot (`index`); `/jobs/{job}/mesh` has all ranks as columns."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Replica, of="a replica")
    job = job_of(request, job_id)
    ranks = names is None or not {"ranks", "capabilities"}.isdisjoint(names)
    found = selectors.replicas(job, attempt=query.attempt, index=query.index, current=query.current, ranks=ranks)
    items = with_acts(found, job) if ranks else found
    return send(pages.listing(only(items, names), None, seq))


@router.get(
    "/jobs/{rid:job_id}/steps", summary="Steps of a job", openapi_extra=describe(list[rest.Step], errors=NOT_THERE)
)
def steps(request: HttpRequest, job_id: str, query: Query[StepQuery]) -> HttpResponse:
    """Committed steps in order; go on with since_step = last step + 1."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Step, of="a step")
    items = selectors.steps(
        job_of(request, job_id),
        since_step=query.since_step,
        attempt=query.attempt,
        limit=query.limit,
        points=query.points,
    )
    return send(pages.listing(only(items, names), None, seq))


@router.get(
    "/jobs/{rid:job_id}/speed",
    summary="How fast the ranks of a job work",
    openapi_extra=describe(rest.JobSpeed, errors=NOT_THERE),
)
def speed(request: HttpRequest, job_id: str) -> HttpResponse:
    """Straggler scores: the best and the worst ranks, and how even the pipeline's stages are."""
    return send(job_speed(job_of(request, job_id)))


@router.get(
    "/jobs/{rid:job_id}/numerics",
    summary="Refused results and determinism of a job",
    openapi_extra=describe(rest.JobNumerics, errors=NOT_THERE),
)
def numerics(request: HttpRequest, job_id: str) -> HttpResponse:
    """What ranks refused and computed again, and how many steps were the same twice."""
    return send(job_numerics(job_of(request, job_id)))


@router.get(
    "/jobs/{rid:job_id}/budget",
    summary="Restart budget of a job",
    openapi_extra=describe(rest.Budget, errors=NOT_THERE),
)
def budget(request: HttpRequest, job_id: str) -> HttpResponse:
    """What the job's restarts of every rung have spent of its budget, newest entries first."""
    return send(job_budget(job_of(request, job_id)))


@router.get(
    "/jobs/{rid:job_id}/queue",
    summary="Why a job waits in the queue",
    openapi_extra=describe(rest.JobQueue, errors=NOT_THERE),
)
def queue(request: HttpRequest, job_id: str) -> HttpResponse:
    """Its place among the jobs that wait for devices, what it waits for, what would make room, and whom it outranks."""
    return send(job_queue(job_of(request, job_id), reach(request)))


@router.get(
    "/jobs/{rid:job_id}/timeouts",
    summary="Section timeouts of a job",
    openapi_extra=describe(list[rest.SectionTimeout], errors=NOT_THERE),
)
def timeouts(request: HttpRequest, job_id: str) -> HttpResponse:
    """The limits that the next launch gets: given by the spec, or learned from the job's steps."""
    items = [msgspec.to_builtins(timeout) for timeout in timeouts_of(job_of(request, job_id))]
    return send(pages.listing(items, None, newest_seq()))


@router.get(
    "/jobs/{rid:job_id}/events",
    summary="Events of a job",
    openapi_extra=describe(list[rest.Event], errors=(*NOT_THERE, 410)),
)
def events(request: HttpRequest, job_id: str, query: Query[EventQuery]) -> HttpResponse:
    """In order of seq; go on with after_seq = the last one. 410: some are no longer kept."""
    return send(event_page(query, reach(request), job_id=job_of(request, job_id).id))


@router.get(
    "/jobs/{rid:job_id}/decisions",
    summary="Decisions about a job",
    openapi_extra=describe(list[rest.Decision], errors=NOT_THERE),
)
def decisions(request: HttpRequest, job_id: str, query: Query[DecisionQuery]) -> HttpResponse:
    """Newest first, with their commands."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Decision, of="a decision")
    rows = recovery.decisions(job_id=job_of(request, job_id).id, routine=query.routine)
    found, after = pages.page(rows, query, name="decisions")
    return send(pages.listing(only(decision_summaries(found), names), after, seq, total=pages.counted(query, rows)))


@router.get(
    "/jobs/{rid:job_id}/incidents",
    summary="Incidents of a job",
    openapi_extra=describe(list[rest.Incident], errors=NOT_THERE),
)
def incidents(request: HttpRequest, job_id: str, query: Query[PartQuery]) -> HttpResponse:
    """Newest first."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Incident, of="an incident")
    rows = recovery.incidents(job_id=job_of(request, job_id).id)
    found, after = pages.page(rows, query, name="incidents")
    return send(pages.listing(only(map(incident_summary, found), names), after, seq, total=pages.counted(query, rows)))


@router.get(
    "/jobs/{rid:job_id}/checkpoints",
    summary="Checkpoints of a job",
    openapi_extra=describe(list[rest.Checkpoint], errors=NOT_THERE),
)
def checkpoints(request: HttpRequest, job_id: str, query: Query[PartQuery]) -> HttpResponse:
    """Newest first."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Checkpoint, of="a checkpoint")
    rows = Checkpoint.objects.filter(job=job_of(request, job_id))
    found, after = pages.page(rows, query, name="checkpoints")
    return send(
        pages.listing(only(map(checkpoint_summary, found), names), after, seq, total=pages.counted(query, rows))
    )


@router.get(
    "/jobs/{rid:job_id}/commands",
    summary="Commands about a job",
    openapi_extra=describe(list[rest.Command], errors=NOT_THERE),
)
def commands(request: HttpRequest, job_id: str, query: Query[PartQuery]) -> HttpResponse:
    """Orders to agents, newest first, with their answers."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Command, of="a command")
    rows = dispatch.of_job(job_of(request, job_id).id)
    found, after = pages.page(rows, query, name="commands")
    items = only(map(command_summary, found), names)
    return send(pages.listing(items, after, seq, total=pages.counted(query, rows)))


@router.get(
    "/jobs/{rid:job_id}/logs", summary="A rank's last output", openapi_extra=describe(rest.Log, errors=NOT_THERE)
)
def logs(request: HttpRequest, job_id: str, query: Query[LogQuery]) -> HttpResponse:
    """What was kept with the exit of that life of the rank, or, while it lives, what the last look
    at its log found (`:debug` with look "log"). It says whose it is. Untrusted text of the job."""
    job = job_of(request, job_id)
    rank = selectors.log_rank(
        job, replica=query.replica, rank=query.rank, incarnation=query.incarnation, attempt=query.attempt
    )
    return send(recovery.log_of(job.id, rank, tail=query.tail))
