"""Policy documents: read, changed, compared and brought back."""

from typing import Annotated, Protocol

import msgspec
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access import projects
from controlplane.access.models import Scope
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, needs_in_project, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.problems import Kind, Problem
from controlplane.api.reach import job_of, judge, judged, reach
from controlplane.policies import present, selectors, services, xids
from controlplane.policies.services import Edit
from controlplane.policies.text import document_of
from controlplane.policies.whose import FLEETS, Whose
from controlplane.policy.document import Change
from controlplane.policy.document import changes as changes_of
from controlplane.protocol import rest
from controlplane.recovery import replay, replay_view
from controlplane.recovery.ground import ground
from controlplane.runtime.errors import Invalid
from controlplane.runtime.events import newest_seq

router = Router(tags=["policy"], auth=needs(Scope.READ))
JobId = Annotated[str, Field(max_length=64, description="Of this job; without it and a project the fleet's.")]
ProjectName = Annotated[str, Field(max_length=63, description="Of this project; not together with a job.")]
REPLAY = "replay"
Number = Annotated[int, Field(ge=0, le=1_000_000)]


class PolicyScope(Schema):
    """Whose policy."""

    job_id: JobId = ""
    project: ProjectName = ""


class VersionFilter(pages.Listing):
    """Query of the list of versions."""

    job_id: JobId = ""
    project: ProjectName = ""


class DiffQuery(PolicyScope):
    """Two numbers of a document; 0: the defaults."""

    before: Number
    after: Number


@router.get("/policy", summary="The policy in force", openapi_extra=describe(rest.Policy, errors=(304, 404, 412, 422)))
def get_policy(request: HttpRequest, query: Query[PolicyScope]) -> HttpResponse:
    """Of the fleet, a project or a job: the document, every field in force with the provenance of its default, and what
    was measured here of the things that its timeouts bound. Has an ETag."""
    seq, whose = newest_seq(), _whose(request, query)
    return etags.answer(request, records.policy(whose), present.policy(whose, ground()), seq)


@router.get("/policy/xids", summary="What follows an XID", openapi_extra=describe(rest.XidTable))
def get_xids(request: HttpRequest) -> HttpResponse:
    """Every XID with the words of NVIDIA, gpud and AWS beside the site's, what holds now, and where they disagree."""
    seq = newest_seq()
    return send(xids.table(selectors.of_fleet().xid_overrides) | {"as_of_seq": seq})


@router.get(
    "/policy/versions",
    summary="List versions of a policy",
    openapi_extra=describe(list[rest.PolicyVersion], errors=(404, 422)),
)
def list_versions(request: HttpRequest, query: Query[VersionFilter]) -> HttpResponse:
    """Who changed it, when and why, newest first."""
    seq = newest_seq()
    rows = selectors.versions(_whose(request, query).scope)
    found, after = pages.page(rows, query, name="policy-versions")
    return send(pages.listing([present.version(row) for row in found], after, seq, total=pages.counted(query, rows)))


@router.get("/policy/diff", summary="Compare two versions", openapi_extra=describe(rest.PolicyDiff, errors=(404, 422)))
def diff(request: HttpRequest, query: Query[DiffQuery]) -> HttpResponse:
    """What differs in force, field by field."""
    return send(present.diff(_whose(request, query), query.before, query.after) | {"as_of_seq": newest_seq()})


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
    openapi_extra=describe(
        rest.PolicyVersion, status=201, body=bodies.NewPolicy, errors=(404, 409, 412, 415, 422, 428)
    ),
)
def put(request: HttpRequest) -> HttpResponse:
    """A document that names the fields that differ from the defaults, or for a project or job from what is above it.
    422 with every fault; 409 where `parent` is not the newest version any more, 412 where If-Match names another one,
    428 without both, so that two editors never overwrite each other."""
    body, actor = bodies.read(request, bodies.NewPolicy), principal_of(request).name

    def effect() -> Effect:
        whose = _whose(request, body, Scope.ADMIN)
        edit = Edit(parent=_parent(request, whose, body.parent), reason=body.reason, actor=actor)
        row = services.put(whose, document_of(body.text), edit, ground())
        return Effect(data=present.version(row), status=201)

    return once(request, effect)


@router.post(
    "/policy:rollback",
    summary="Bring a policy back",
    auth=needs_in_project(Scope.ADMIN),
    openapi_extra=describe(
        rest.PolicyVersion, status=201, body=bodies.PolicyRollback, errors=(404, 409, 412, 415, 422, 428)
    ),
)
def rollback(request: HttpRequest) -> HttpResponse:
    """An earlier version becomes the newest one; `to` 0: the defaults. `parent` as in a change."""
    body, actor = bodies.read(request, bodies.PolicyRollback), principal_of(request).name

    def effect() -> Effect:
        whose = _whose(request, body, Scope.ADMIN)
        edit = Edit(parent=_parent(request, whose, body.parent), reason=body.reason, actor=actor)
        return Effect(data=present.version(services.rollback(whose, body.to, edit)), status=201)

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
    whose = _whose(request, body, Scope.OPERATE)
    after = pages.decode(body.cursor or None, REPLAY) or ""
    candidate, changes = _candidate(whose, body.text) if body.text is not None else (None, ())
    among = reach(request).only("job__project", none_too=True)
    if whose != FLEETS:
        among = Q(job=whose.job) if whose.job is not None else Q(job__project=body.project)
    page = replay.replay(since_s=body.since_s, after=after, limit=body.limit, among=among, candidate=candidate)
    following = pages.encode(page.after, REPLAY) if page.after is not None else None
    return send(replay_view.page(page) | {"changes": msgspec.to_builtins(changes), "next": following})


def _parent(request: HttpRequest, whose: Whose, given: int | None) -> int:
    """The version that its editor has read: by number, by If-Match, or by both. Storing compares it once more. Raises
    Problem: 412 for another one, 428 where nothing says which."""
    etags.check(request, lambda: records.policy(whose))
    if given is not None:
        return given
    if "If-Match" not in request.headers:
        fix = "Send the ETag of GET /policy as If-Match, or its `number` as `parent`."
        raise Problem(Kind.PRECONDITION_REQUIRED, f"A change names the version that was read. {fix}")
    return int(records.policy(whose).values["number"])


def _candidate(whose: Whose, text: str) -> tuple[selectors.Candidate, tuple[Change, ...]]:
    """What a document would put in force, and what that changes. Raises Invalid."""
    document = services.accepted(whose, document_of(text), ground())
    changes = changes_of(selectors.of(whose), selectors.config_in(whose, document))
    return selectors.candidate(whose, document), changes


class _Asked(Protocol):
    """Whose policy somebody asks for."""

    @property
    def job_id(self) -> str:
        """ "": of no job."""

    @property
    def project(self) -> str:
        """ "": of no project."""


def _whose(request: HttpRequest, asked: _Asked, needed: Scope = Scope.READ) -> Whose:
    """Of the job, of the project, or else of the fleet. Raises NotFound, Invalid where both are named, Problem (403)
    where less than `needed` is held there."""
    if asked.job_id and asked.project:
        message = "a policy is a job's or a project's, not both"
        raise Invalid(message, errors=[{"pointer": "/project", "message": message, "fix": "name one of them"}])
    if asked.job_id:
        return Whose(job=job_of(request, asked.job_id, needed))
    if asked.project:
        judged(request, asked.project, needed, f"no project {asked.project!r}")
        return Whose(project=projects.project(asked.project))
    judge(reach(request), None, needed)
    return FLEETS
