"""`manage.py create_signing_key`: the keys that sign commands, once for an installation."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.runtime import keys


class Command(BaseCommand):
    """Writes the file that HOLDFAST_SIGNING_KEY_FILE names; never over another."""

    help = "Make the server's signing keys (mode 0600); print the public ones."

    def handle(self, *args: Any, **options: Any) -> None:
        """Make them."""
        path = settings.SIGNING_KEY_FILE
        if not keys.write_new(path):
            raise CommandError(f"{path} is there already; `manage.py rotate_signing_key` renews it")
        for public in keys.server_public_keys():
            self.stdout.write(public)
