"""Policy documents: read, changed, compared and brought back."""

from typing import Annotated

import msgspec
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies, pages
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.reach import job_of, judge, reach
from controlplane.jobs.models import Job
from controlplane.policies import present, selectors, services
from controlplane.policies.models import FLEET
from controlplane.policies.services import Edit
from controlplane.policies.text import document_of
from controlplane.policy.document import Change, config_of, narrowed
from controlplane.policy.document import changes as changes_of
from controlplane.protocol import rest
from controlplane.recovery import replay, replay_view
from controlplane.recovery.ground import ground
from controlplane.runtime.events import newest_seq

router = Router(tags=["policy"], auth=needs(Scope.READ))
JobId = Annotated[str, Field(max_length=64, description="Of this job; without it the fleet's.")]
REPLAY = "replay"
Number = Annotated[int, Field(ge=0, le=1_000_000)]


class PolicyScope(Schema):
    """Whose policy."""

    job_id: JobId = ""


class VersionFilter(pages.Paging):
    """Query of the list of versions."""

    job_id: JobId = ""


class DiffQuery(PolicyScope):
    """Two numbers of a document; 0: the defaults."""

    before: Number
    after: Number


@router.get("/policy", summary="The policy in force", openapi_extra=describe(rest.Policy, errors=(404, 422)))
def get_policy(request: HttpRequest, query: Query[PolicyScope]) -> HttpResponse:
    """Of the fleet, or of a job: the document, every field in force with the provenance of its default, and what was
    measured here of the things that its timeouts bound."""
    seq = newest_seq()
    return send(present.policy(_job(request, query.job_id), ground()) | {"as_of_seq": seq})


@router.get(
    "/policy/versions",
    summary="List versions of a policy",
    openapi_extra=describe(list[rest.PolicyVersion], errors=(404, 422)),
)
def list_versions(request: HttpRequest, query: Query[VersionFilter]) -> HttpResponse:
    """Who changed it, when and why, newest first."""
    seq = newest_seq()
    job = _job(request, query.job_id)
    rows = selectors.versions(job.pk if job is not None else FLEET)
    found, after = pages.page(rows, query, name="policy-versions")
    return send(pages.listing([present.version(row) for row in found], after, seq, total=rows.count()))


@router.get("/policy/diff", summary="Compare two versions", openapi_extra=describe(rest.PolicyDiff, errors=(404, 422)))
def diff(request: HttpRequest, query: Query[DiffQuery]) -> HttpResponse:
    """What differs in force, field by field."""
    return send(present.diff(_job(request, query.job_id), query.before, query.after) | {"as_of_seq": newest_seq()})


@router.get(
    "/policy/recorded/{rid:version}",
    summary="The policy of a decision",
    openapi_extra=describe(rest.RecordedPolicy, errors=(404,)),
)
def get_recorded(request: HttpRequest, version: str) -> HttpResponse:
    """By the `policy_version` that decisions carry."""
    return send(present.recorded(version) | {"as_of_seq": newest_seq()})


@router.post(
    "/policy:put",
    summary="Change a policy",
    auth=needs_in_project(Scope.ADMIN),
    openapi_extra=describe(rest.PolicyVersion, status=201, body=bodies.NewPolicy, errors=(404, 409, 415, 422)),
)
def put(request: HttpRequest) -> HttpResponse:
    """A document that names the fields that differ from the defaults, or for a job from the fleet's. 422 with every
    fault; 409 where `parent` is not the newest version any more, so that two editors never overwrite each other."""
    body, actor = bodies.read(request, bodies.NewPolicy), principal_of(request).name
    edit = Edit(parent=body.parent, reason=body.reason, actor=actor)

    def effect() -> Effect:
        row = services.put(_job(request, body.job_id, Scope.ADMIN), document_of(body.text), edit, ground())
        return Effect(data=present.version(row), status=201)

    return once(request, effect)


@router.post(
    "/policy:rollback",
    summary="Bring a policy back",
    auth=needs_in_project(Scope.ADMIN),
    openapi_extra=describe(rest.PolicyVersion, status=201, body=bodies.PolicyRollback, errors=(404, 409, 415, 422)),
)
def rollback(request: HttpRequest) -> HttpResponse:
    """An earlier version becomes the newest one; `to` 0: the defaults. `parent` as in a change."""
    body, actor = bodies.read(request, bodies.PolicyRollback), principal_of(request).name
    edit = Edit(parent=body.parent, reason=body.reason, actor=actor)

    def effect() -> Effect:
        return Effect(
            data=present.version(services.rollback(_job(request, body.job_id, Scope.ADMIN), body.to, edit)), status=201
        )

    return once(request, effect)


@router.post(
    "/policy:replay",
    summary="Make recorded decisions again",
    auth=needs_in_project(Scope.OPERATE),
    openapi_extra=describe(rest.PolicyReplay, body=bodies.ReplayPolicy, errors=(404, 415, 422)),
)
def replay_journal(request: HttpRequest) -> HttpResponse:
    """A page of the journal, oldest first: each decision by the policy that made it, which gives the same bytes
    unless a rule's code has changed, or by a candidate (`text`): what would have been decided otherwise, and its
    price. Nothing is stored or carried out."""
    body = bodies.read(request, bodies.ReplayPolicy)
    job = _job(request, body.job_id, Scope.OPERATE)
    after = pages.decode(body.cursor or None, REPLAY) or ""
    candidate, changes = _candidate(job, body.text) if body.text is not None else (None, ())
    among = reach(request).only("job__project", none_too=True) if job is None else Q(job=job)
    page = replay.replay(since_s=body.since_s, after=after, limit=body.limit, among=among, candidate=candidate)
    following = pages.encode(page.after, REPLAY) if page.after is not None else None
    return send(replay_view.page(page) | {"changes": msgspec.to_builtins(changes), "next": following})


def _candidate(job: Job | None, text: str) -> tuple[replay.Candidate, tuple[Change, ...]]:
    """What a document would put in force, and what that changes. Raises Invalid."""
    document = services.accepted(job, document_of(text), ground())
    if job is None:
        config = config_of(document)
        return replay.candidate_of(config), changes_of(selectors.of_fleet(), config)
    of_fleet = selectors.of_fleet()
    return replay.candidate_of(of_fleet, dict(document)), changes_of(
        selectors.of_job(job.pk), narrowed(of_fleet, document)
    )


def _job(request: HttpRequest, job_id: str, needed: Scope = Scope.READ) -> Job | None:
    """None without an id, which is the fleet. Raises NotFound, Problem (403) where less than `needed` is held there."""
    if job_id:
        return job_of(request, job_id, needed)
    judge(reach(request), None, needed)
    return None
