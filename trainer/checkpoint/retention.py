"""Which checkpoint directories may go. `plan` is pure; `survey` looks, `carry_out` removes. What is
needed beyond its time is named in a file beside them (`hold`), so that whichever rank saves keeps it.

Newest means saved last: of the newest epoch, then of the highest step. A checkpoint of an
earlier epoch with a higher step was passed over by a restart; it must not push out what the
restart has saved since."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from controlplane.protocol.keeping import KeptSave
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
    nothing is complete: every complete one that is older goes, or is gone, except those `held`."""

    going: tuple[str, ...]
    oldest_kept: tuple[int, int]
    held: tuple[tuple[int, int], ...] = ()


NOTHING = Plan((), (0, 0))


PIN = "pinned"
"""The file that names those which are needed beyond their time."""
MAX_PIN_BYTES = 2_000


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of that file. `order`: the newest that was carried out."""

    order: str = ""
    saves: tuple[KeptSave, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Of the checkpoints."""
        return frozenset(save.name for save in self.saves)


def plan(found: Sequence[Found], *, keep: int, epoch: int, pinned: Collection[str] = ()) -> Plan:
    """Complete ones beyond the newest `keep`, and partials that are older than the newest
    complete one and of an earlier epoch (nobody may be writing them any more). What is `pinned`
    stays, and counts for nothing else."""
    complete = sorted((f for f in found if f.complete), key=lambda f: (f.epoch, f.step), reverse=True)
    if not complete:
        return NOTHING
    stay, excess = complete[: max(1, keep)], complete[max(1, keep) :]
    newest = max(f.step for f in stay)
    partials = [f.name for f in found if not f.complete and f.step < newest and f.epoch < epoch]
    going = (*(f.name for f in excess if f.name not in pinned), *sorted(partials))
    held = tuple(sorted((f.epoch, f.step) for f in excess if f.name in pinned))
    return Plan(going, (stay[-1].epoch, stay[-1].step), held)


def scan(root: Storage) -> list[Found]:
    """Every checkpoint under `root`. Raises OSError."""
    return [
        Found(name, *number, complete=_has_marker(root.child(name)))
        for name in root.folders()
        if (number := parse_name(name))
    ]


def survey(root: Place, *, keep: int, epoch: int) -> Plan:
    """What retention will do. Raises OSError."""
    storage = storage_at(root)
    return plan(scan(storage), keep=keep, epoch=epoch, pinned=held(storage).names)


def hold(root: Place, wanted: Held) -> bool:
    """Keep those, and no others, unless a newer order was carried out. True: some that were kept are
    not any more. Raises OSError."""
    storage = storage_at(root)
    known = held(storage)
    if known.order > wanted.order:
        return False
    _write(storage, wanted)
    return bool(known.names - wanted.names)


def let_go(root: Place, life: tuple[int, int] | None) -> bool:
    """The replica life (replica, incarnation) has computed again; None: the last save is made, behind which
    only those stay from which somebody computes. True: some were let go. Raises OSError."""
    storage = storage_at(root)
    known = held(storage)
    left = tuple(
        KeptSave(save.name, tuple(other for other in save.by if other != life))
        for save in known.saves
        if set(save.by) - {life} or (life is not None and life not in save.by)
    )
    if left != known.saves:
        _write(storage, Held(known.order, left))
    return len(left) < len(known.saves)


def _write(storage: Storage, wanted: Held) -> None:
    if wanted.saves:
        storage.write(PIN, msgspec.json.encode(wanted))
    else:
        storage.remove(PIN)


def held(root: Storage) -> Held:
    """What is kept beyond its time. What cannot be read keeps nothing. Raises OSError."""
    try:
        return msgspec.json.decode(root.read(PIN, MAX_PIN_BYTES), type=Held)
    except (FileNotFoundError, msgspec.DecodeError):
        return Held()


def carry_out(root: Place, planned: Plan) -> None:
    """Marker first, so that nothing half deleted looks complete; what is held by now stays. Raises OSError."""
    storage = storage_at(root)
    pinned = held(storage).names if planned.going else frozenset()
    for name in planned.going:
        if name not in pinned:
            storage.child(name).remove(MARKER)
            storage.child(name).remove_all()


def prune(root: Place, *, keep: int, epoch: int) -> Plan:
    """Both; what was planned. Raises OSError."""
    planned = survey(root, keep=keep, epoch=epoch)
    carry_out(root, planned)
    return planned


def _has_marker(checkpoint: Storage) -> bool:
    try:
        return checkpoint.size(MARKER) > 0
    except FileNotFoundError:
        return False
