"""`manage.py adopt_job JOB_ID FILE`: a job of rows whose keys and agents are gone can start again here."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.protocol.spec_lint import lint
from controlplane.protocol.spec_text import SpecTextError, parse_yaml
from controlplane.recovery import resealing
from controlplane.runtime.errors import Conflict, NotFound


class Command(BaseCommand):
    """For a control plane that starts on another one's rows, without its keys (`controlplane.slurm.continuing`)."""

    help = (
        "Take the values of a job's env from its spec file, sealed with the present HOLDFAST_SECRET_KEY, and number its"
        " next attempt above what its checkpoints' fence says was started."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Whose, and from where."""
        parser.add_argument("job_id")
        parser.add_argument("file", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        """The names must be those that the job has."""
        try:
            found = lint(parse_yaml(options["file"].read_bytes())).spec
        except (OSError, SpecTextError) as error:
            raise CommandError(f"{options['file']} cannot be read: {error}") from error
        if found is None:
            raise CommandError(f"{options['file']} is no valid job spec; `holdfast job validate` says where")
        try:
            attempt, epoch = resealing.adopt(options["job_id"], found.spec.env)
        except (NotFound, Conflict) as error:
            raise CommandError(str(error)) from error
        sealed = f"sealed: {len(found.spec.env)} values of {options['job_id']}"
        self.stdout.write(f"{sealed}; at least attempt {attempt}, epoch {epoch} was started")
