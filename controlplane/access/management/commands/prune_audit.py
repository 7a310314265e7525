"""`manage.py prune_audit --keep-days N --export FILE`: take old audit rows away, provably."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.access import exporting, pruning, sealing, verification
from controlplane.runtime.clock import now


class Command(BaseCommand):
    """Verifies, exports, deletes, and leaves a signed anchor from which verification goes on."""

    help = "Export and delete audit rows older than a number of days; the chain stays verifiable."

    def add_arguments(self, parser: CommandParser) -> None:
        """How long to keep; where the removed rows go."""
        parser.add_argument("--keep-days", type=float, required=True)
        parser.add_argument("--export", type=Path, required=True, help="A new file for the removed rows.")

    def handle(self, *args: Any, **options: Any) -> None:
        """In this order, so that nothing is deleted that was not whole and not kept."""
        if options["keep_days"] < 0:
            raise CommandError("--keep-days is a number of days, 0 or more")
        sealing.seal_all()
        verdict = verification.verify()
        # A clock that was set back makes rows late too: `verify_audit` names them until they are pruned.
        if verdict.broken > verdict.late:
            first = next((fault for fault in verdict.faults if fault.kind != "late"), verdict.faults[0])
            raise CommandError(f"the log is not whole ({first.kind}: {first.row}); nothing was removed")
        through = pruning.last_before(now() - timedelta(days=options["keep_days"]))
        if through < verdict.first_seq:
            self.stdout.write("nothing is that old")
            return
        options["export"].touch(mode=0o600, exist_ok=False)
        with options["export"].open("w") as file:
            written = exporting.export(file.write, after_seq=verdict.first_seq - 1, through_seq=through)
        self.stdout.write(f"{pruning.prune(through)} rows removed through seq {through}; {written} exported")
