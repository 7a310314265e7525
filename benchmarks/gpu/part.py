"""What every part of a check shares: its options, its rows, its answer."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HELD, FAILED, NOT_HERE = "held", "failed", "not here"


@dataclass(slots=True)
class Findings:
    """Rows for the report, and what did not hold."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    not_here: str = ""

    def say(self, what: str, value: object, note: str = "") -> None:
        """A row that claims nothing."""
        self.rows.append((what, f"{value:.4g}" if isinstance(value, float) else str(value), note))

    def claim(self, what: str, value: object, *, holds: bool, note: str = "") -> None:
        """A row that holds or does not."""
        self.say(what, value, f"{'holds' if holds else 'DOES NOT HOLD'}{f': {note}' if note else ''}")
        if not holds:
            self.broken.append(f"{what}: {value} {note}".strip())


def run(argv: list[str], doc: str | None, check: Callable[[Findings, bool], None]) -> int:
    """`check(findings, cpu)`, its answer to `--json`. 1 when something does not hold."""
    options = argparse.ArgumentParser(description=doc)
    options.add_argument("--json", type=Path, required=True)
    options.add_argument("--cpu", action="store_true")
    args = options.parse_args(argv)
    found = Findings()
    check(found, args.cpu)
    state = FAILED if found.broken else NOT_HERE if found.not_here else HELD
    why = "; ".join(found.broken) or found.not_here
    args.json.write_text(json.dumps({"state": state, "rows": found.rows, "why": why}))
    return int(bool(found.broken))
