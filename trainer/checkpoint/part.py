"""What one rank says of its part of a save: it goes from the forked writer to the save's
thread, and from there to rank 0. Imports no torch.
"""

import msgspec

from trainer.checkpoint.manifest import FileEntry


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one item lies: what torch's WriteResult says, without its pickles."""

    fqn: str
    offset: tuple[int, ...] | None
    index: int | None
    bytes: int
    path: str
    start: int
    length: int


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank has written, or why it has not (`error` is empty when it has)."""

    files: tuple[FileEntry, ...] = ()
    written: tuple[Written, ...] = ()
    error: str = ""
