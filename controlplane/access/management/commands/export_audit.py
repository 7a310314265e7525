"""`manage.py export_audit`: the sealed audit log as JSON lines."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.access import exporting, sealing


class Command(BaseCommand):
    """One row a line, in order, with its digests; to stdout or a file of mode 0600."""

    help = "Export the audit log as JSON lines."

    def add_arguments(self, parser: CommandParser) -> None:
        """From where, whereto."""
        parser.add_argument("--after-seq", type=int, default=0, help="Continue after this row.")
        parser.add_argument("--output", type=Path, help="A new file; stdout without it.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Seal what is there, then write."""
        sealing.seal_all()
        if options["output"] is None:
            exporting.export(self.stdout.write, after_seq=options["after_seq"])
            return
        options["output"].touch(mode=0o600, exist_ok=False)
        with options["output"].open("w") as file:
            count = exporting.export(file.write, after_seq=options["after_seq"])
        self.stderr.write(f"{count} rows")
