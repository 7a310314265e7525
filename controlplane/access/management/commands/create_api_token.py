"""`manage.py create_api_token USER`: a token for CLI and SDK, shown once."""

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.access.models import Scope
from controlplane.access.services import create_api_token


class Command(BaseCommand):
    """Prints the token alone, so that it can be captured."""

    help = "Create an API token for a user; print it once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whose, and how far it reaches."""
        parser.add_argument("username")
        parser.add_argument("--name", default="console")
        parser.add_argument("--scope", default=Scope.READ, choices=[s.value for s in Scope])

    def handle(self, *args: Any, **options: Any) -> None:
        """Make it."""
        user = get_user_model().objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"no user {options['username']!r}; make one with create_admin")
        self.stdout.write(create_api_token(user, name=options["name"], scope=options["scope"]).secret)
