"""The policy in force, and those that were. Reads alone.

Asked by each pass: one query for the newest documents of the fleet, of the job and of its project, whoever wrote them
and on whichever machine. What documents mean together is worked out once for each set of texts.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

from django.db.models import Max, Q, QuerySet

from controlplane.jobs.models import Job
from controlplane.policies.models import FLEET, JOB, PROJECT, PolicyContent, PolicyVersion, scope_of_project
from controlplane.policies.whose import FLEETS, Whose
from controlplane.policy.config import PolicyConfig
from controlplane.policy.document import DEFAULT, Above, Below, Document, config_of, from_content, narrowed
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.runtime.errors import NotFound
from controlplane.runtime.prepared import TEXT, Prepared

NOTHING = "{}"
_Row = tuple[str, str | None, int, object]
"""Project, job, number and document of a version."""
Candidate = Callable[[str | None], PolicyConfig]
"""The policy of a job, by its id (None: of the fleet), if a document were in force."""


@dataclass(frozen=True, slots=True)
class InForce:
    """A policy and the `numbers` of the documents that make it, by kind of scope (0: there is none)."""

    config: PolicyConfig
    numbers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest document of a scope. `number` 0 and nothing in it: nobody has stored one."""

    number: int = 0
    text: str = NOTHING


def in_force(job_id: str | None) -> InForce:
    """What a job is decided by now, or for None the fleet's own pass."""
    found = _chain(job_id)
    return InForce(_made(*(each.text for each in found.values())), {kind: each.number for kind, each in found.items()})


def of_fleet() -> PolicyConfig:
    """The fleet's policy now."""
    return in_force(None).config


def of_job(job_id: str) -> PolicyConfig:
    """The policy of a job now: the fleet's, narrowed by the documents of its project and its own."""
    return in_force(job_id).config


def of(whose: Whose) -> PolicyConfig:
    """What is in force for a scope now."""
    if whose.job is not None:
        return of_job(whose.job.pk)
    return config_in(whose, document_of(whose))


def config_in(whose: Whose, document: Document) -> PolicyConfig:
    """What a document that was checked makes of the policy of a scope."""
    above = above_of(whose)
    return config_of(document) if above is None else narrowed(above.config, document)


def above_of(whose: Whose) -> Above | None:
    """What a document of this scope narrows; None: it is the fleet's."""
    if whose == FLEETS:
        return None
    fleet = ("the fleet's", of_fleet())
    if whose.inside is None:
        return Above(of="a project's", levels=(fleet,))
    document = json.loads(_newest(_OF_SCOPE(scope=scope_of_project(whose.inside))).get(PROJECT, Newest()).text)
    return Above(of="a job's", levels=(fleet, (f"the project {whose.inside}'s", narrowed(fleet[1], document))))


def below(whose: Whose) -> list[Below]:
    """Who narrows the policy of this scope with a document of its own: projects, and jobs that are not over."""
    if whose.job is not None:
        return []
    jobs = Job.objects.exclude(state__in=TERMINAL_JOB)
    if whose.project is not None:
        of_jobs = _documents(Q(job__in=jobs.filter(project=whose.project.pk).values("pk")))
        return [Below(whose=row.job.name, documents=(row.document,)) for row in of_jobs if row.job is not None]
    of_projects = {row.project_id: row.document for row in _documents(Q(project__isnull=False))}
    found = [Below(whose=f"the project {name}", documents=(each,)) for name, each in of_projects.items()]
    for row in _documents(Q(job__in=jobs.values("pk"))):
        if row.job is not None:
            found.append(Below(whose=row.job.name, documents=(of_projects.get(row.job.project, {}), row.document)))
    return found


def candidate(whose: Whose, document: Document) -> Candidate:
    """Policies of the fleet and of jobs of this scope if the document were in force, the others being as they are."""
    kind = JOB if whose.job is not None else PROJECT if whose.project is not None else FLEET
    text = json.dumps(document, sort_keys=True)
    kept: dict[str | None, PolicyConfig] = {}

    def of(job_id: str | None) -> PolicyConfig:
        if job_id not in kept:
            texts = {name: each.text for name, each in _chain(job_id).items()}
            kept[job_id] = _made(*(text if name == kind else own for name, own in texts.items()))
        return kept[job_id]

    return of


def by_version(version: str) -> PolicyConfig | None:
    """The policy with this hash; None: no decision that is kept was made by it, and no document had it."""
    text = PolicyContent.objects.filter(pk=version).values_list("content", flat=True).first()
    if text is not None:
        return from_content(text)
    return DEFAULT if version == DEFAULT.version else None


def versions(scope: str) -> QuerySet[PolicyVersion]:
    """Of a scope, newest first."""
    return PolicyVersion.objects.filter(scope=scope).order_by("-number")


def version(scope: str, number: int) -> PolicyVersion:
    """Raises NotFound."""
    row = PolicyVersion.objects.filter(scope=scope, number=number).first()
    if row is None:
        raise NotFound(f"there is no version {number} of this policy")
    return row


def newest(scope: str) -> PolicyVersion | None:
    """None: nobody has set anything."""
    return versions(scope).first()


def document(scope: str, number: int) -> Document:
    """0: the defaults, an empty document. Raises NotFound."""
    return {} if number == 0 else version(scope, number).document


def document_of(whose: Whose) -> Document:
    """The newest of a scope; empty where there is none."""
    row = newest(whose.scope)
    return row.document if row is not None else {}


def _chain(job_id: str | None) -> dict[str, Newest]:
    """The newest documents that a job (None: the fleet) is decided by, from the widest to the narrowest; one query."""
    if job_id is None:
        return {FLEET: _newest(_OF_SCOPE(scope=FLEET)).get(FLEET, Newest())}
    found = _newest(_OF_JOB(job=job_id))
    return {kind: found.get(kind, Newest()) for kind in (FLEET, PROJECT, JOB)}


def _newest(rows: Iterable[_Row]) -> dict[str, Newest]:
    """By kind of scope, where these are of one scope of each kind."""
    return {
        JOB if job else PROJECT if project else FLEET: Newest(number, json.dumps(document, sort_keys=True))
        for project, job, number, document in rows
    }


def _documents(among: Q) -> Iterable[PolicyVersion]:
    """The newest version of each scope among these that says anything."""
    return [row for row in _last(among).select_related("job").order_by("scope") if row.document]


def _last(among: Q) -> QuerySet[PolicyVersion]:
    """The newest version of each scope among these."""
    last = PolicyVersion.objects.filter(among).order_by().values("scope").annotate(last=Max("pk"))
    return PolicyVersion.objects.filter(pk__in=last.values("last"))


def _of_job(job: Any) -> Q:
    return Q(scope=FLEET) | Q(scope=job) | Q(project__in=Job.objects.filter(pk=job).values("project"))


_SHOWN = ("project", "job", "number", "document")
_OF_SCOPE: Prepared[_Row] = Prepared(lambda scope: _last(Q(scope=scope)).values_list(*_SHOWN), scope=TEXT)
_OF_JOB: Prepared[_Row] = Prepared(lambda job: _last(_of_job(job)).values_list(*_SHOWN), job=TEXT)


@lru_cache(maxsize=64)
def _fleet(text: str) -> PolicyConfig:
    return config_of(json.loads(text))


@lru_cache(maxsize=1024)
def _made(fleet: str, *narrower: str) -> PolicyConfig:
    return reduce(narrowed, (json.loads(own) for own in narrower if own != NOTHING), _fleet(fleet))
