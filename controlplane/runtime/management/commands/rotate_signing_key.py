"""`manage.py rotate_signing_key`: the next key signs from now on, beside a fresh next one."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane.runtime import keys


class Command(BaseCommand):
    """Running processes find the new file by themselves; docs/access.md says how often."""

    help = "Rotate the server's signing keys; print the public ones."

    def handle(self, *args: Any, **options: Any) -> None:
        """Rotate them."""
        for public in keys.rotate(settings.SIGNING_KEY_FILE):
            self.stdout.write(public)
