"""Which checkpoint directories may go. `plan` is pure; `survey` looks, `carry_out` removes.

Newest means saved last: of the newest epoch, then of the highest step. A checkpoint of an
earlier epoch with a higher step was passed over by a restart; it must not push out what the
restart has saved since."""

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


@dataclass(frozen=True, slots=True)
class Plan:
    """Names that go, and (epoch, step) of the oldest complete one that stays, (0, 0) where
    nothing is complete: every complete one that is older goes, or is gone."""

    going: tuple[str, ...]
    oldest_kept: tuple[int, int]


NOTHING = Plan((), (0, 0))


def plan(found: Sequence[Found], *, keep: int, epoch: int) -> Plan:
    """Complete ones beyond the newest `keep`, and torsos that are older than the newest
    complete one and of an earlier epoch (nobody may be writing them any more)."""
    complete = sorted((f for f in found if f.complete), key=lambda f: (f.epoch, f.step), reverse=True)
    if not complete:
        return NOTHING
    stay, excess = complete[: max(1, keep)], complete[max(1, keep) :]
    newest = max(f.step for f in stay)
    torsos = [f.name for f in found if not f.complete and f.step < newest and f.epoch < epoch]
    return Plan((*(f.name for f in excess), *sorted(torsos)), (stay[-1].epoch, stay[-1].step))


def scan(root: Storage) -> list[Found]:
    """Every checkpoint under `root`. Raises OSError."""
    return [
        Found(name, *number, complete=_has_marker(root.child(name)))
        for name in root.folders()
        if (number := parse_name(name))
    ]


def survey(root: Place, *, keep: int, epoch: int) -> Plan:
    """What retention will do. Raises OSError."""
    return plan(scan(storage_at(root)), keep=keep, epoch=epoch)


def carry_out(root: Place, planned: Plan) -> None:
    """Marker first, so that nothing half deleted looks complete. Raises OSError."""
    storage = storage_at(root)
    for name in planned.going:
        storage.child(name).remove(MARKER)
        storage.child(name).remove_all()


def prune(root: Place, *, keep: int, epoch: int) -> None:
    """Both. Raises OSError."""
    carry_out(root, survey(root, keep=keep, epoch=epoch))


def _has_marker(checkpoint: Storage) -> bool:
    try:
        return checkpoint.size(MARKER) > 0
    except FileNotFoundError:
        return False
