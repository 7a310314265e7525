"""Where an allocation's processes keep their files on a node: short paths, as unix sockets lie below them (107 bytes),
in a folder for each allocation, which is removed when it ends. And whether a folder that the user named is his alone.

Whoever uses such a folder holds it (`hold`); one of an allocation that was killed is held by nobody, and the next one
of the same user on that node removes it (`sweep`).
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Collection
from pathlib import Path

ROOT = Path("/tmp")  # noqa: S108 - what is found there is believed only if it is this user's own
OTHER_NAMES = 9
"""So many more of the user's folder are tried, as anybody can make the first one before him."""
LEFT_FILES = 10_000
MAX_LOG_BYTES, MAX_LOGS_BYTES = 64 << 20, 512 << 20
"""Of one log and of all that one place keeps: the end of the allocation waits for the copy."""
SWEPT_S, TRIES = 0.05, 100
_OF_ALLOCATION = re.compile(r"([0-9]{1,10})\.(c|[0-9]{1,10})")
OTHER = "name another with --directory"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class PlaceError(RuntimeError):
    """A folder cannot be used: `what` says which and why, `fix` what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix[:1].upper()}{fix[1:]}")
        self.what, self.fix = what, fix


def local(job: str, part: str, *, root: Path | None = None) -> Path:
    """`root/hf-UID/JOB.PART`, made for this user alone; `hf-UID.1` and so on where that is somebody else's. As root
    others may pass it, because ranks run as others. Raises PlaceError."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    name, homes = f"{job}.{part}", _homes(root or ROOT)
    # Where it is already comes first: a name may become free meanwhile.
    there = next((home for home in homes if _is_mine(home) and _is_mine(home / name)), None)
    home = there or next((home for home in homes if not _is_taken(home)), homes[0])
    for folder in (home, home / name):
        own(folder, mode=mode)
    return folder


def own(folder: Path, *, mode: int = 0o700) -> Path:
    """A directory of this user's, made or made so. Raises PlaceError: it is somebody else's, or no directory."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=mode)
        if not _is_mine(folder):
            raise PlaceError(f"{folder} is not a directory of yours", "remove it, or have its owner remove it")
        folder.chmod(mode)
    except OSError as error:
        raise PlaceError(f"{folder} cannot be made: {error.strerror}", "free it, or make room") from error
    return folder


def yours(folder: Path) -> Path:
    """A directory that the user named, made for him alone where it is not there, else left as it is. Raises PlaceError,
    as `trusted`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(f"{folder} cannot be made: {error.strerror}", OTHER) from error
    return trusted(folder)


def trusted(folder: Path) -> Path:
    """A directory that is there. Raises PlaceError: it is not this user's, or others may write there, and so say what
    is run as him."""
    try:
        found = folder.lstat()
    except OSError as error:
        raise PlaceError(f"{folder} cannot be used: {error.strerror}", OTHER) from error
    if stat.S_ISLNK(found.st_mode):
        raise PlaceError(f"{folder} is a link", f"name what it leads to: --directory {os.path.realpath(folder)}")
    if not stat.S_ISDIR(found.st_mode):
        raise PlaceError(f"{folder} is no directory", OTHER)
    if found.st_uid != os.geteuid():
        raise PlaceError(f"{folder} belongs to user {found.st_uid}, who could change what is run as you", OTHER)
    if found.st_mode & _OTHERS_WRITE:
        mode = f"{stat.S_IMODE(found.st_mode):o}"
        raise PlaceError(
            f"others may write to {folder} (mode {mode}), and could change what is run as you",
            f"chmod go-w {folder}, or {OTHER}",
        )
    return folder


def hold(job: str, part: str, *, root: Path | None = None) -> tuple[Path, int]:
    """`local`, and a descriptor: while that is open nobody sweeps the folder. Raises PlaceError."""
    for _ in range(TRIES):
        folder = local(job, part, root=root)
        # It is removed meanwhile where it was there and nobody held it: then it is made anew.
        with contextlib.suppress(OSError):
            descriptor = _opened(folder)
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), folder.lstat()):
                    return folder, descriptor
            os.close(descriptor)
        time.sleep(SWEPT_S)
    raise PlaceError(f"{folder} cannot be locked", "see who uses it, or remove it")


def sweep(job: str, *, root: Path | None = None) -> list[Path]:
    """Remove what allocations of this user but `job` left here, of which no process is left; what it was."""
    found = []
    for home in _homes(root or ROOT):
        for folder in _of_allocations(home) if _is_mine(home) else ():
            if not folder.name.startswith(f"{job}.") and _swept(folder):
                found.append(folder)
    return found


def _of_allocations(home: Path) -> list[Path]:
    try:
        return sorted(path for path in home.iterdir() if _OF_ALLOCATION.fullmatch(path.name) and _is_mine(path))
    except OSError:
        return []


def _swept(folder: Path) -> bool:
    try:
        descriptor = _opened(folder)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return not folder.exists()


def strip(folder: Path, logs: Collection[Path]) -> None:
    """Remove what is in `folder` but `logs`, which lie below it: keys, journal and rows go before what takes long."""
    try:
        inside = list(folder.iterdir())
    except OSError:
        return
    for path in inside:
        if path in logs:
            continue
        if path.is_symlink() or not path.is_dir():
            with contextlib.suppress(OSError):
                path.unlink()
        elif any(path in each.parents for each in logs):
            strip(path, logs)
        else:
            shutil.rmtree(path, ignore_errors=True)


def forget(folder: Path) -> None:
    """Remove it with everything in it, and the user's folder with the last one."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        return  # Another allocation has its own there.


def keep_logs(logs: Path, kept: Path) -> None:
    """Copy the log files below `logs`, for the time after the allocation: the end of a long one, the newest ones if
    they are many. What cannot be read is left out."""
    left_bytes = MAX_LOGS_BYTES
    for path in _newest(logs)[:LEFT_FILES]:
        with contextlib.suppress(OSError):
            left_bytes -= _kept(path, kept / path.relative_to(logs), min(MAX_LOG_BYTES, left_bytes))


def _newest(logs: Path) -> list[Path]:
    def changed(path: Path) -> float:
        try:
            return -path.lstat().st_mtime
        except OSError:
            return 0.0

    return sorted(logs.rglob("*.log"), key=changed)


def _kept(path: Path, target: Path, limit_bytes: int) -> int:
    """How many bytes of its end were copied. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or limit_bytes <= 0:
            return 0
        file.seek(max(0, found.st_size - limit_bytes))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as to:
            left_bytes = min(limit_bytes, found.st_size)
            while left_bytes > 0 and (part := file.read(min(1 << 20, left_bytes))):
                left_bytes -= to.write(part)
    return min(limit_bytes, found.st_size)


def _homes(root: Path) -> list[Path]:
    name = f"hf-{os.geteuid()}"
    return [root / name, *(root / f"{name}.{number}" for number in range(1, OTHER_NAMES + 1))]


def _is_mine(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_taken(folder: Path) -> bool:
    return os.path.lexists(folder) and not _is_mine(folder)


def _opened(folder: Path) -> int:
    """Raises OSError."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
