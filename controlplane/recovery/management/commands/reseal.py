"""`manage.py reseal`: the values of `env` rest sealed with the present HOLDFAST_SECRET_KEY."""

import sys
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.dispatch import resealing


class Command(BaseCommand):
    """After a change of the secret key, and once after the release that brought seals."""

    help = "Seal the values of jobs' env anew with the present HOLDFAST_SECRET_KEY; exit 1 if some open with no key."

    def handle(self, *args: Any, **options: Any) -> None:
        """Seal and tell."""
        done = resealing.reseal()
        self.stdout.write(f"sealed anew: the env of {done.jobs} jobs and of {done.orders} starts")
        if done.unreadable:
            self.stdout.write(
                f"NOT OPENED: {done.unreadable} rows; name the key that they were sealed with in"
                " HOLDFAST_SECRET_KEY_FALLBACKS and run this again"
            )
            sys.exit(1)
