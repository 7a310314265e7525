"""Small files that must be whole, private and on disk: the key, the credential.

Called by `agents.link.keys` and `agents.link.enrol`. Never used for the journal, which appends.
"""

import os
from pathlib import Path

from agents.errors import ConfigError, EnrolmentError

_RESERVED_BYTES = 4096


def write_file(path: Path, data: bytes) -> None:
    """Durable, atomic, mode 0600. Raises OSError and leaves the old file as it was."""
    fresh = path.with_name(path.name + ".tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)
    sync_directory(path.parent)


def reserve(path: Path) -> None:
    """Put a file of one block where `fill` will write, so that what is about to be had can be
    kept. Raises EnrolmentError (worth trying again: somebody may make room)."""
    try:
        write_file(path.with_name(path.name + ".reserved"), bytes(_RESERVED_BYTES))
    except OSError as error:
        raise EnrolmentError(
            f"{path.parent} cannot keep a credential ({error.strerror or error}): the join token is not used; make room"
            " there, or repair the disk",
            retry=True,
        ) from error


def fill(path: Path, data: bytes) -> None:
    """Write `data` into the reserved block and give it its name. Raises OSError."""
    reserved = path.with_name(path.name + ".reserved")
    descriptor = os.open(reserved, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        _write_all(descriptor, data)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(reserved, path)
    sync_directory(path.parent)


def read_private(path: Path) -> bytes | None:
    """None: there is no such file. Raises ConfigError if others can read or write it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    check_private(path)
    return data


def check_private(path: Path) -> None:
    """Raises ConfigError if others than the owner can read or write it."""
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path} is readable by others: chmod 600 it, and ask for a new key (`holdfast node rotate-key`)"
        )


def sync_directory(path: Path) -> None:
    """The names in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
