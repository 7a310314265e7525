"""Reading commands."""

from django.db.models import QuerySet

from controlplane.dispatch.models import Command


def of_decision(decision_id: str) -> QuerySet[Command]:
    """In the order in which they were written."""
    return Command.objects.filter(decision_id=decision_id).select_related("node").order_by("id")


def of_job(job_id: str) -> QuerySet[Command]:
    """Newest first."""
    return Command.objects.filter(job_id=job_id).select_related("node").order_by("-id")
