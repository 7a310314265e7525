"""Reading commands."""

from django.db.models import QuerySet

from controlplane.dispatch.models import Command
from controlplane.runtime.errors import NotFound


def of_decision(decision_id: str) -> QuerySet[Command]:
    """In the order in which they were written."""
    return Command.objects.filter(decision_id=decision_id).select_related("node").order_by("id")


def of_job(job_id: str) -> QuerySet[Command]:
    """Newest first."""
    return Command.objects.filter(job_id=job_id).select_related("node").order_by("-id")


def command(command_id: str) -> Command:
    """Raises NotFound."""
    row = Command.objects.filter(pk=command_id).select_related("node").first()
    if row is None:
        raise NotFound(f"no command {command_id!r}")
    return row
