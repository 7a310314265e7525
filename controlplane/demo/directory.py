"""The directory of one demo: one at a time runs in it, and nothing but a demo's files is ever removed."""

import fcntl
import os
import shutil
from pathlib import Path

from controlplane.config.guards import MADE_BY_DEMO

MARKS = (MADE_BY_DEMO, "agent-policy.toml")
"""A directory with none of these files is somebody's; the second is what demos had before there was the first."""


class DirectoryError(RuntimeError):
    """The demo cannot have this directory; the text says why, and what to do."""


def take(directory: Path, *, keep: bool) -> int:
    """Make it this process's own, empty unless `keep`; the lock's descriptor, held until the process ends.
    Raises DirectoryError where another demo still uses it, or where it holds what no demo made."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(directory.with_name(f"{directory.name}.lock"))
    if lock is None:
        raise DirectoryError(
            f"another demo runs in {directory}, or is still stopping. Stop it with Ctrl-C in its terminal, or start "
            "this one elsewhere: python -m controlplane.demo --dir DIRECTORY"
        )
    try:
        _ready(directory, keep=keep)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _ready(directory: Path, *, keep: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise DirectoryError(f"{directory} is no directory. Name one: python -m controlplane.demo --dir DIRECTORY")
    if directory.is_dir() and any(directory.iterdir()):
        if not any((directory / mark).exists() for mark in MARKS):
            raise DirectoryError(
                f"{directory} holds files and no demo made it, so nothing in it is touched. Empty it, or name "
                "another: python -m controlplane.demo --dir DIRECTORY"
            )
        if not keep:
            shutil.rmtree(directory)
    directory.mkdir(exist_ok=True)
    (directory / MADE_BY_DEMO).touch()


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
