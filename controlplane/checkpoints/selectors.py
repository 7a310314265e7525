"""Reading checkpoints."""

from django.db.models import QuerySet

from controlplane.checkpoints.models import Checkpoint


def of_job(job_id: str) -> QuerySet[Checkpoint]:
    """Newest first."""
    return Checkpoint.objects.filter(job_id=job_id).order_by("-step", "-epoch", "-id")
