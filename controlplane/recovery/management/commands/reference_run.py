"""`manage.py reference_run JOB`: the losses that the job's certificates compare with."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.jobs.selectors import job as find_job
from controlplane.recovery.models import Incident
from controlplane.recovery.reference import make_reference
from controlplane.runtime.clock import now
from controlplane.runtime.errors import ServiceError


class Command(BaseCommand):
    """Runs the trainer undisturbed, then has the job's certificates written again."""

    help = "Train the job's spec undisturbed and keep its losses as reference."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which job."""
        parser.add_argument("job", help="id or name")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        try:
            job = find_job(options["job"])
            made = make_reference(job)
        except ServiceError as error:
            raise CommandError(error.detail) from error
        Incident.objects.filter(job=job).exclude(certificate=None).update(certificate_due_at=now())
        self.stdout.write(f"{made.steps} losses in {made.path}")
