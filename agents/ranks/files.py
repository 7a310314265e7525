"""Files in places that a job's user can change, opened by an agent that may be root.

A job's user may put a link, a pipe or somebody else's file where its own is expected. So what
is read must be a regular file of the expected owner, found without following a link; what is
made under a root of the policy is made step by step from open directories; and what must be
done as the job's user is done with its rights (`acting_as`).
"""

import contextlib
import ctypes
import os
import platform
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from agents.errors import LaunchError
from agents.ranks.users import RunAs

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MADE_WITHIN_S = 1.0
"""Another agent has made a directory and given it to its owner."""
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}
_libc = ctypes.CDLL(None, use_errno=True)


def open_regular(path: Path | str, *, uid: int | None = None, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file, of this owner if `uid` is given. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or (uid is not None and found.st_uid != uid):
        os.close(descriptor)
        raise PermissionError(f"{path} is not what it should be: no regular file of its owner's")
    return descriptor


def make_private(path: Path, *, owner: RunAs | None, mode: int = 0o700) -> None:
    """A directory of this owner in a directory that only the agent can write. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    descriptor = os.open(path, _DIRECTORY)
    try:
        uid, gid = (owner.uid, owner.gid) if owner else (os.geteuid(), os.getegid())
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def make_below(root: str, path: str, owner: RunAs, *, group: int | None = None) -> None:
    """See that `path`, below `root`, is a directory of the owner's that nobody else can read but
    `group`. What is missing above it is made by the agent, and nothing is made inside what
    belongs to others; no link is followed. Raises LaunchError, OSError."""
    names = Path(path).relative_to(root).parts
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for position, name in enumerate(names):
            last = position == len(names) - 1
            made = _made(directory, name, path, owner)
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
            if made and last:
                os.fchown(directory, owner.uid, owner.gid if group is None else group)
                os.fchmod(directory, 0o700 if group is None else 0o2750)
            elif made:
                os.fchmod(directory, 0o755)
        found_uid = _uid_of(directory, owner)
        if names and found_uid != owner.uid:
            raise LaunchError(f"{path} belongs to user {found_uid}, not to the job's user {owner.uid}: chown it")
    finally:
        os.close(directory)


def _uid_of(directory: int, owner: RunAs) -> int:
    """Whose it is. The agent of another node may be making the same one, and gives it to the owner in a moment."""
    due_s = time.monotonic() + MADE_WITHIN_S
    while (found := os.fstat(directory)).st_uid != owner.uid and found.st_uid == os.geteuid():
        if time.monotonic() > due_s:
            break
        time.sleep(MADE_WITHIN_S / 50.0)
    return found.st_uid


def _made(directory: int, name: str, path: str, owner: RunAs) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
        return False
    except FileNotFoundError:
        pass
    if os.fstat(directory).st_uid not in (os.geteuid(), owner.uid):
        raise LaunchError(f"{name} of {path} would be made in a directory of another user's: make it by hand")
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:  # By the agent of another node, since.
        return False
    return True


@contextlib.contextmanager
def acting_as(user: RunAs | None) -> Iterator[None]:
    """In this thread alone, files are used with the rights of `user` (None: our own). For a thread
    that does nothing else meanwhile. Raises LaunchError where the machine's kernel has no way."""
    if user is None:
        yield
        return
    own = os.getgroups()
    _set_groups(user.groups)
    try:
        _libc.setfsgid(user.gid)
        _libc.setfsuid(user.uid)
        if _libc.setfsuid(-1) != user.uid:
            raise LaunchError(f"cannot use files as user {user.uid}")
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())
        _set_groups(tuple(own))


def _set_groups(groups: tuple[int, ...]) -> None:
    """Of this thread: the C library's own call would change all threads."""
    number = _SYS_SETGROUPS.get(platform.machine())
    if number is None:
        raise LaunchError(f"unknown machine {platform.machine()}: cannot use files as another user")
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if _libc.syscall(number, len(groups), array) != 0:
        raise LaunchError(f"cannot take on a user's groups: {os.strerror(ctypes.get_errno())}")
