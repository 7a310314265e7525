"""Which checkpoint directories may go. `plan` is pure; `prune` does it."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.checkpoint.manifest import MARKER, parse_name
from trainer.checkpoint.storage import Place, Storage, storage_at


@dataclass(frozen=True, slots=True)
class Found:
    """One directory, by name: `complete` means it has a marker."""

    name: str
    step: int
    epoch: int
    complete: bool


def plan(found: Sequence[Found], *, keep: int, epoch: int) -> list[str]:
    """Complete ones beyond the newest `keep`, and torsos that are older than the newest
    complete one and of an earlier epoch (nobody may be writing them any more)."""
    complete = sorted((f for f in found if f.complete), key=lambda f: (f.step, f.epoch), reverse=True)
    excess = [f.name for f in complete[max(1, keep) :]]
    if not complete:
        return []
    newest = complete[0].step
    torsos = [f.name for f in found if not f.complete and f.step < newest and f.epoch < epoch]
    return excess + sorted(torsos)


def scan(root: Storage) -> list[Found]:
    """Every checkpoint under `root`. Raises OSError."""
    return [
        Found(name, *number, complete=_has_marker(root.child(name)))
        for name in root.folders()
        if (number := parse_name(name))
    ]


def prune(root: Place, *, keep: int, epoch: int) -> None:
    """Marker first, so that nothing half deleted looks complete. Raises OSError."""
    storage = storage_at(root)
    for name in plan(scan(storage), keep=keep, epoch=epoch):
        storage.child(name).remove(MARKER)
        storage.child(name).remove_all()


def _has_marker(checkpoint: Storage) -> bool:
    try:
        return checkpoint.size(MARKER) > 0
    except OSError:
        return False
