"""How far whoever asks reaches: the rights of a request, and the rows of projects judged by them.

Each operation on a job, or on what belongs to one, gets its row here. What lies in a project that whoever asks does not
see is answered as what does not exist, in the same words; what he sees and may not do is a 403 that names the project.
"""

from django.http import HttpRequest

from controlplane.access import projects
from controlplane.access.models import Scope
from controlplane.access.rights import Rights
from controlplane.access.scopes import allows
from controlplane.api import etags, records
from controlplane.api.auth import principal_of
from controlplane.api.bodies import ActOfJob
from controlplane.api.problems import Kind, Problem
from controlplane.jobs import selectors
from controlplane.jobs.models import Job
from controlplane.jobs.services import get_locked
from controlplane.protocol.rest import FieldError
from controlplane.protocol.spec import JobSpec
from controlplane.recovery import asked
from controlplane.recovery import selectors as recovery
from controlplane.recovery.models import Decision, Incident, Request
from controlplane.runtime.errors import Invalid, NotFound


def reach(request: HttpRequest) -> Rights:
    """Of whoever passed `needs`; read once for a request."""
    kept = getattr(request, "holdfast_rights", None)
    if isinstance(kept, Rights):
        return kept
    rights = principal_of(request).rights()
    request.holdfast_rights = rights  # type: ignore[attr-defined]
    return rights


def job_of(request: HttpRequest, job_id: str, needed: Scope = Scope.READ) -> Job:
    """By id, or by the name of the newest job of that name that is seen. Raises NotFound, Problem (403)."""
    rights = reach(request)
    row = selectors.job(job_id, rights.only("project"))
    judge(rights, row.project, needed)
    return row


def acted(request: HttpRequest, job_id: str, body: ActOfJob) -> Job:
    """The job of an action that needs `operate`; held until commit where the request says how it was read. Raises as
    `job_of`; Problem 412 where If-Match names another state of it, 409 where `expected_attempt` is not its newest."""
    row = job_of(request, job_id, Scope.OPERATE)
    etags.check(request, lambda: records.job(get_locked(row.pk)))
    if body.expected_attempt is None:
        return row
    row = get_locked(row.pk)
    newest = records.newest_attempt(row)
    if newest != body.expected_attempt:
        at = f"is at attempt {newest}" if newest else "has no attempt yet"
        detail = f"{row.name} {at}, and you expected {body.expected_attempt}: read it, and decide again."
        fault = FieldError("/expected_attempt", f"the newest attempt is {newest}", f"send {newest}, or leave it out")
        raise Problem(Kind.CONFLICT, detail, errors=[fault])
    return row


def incident_of(request: HttpRequest, incident_id: str, needed: Scope = Scope.READ) -> Incident:
    """Of a job that is seen, or of the fleet. Raises NotFound, Problem (403)."""
    row = recovery.incident(incident_id)
    judged(request, row.job.project if row.job else None, needed, f"no incident {incident_id!r}")
    return row


def decision_of(request: HttpRequest, decision_id: str, needed: Scope = Scope.READ) -> Decision:
    """About a job that is seen, or of the fleet. Raises NotFound, Problem (403)."""
    row = recovery.decision(decision_id)
    judged(request, row.job.project if row.job else None, needed, f"no decision {decision_id!r}")
    return row


def request_of(request: HttpRequest, request_id: str, needed: Scope = Scope.READ) -> Request:
    """About a job that is seen, or a node. Raises NotFound, Problem (403)."""
    row = asked.one(request_id)
    judged(request, row.job.project if row.job else None, needed, f"no request {request_id!r}")
    return row


def may_submit(request: HttpRequest, spec: JobSpec) -> None:
    """Whether whoever asks may submit this job to the project that it names. Raises Invalid where that is none that he
    sees, or its maximum is below the job's priority; Problem (403) where he may do less there."""
    name = spec.metadata.project
    rights = reach(request)
    if not rights.sees(name):
        raise Invalid(f"no project {name!r}", errors=[projects.unknown_project(name)])
    judge(rights, name, Scope.SUBMIT)
    projects.check_priority(name, spec.spec.scheduling.priority)


def judged(request: HttpRequest, project: str | None, needed: Scope, missing: str) -> None:
    """Whether `needed` is held in this project, None: in the fleet. Raises NotFound(missing) where the project is not
    seen, Problem (403) where less is held."""
    rights = reach(request)
    if not rights.sees(project):
        raise NotFound(missing)
    judge(rights, project, needed)


def judge(rights: Rights, project: str | None, needed: Scope) -> None:
    """Raises Problem (403) where less than `needed` is held in a project that is seen, None: in the fleet."""
    held = rights.within(project)
    if not allows(held, needed):
        where = "" if project is None else f" in the project {project}"
        raise Problem(Kind.FORBIDDEN, f"This needs the scope {needed.value}{where}; you have {held}.")
