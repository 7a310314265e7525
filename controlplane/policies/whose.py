"""Whose policy document: the fleet's, a project's or a job's, from the widest to the narrowest."""

from dataclasses import dataclass

from controlplane.access.project_models import Project
from controlplane.jobs.models import Job
from controlplane.policies.models import FLEET, scope_of_project


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Of the job, else of the project, else of the fleet."""

    project: Project | None = None
    job: Job | None = None

    @property
    def scope(self) -> str:
        """As versions name it."""
        if self.job is not None:
            return self.job.pk
        return scope_of_project(self.project.pk) if self.project is not None else FLEET

    @property
    def words(self) -> str:
        """For sentences: "the policy of demo"."""
        if self.job is not None:
            return f"the policy of {self.job.name}"
        return f"the policy of the project {self.project.pk}" if self.project is not None else "the fleet's policy"

    @property
    def inside(self) -> str | None:
        """The project whose document lies above a job's."""
        return self.job.project if self.job is not None else None


FLEETS = Whose()
