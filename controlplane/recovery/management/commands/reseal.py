"""`manage.py reseal`: the values of `env` rest sealed with the present HOLDFAST_SECRET_KEY."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.recovery import resealing


class Command(BaseCommand):
    """After a change of the secret key, and once after the release that brought seals."""

    help = "Seal the values of jobs' env again with the present HOLDFAST_SECRET_KEY; exit 1 if some open with no key."

    def add_arguments(self, parser: CommandParser) -> None:
        """The way back."""
        parser.add_argument("--open", action="store_true", help="leave them in clear, for a release without seals")

    def handle(self, *args: Any, **options: Any) -> None:
        """Seal and tell."""
        done = resealing.reseal(opened=options["open"])
        what = "in clear now" if options["open"] else "sealed again"
        self.stdout.write(
            f"{what}: the env of {done.jobs} jobs and of {done.orders} starts; taken out of {done.snapshots} snapshots"
        )
        if done.ended:
            self.stdout.write(f"lost, and no longer needed: {done.ended} rows of what is over")
        if done.altered:
            self.stdout.write(f"left as they are: {done.altered} rows that Holdfast has not written so")
        if done.unreadable:
            self.stdout.write(
                f"NOT OPENED: {done.unreadable} rows; name the key that they were sealed with in"
                " HOLDFAST_SECRET_KEY_FALLBACKS and run this again"
            )
            sys.exit(1)
