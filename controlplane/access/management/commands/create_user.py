"""`manage.py create_user NAME`: an account and a one-time password; for one that exists, a new one."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.access.models import Scope
from controlplane.access.services import create_user


class Command(BaseCommand):
    """Prints the password alone, so that it can be captured."""

    help = "Create (or find) an account; print a one-time password, with which its owner sets one."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whom, and what he may do."""
        parser.add_argument("username")
        parser.add_argument("--scope", choices=[s.value for s in Scope], help="read for a new account, else as it is")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it."""
        self.stdout.write(create_user(options["username"], scope=options["scope"]))
