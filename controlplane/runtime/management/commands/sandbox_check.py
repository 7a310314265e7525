"""`manage.py sandbox_check`: what this machine gives the programs that touch jobs' files."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.runtime.sandbox import service
from controlplane.runtime.sandbox.plan import MEANS


class Command(BaseCommand):
    """Runs a program that does nothing; exits with 1 where a means is missing."""

    help = "Run a program in the sandbox and print which means of isolation apply on this machine."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a line for each means."""
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            code = service.run(service.Task(module="this", arguments=[], place=place))
            report, why = service.report_of(place), service.why_not_run(place)
        for name, meaning in MEANS.items():
            if report is not None and name in report.applied:
                self.stdout.write(f"ok       {name}: {meaning}")
            else:
                reason = report.missing.get(name, "") if report is not None else ""
                self.stdout.write(f"MISSING  {name}: {meaning}{f' ({reason})' if reason else ''}")
        if why:
            self.stdout.write(why)
        complete = report is not None and not report.missing and code == 0
        self.stdout.write("Complete." if complete else 'Not complete: see "The sandbox" in docs/access.md.')
        sys.exit(0 if complete else 1)
