"""`manage.py create_admin NAME`: an administrator and a one-time password."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.access.services import create_admin


class Command(BaseCommand):
    """Prints the password alone, so that it can be captured."""

    help = "Create (or find) an administrator; print a one-time password."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whom."""
        parser.add_argument("username", nargs="?", default="admin")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it."""
        self.stdout.write(create_admin(options["username"]))
