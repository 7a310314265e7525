"""Two projects with a running job each, and accounts that are in one, in the other, or in none."""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from controlplane.access.models import Scope
from controlplane.access.project_models import Membership, Project, Role, Visibility
from controlplane.access.services import create_api_token
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.recovery.models import Decision, Incident, Request
from controlplane.recovery.requests import checkpoint
from controlplane.runtime.clock import now
from tests.integration.api.conftest import SPEC, Caller, grant, make_node
from tests.integration.api.world import running_job

SECRET, OTHER = "hush-hush", "daylight"
SECRET_JOB = "zebra-crossing"
LEVELS = {Role.VIEWER: "read", Role.SUBMITTER: "submit", Role.OPERATOR: "operate", Role.ADMIN: "admin"}


@dataclass(frozen=True, slots=True)
class Tenants:
    """A private project and its job, with one of each thing that belongs to a job, on these nodes."""

    project: Project
    job: Job
    incident: Incident
    decision: Decision
    request: Request
    nodes: list[Node]

    @property
    def ids(self) -> dict[str, str]:
        """For the addresses of operations."""
        return {
            "job_id": self.job.id,
            "incident_id": self.incident.id,
            "decision_id": self.decision.id,
            "request_id": self.request.id,
            "name": self.project.name,
        }


def spec(name: str, project: str, **scheduling: Any) -> dict[str, Any]:
    """Of a small job in a project."""
    found = {**SPEC, "metadata": {"name": name, "project": project}, "spec": {**SPEC["spec"]}}
    return found | {"spec": found["spec"] | {"scheduling": scheduling}} if scheduling else found


def tenants(visibility: str = Visibility.PRIVATE) -> Tenants:
    """The project `SECRET` with everything, and the private project `OTHER` without jobs."""
    project = Project.objects.create(name=SECRET, visibility=visibility)
    Project.objects.create(name=OTHER, visibility=Visibility.PRIVATE)
    account("ada", hush_hush=Role.VIEWER)
    nodes = [make_node("node-1"), make_node("node-2")]
    job = running_job(nodes, spec(SECRET_JOB, SECRET))
    decision = Decision.objects.create(
        id="dec_1", job=job, at=now(), key="1:r", mode="recommend", applied=False, rule="r", choice="c",
        reason_code="r", sentence="s", policy_version="p", snapshot=b"",
    )  # fmt: skip
    asked = checkpoint(job, reason="r", actor="user:ada")
    return Tenants(project, job, Incident.objects.get(job=job), decision, asked, nodes)


def account(name: str, *, fleet: str = "read", **roles: Role) -> User:
    """An account with this scope in the fleet and these roles in projects ('_' for '-' in their names)."""
    user = User.objects.create_user(name, password="correct horse battery")
    grant(user, fleet)
    for project, role in roles.items():
        Membership.objects.create(project_id=project.replace("_", "-"), account=user, role=role)
    return User.objects.get(pk=user.pk)


def caller_of(user: User, scope: str = Scope.ADMIN, project: str = "") -> Caller:
    """With a token of the account that is bound by nothing but this."""
    from controlplane.access.rights import rights_of
    from controlplane.access.scopes import narrower

    rights = rights_of(user)
    assert rights is not None
    most = (rights.within(project) if project else None) or rights.most
    return Caller(create_api_token(user, name=scope, scope=narrower(most, scope), project=project).secret)
