"""`manage.py seal_env JOB_ID FILE`: the values of a job's `env`, sealed with the present key."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.protocol.spec_lint import lint
from controlplane.protocol.spec_text import SpecTextError, parse_yaml
from controlplane.recovery import resealing
from controlplane.runtime.errors import Conflict, NotFound


class Command(BaseCommand):
    """For a control plane that starts on another one's rows, without its keys (`controlplane.slurm.continuing`)."""

    help = "Take the values of a job's env from its spec file and seal them with the present HOLDFAST_SECRET_KEY."

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
            resealing.take_values(options["job_id"], found.spec.env)
        except (NotFound, Conflict) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"sealed: {len(found.spec.env)} values of {options['job_id']}")
