"""`manage.py verify_audit`: are the audit log and the decision journal whole? Exit code 0 if they are, else 1."""

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from controlplane.access import sealing, verdicts, verification
from controlplane.access.sealing import Anchor
from controlplane.recovery import journal


class Command(BaseCommand):
    """Walks the chain once, in bounded memory, then holds each decision against its row of it; names the first
    row that is not as sealed. Keeps what it found, where its role may write."""

    help = "Verify the audit log's hash chain and the decisions it records; exit 1 and name the first broken row."

    def add_arguments(self, parser: CommandParser) -> None:
        """What is known from outside the database."""
        parser.add_argument(
            "--anchor", action="append", default=[], metavar="SEQ:HASH", help="A head noted earlier; may be repeated."
        )
        parser.add_argument("--log", type=Path, help="A server log (JSON lines); its 'audit anchor' lines are used.")
        parser.add_argument(
            "--no-kept-anchor", action="store_true", help="Do not use the head kept in the state directory."
        )
        parser.add_argument("--max-unsealed-s", type=float, default=verification.MAX_UNSEALED_S)

    def handle(self, *args: Any, **options: Any) -> None:
        """Verify and tell."""
        anchors = [_parse(text) for text in options["anchor"]]
        if options["log"] is not None:
            anchors += _of_log(options["log"])
        kept = None if options["no_kept_anchor"] else sealing.read_anchor(sealing.anchor_path())
        anchors += [kept] if kept else []
        verdict = verification.verify(anchors, max_unsealed_s=options["max_unsealed_s"])
        decisions = journal.compare(verdict)
        head = verdict.head
        self.stdout.write(f"{verdict.rows} rows, seq {verdict.first_seq} to {head.seq}; head {head.seq}:{head.hash}")
        self.stdout.write(f"{verdict.unsealed} rows wait to be sealed, the oldest for {verdict.unsealed_age_s:.0f} s")
        self.stdout.write(f"{decisions} decisions compared with the journal")
        self.stdout.write(
            f"{len(anchors)} anchors compared" + ("" if anchors else ": a cut at the end would go unseen")
        )
        for fault in verdict.faults:
            self.stdout.write(f"{fault.kind}: {fault.row}: {fault.detail}")
        try:
            verdicts.keep(verdict)
        except DatabaseError as error:
            self.stderr.write(f"what was found is not kept for the page: {error}")
        if not verdict.whole:
            self.stdout.write(f"NOT WHOLE: {verdict.broken} faults; the first: {verdict.faults[0].row}")
            sys.exit(1)
        self.stdout.write("whole")


def _parse(text: str) -> Anchor:
    seq, _, digest = text.partition(":")
    if not seq.isdecimal() or len(digest) != 64:
        raise CommandError(f"--anchor {text!r}: write SEQ:HASH as the log and this command print it")
    return Anchor(int(seq), digest)


def _of_log(path: Path) -> list[Anchor]:
    """The newest head that each line tells; lines of other kinds are passed over."""
    found = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if '"audit anchor"' not in line:
                continue
            try:
                told = json.loads(line)
                found.append(Anchor(int(told["seq"]), str(told["hash"])))
            except (ValueError, KeyError, TypeError):
                continue
    return found
