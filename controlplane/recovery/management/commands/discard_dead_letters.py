"""`manage.py discard_dead_letters`: say that events which were put aside are not wanted."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.recovery import deadletter
from controlplane.recovery.replaying import chosen
from controlplane.runtime.errors import ServiceError


class Command(BaseCommand):
    """They stay listed as discarded until the retention removes them."""

    help = "Discard agents' events that were put aside; they are never applied."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which ones: a node's, or one."""
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--node", default="", help="all that wait of this node (id or name)")
        which.add_argument("--id", default="", help="only this one")
        parser.add_argument("--reason", required=True, help="why, for the audit")

    def handle(self, *args: Any, **options: Any) -> None:
        """Discard them."""
        try:
            letters = chosen(node=options["node"], letter_id=options["id"])
            for letter in letters:
                deadletter.discard(letter.pk, actor="console", reason=options["reason"])
        except ServiceError as error:
            raise CommandError(error.detail) from error
        self.stdout.write(f"{len(letters)} discarded")
