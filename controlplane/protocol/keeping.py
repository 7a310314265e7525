"""Checkpoints that are kept beyond their retention: the order to a rank, and what retention did on it.

A certificate that is not judged yet may need the checkpoint from before its fault
(`recovery.keeping`). The agent hands the order on (`KeepCheckpoints`), `trainer.checkpoint.keeper`
carries it out. Data alone: nothing here decides or removes.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import Epoch, Id, Index, SaveName, Saves, Step


class KeptSave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint of the job. `by`: (replica, incarnation) of those that compute steps again from it behind
    the job's last save; with none it goes with that save."""

    name: SaveName
    by: Annotated[tuple[tuple[Index, Index], ...], Meta(max_length=4)] = ()


KeptSaves = Annotated[tuple[KeptSave, ...], Meta(max_length=4)]


class KeepSaves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="keep"):
    """To rank 0: keep these beyond their retention, and no others, until a newer order (by `command_id`)."""

    command_id: Id
    saves: KeptSaves


class CheckpointsPruned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="pruned"):
    """Retention has removed checkpoints other than after a save: see `CheckpointReport`."""

    oldest_kept: tuple[Epoch, Step]
    kept: Saves = ()
