"""`manage.py replay_dead_letters`: apply agents' events that were put aside, once the fault
is mended that kept them from being applied."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.recovery.replaying import chosen, replay
from controlplane.runtime.errors import ServiceError


class Command(BaseCommand):
    """Prints a line for each; ends with 1 when one failed again."""

    help = "Apply agents' events that were put aside, in the order in which they came."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which ones; all that wait when neither is given."""
        parser.add_argument("--node", default="", help="only of this node (id or name)")
        parser.add_argument("--id", default="", help="only this one")
        parser.add_argument("--reason", default="", help="why, for the audit")

    def handle(self, *args: Any, **options: Any) -> None:
        """Replay them."""
        try:
            letters = chosen(node=options["node"], letter_id=options["id"])
        except ServiceError as error:
            raise CommandError(error.detail) from error
        failed = 0
        for done in replay(letters, actor="console", reason=options["reason"]):
            failed += bool(done.failure)
            outcome = f"failed again: {done.failure}" if done.failure else "applied"
            self.stdout.write(f"{done.letter.pk} {done.letter.kind} {done.letter.seq}: {outcome}")
        self.stdout.write(f"{len(letters) - failed} applied, {failed} still wait")
        if failed:
            raise CommandError("some events failed again; fix the fault, or discard them", returncode=1)
