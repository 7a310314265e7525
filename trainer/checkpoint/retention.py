"""Which checkpoint directories may go. `plan` is pure; `prune` does it."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.manifest import MARKER, parse_name


@dataclass(frozen=True, slots=True)
class Found:
    """One directory: `complete` means it has a marker."""

    path: Path
    step: int
    epoch: int
    complete: bool


def plan(found: Sequence[Found], *, keep: int, epoch: int) -> list[Path]:
    """Complete ones beyond the newest `keep`, and torsos that are older than the newest
    complete one and of an earlier epoch (nobody may be writing them any more)."""
    complete = sorted((f for f in found if f.complete), key=lambda f: (f.step, f.epoch), reverse=True)
    excess = [f.path for f in complete[max(1, keep) :]]
    if not complete:
        return []
    newest = complete[0].step
    torsos = [f.path for f in found if not f.complete and f.step < newest and f.epoch < epoch]
    return excess + sorted(torsos)


def scan(root: Path) -> list[Found]:
    """Every checkpoint directory under `root`. Raises OSError."""
    return [
        Found(path, *number, complete=(path / MARKER).is_file())
        for path in root.iterdir()
        if (number := parse_name(path.name)) and path.is_dir()
    ]


def prune(root: Path, *, keep: int, epoch: int) -> None:
    """Marker first, so that nothing half deleted looks complete. Raises OSError."""
    for path in plan(scan(root), keep=keep, epoch=epoch):
        (path / MARKER).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
