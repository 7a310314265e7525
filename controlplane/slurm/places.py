"""Where an allocation's processes keep their files on a node: short paths, as unix sockets lie below them (107 bytes),
in a folder for each allocation, which is removed when it ends."""

import os
import shutil
import stat
from pathlib import Path

ROOT = Path("/tmp")  # noqa: S108 - what is found there is believed only if it is this user's own
LEFT_FILES = 10_000


class PlaceError(RuntimeError):
    """A folder is not this user's own; the text says which."""


def local(job: str, part: str, *, root: Path = ROOT) -> Path:
    """`root/hf-UID/JOB.PART`, made for this user alone. As root others may pass it, because ranks run as others.
    Raises PlaceError."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    mine = root / f"hf-{os.geteuid()}"
    for folder in (mine, mine / f"{job}.{part}"):
        own(folder, mode=mode)
    return folder


def own(folder: Path, *, mode: int = 0o700) -> Path:
    """A directory of this user's, made or made so. Raises PlaceError: it is somebody else's, or no directory."""
    try:
        folder.mkdir(mode=mode, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PlaceError(f"{folder} cannot be made: {error.strerror}. Free it, or make room") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PlaceError(f"{folder} is not a directory of yours. Remove it, or have its owner remove it")
    folder.chmod(mode)
    return folder


def forget(folder: Path) -> None:
    """Remove it with everything in it, and the user's folder with the last one."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        return  # Another allocation has its own there.


def keep_logs(logs: Path, kept: Path) -> None:
    """Copy the log files below `logs`, for the time after the allocation; what cannot be read is left out."""
    for count, path in enumerate(sorted(logs.rglob("*.log"))):
        target = kept / path.relative_to(logs)
        if count >= LEFT_FILES or path.is_symlink():
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        except OSError:
            continue
