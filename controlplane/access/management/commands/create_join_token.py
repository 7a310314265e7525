"""`manage.py create_join_token`: print a join token for agents, once."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.access.services import JOIN_TTL_S, create_join_token


class Command(BaseCommand):
    """Prints the secret alone, so that it can be captured."""

    help = "Create a join token and print it once."

    def add_arguments(self, parser: CommandParser) -> None:
        """How many agents, and for how long."""
        parser.add_argument("--uses", type=int, default=1, help="agents that may enrol with it")
        parser.add_argument("--ttl-s", type=float, default=JOIN_TTL_S, help="seconds until it expires")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it."""
        self.stdout.write(create_join_token(uses=options["uses"], ttl_s=options["ttl_s"]).secret)
