"""What may be done to jobs now: their rows as facts for `policy.capabilities`.

Called before each order of a person is carried out, and by the answers that serve `capabilities`.
"""

from collections.abc import Sequence
from typing import Any

from django.db.models import Exists, OuterRef

from controlplane.jobs.models import Job, Rank
from controlplane.policy import capabilities
from controlplane.policy.capabilities import Acts, JobFacts


def job_acts(jobs: Sequence[Job]) -> dict[str, Acts]:
    """By job id, in one query for many jobs."""
    held = Rank.objects.filter(replica__attempt__job=OuterRef("pk"), released_at=None)
    placed = set(Job.objects.filter(Exists(held), pk__in=[job.pk for job in jobs]).values_list("pk", flat=True))
    return {
        job.pk: capabilities.job(
            JobFacts(name=job.name, state=job.state, placed=job.pk in placed, parked=bool(job.parked_by))
        )
        for job in jobs
    }


def with_acts(views: Sequence[dict[str, Any]], jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Their summaries, each with what may be done to it."""
    acts = job_acts(jobs)
    return [view | {"capabilities": acts[job.pk]} for view, job in zip(views, jobs, strict=True)]
