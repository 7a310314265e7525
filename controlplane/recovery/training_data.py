"""Opening the training data of a job on the server, for the undisturbed run. The only way to it.

`training.data` is anybody's text who may submit, and what the server shows of the run (how far its losses
are off) tells something of each byte that was read. So the server opens a file only where an
administrator has said that training data lies (HOLDFAST_DATA_ROOTS), without following a link
below that, and only what every user of the machine may read: jobs of several owners may keep data
there, and the server, often root, could read all of it. Never changes anything.
"""

import os
import stat
from contextlib import ExitStack

from django.conf import settings

from controlplane.checkpoints.places import MAX_PATH_CHARS, Outside, open_below
from controlplane.protocol.storage_checks import root_of

SUFFIXES = ("", ".bin", ".idx", ".json")
"""Of a text, or of the parts of an indexed dataset."""
SETTING = "HOLDFAST_DATA_ROOTS"
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def why_outside(path: str | None) -> str:
    """Why the server opens nothing there, by the text alone; empty where it may, or where the shipped
    text is trained on (None)."""
    if path is None:
        return ""
    roots: tuple[str, ...] = settings.DATA_ROOTS
    shown = f"the job's training data {path[:MAX_PATH_CHARS]!r}"
    if "\0" in path or "://" in path or len(path) > MAX_PATH_CHARS:
        return f"{shown} is no plain path of at most {MAX_PATH_CHARS} characters, and the server opens no other"
    root = root_of(path, roots)
    if root is not None and path.rstrip("/") != root:
        return ""
    known = f"below {' or '.join(roots)} only" if roots else "nowhere"
    return (
        f"the server opens training data {known}, and {shown} does not lie there; an administrator adds"
        f" its directory to {SETTING}"
    )


def open_data(path: str, held: ExitStack) -> dict[str, int]:
    """Descriptors of what is there of the data, by suffix, open for as long as `held` holds. A directory of the
    same name is no part of it. Raises Outside where there is nothing, or something that the server
    does not or cannot open."""
    if why := why_outside(path):
        raise Outside(why)
    try:
        found = _open_parts(path, held)
    except OSError as error:
        raise Outside(f"the server cannot open the job's training data {path}: {error.strerror}") from error
    if not found:
        raise Outside(f"the server finds no training data at {path}")
    return found


def _open_parts(path: str, held: ExitStack) -> dict[str, int]:
    root = root_of(path, settings.DATA_ROOTS)
    assert root is not None, "it lies below a root"
    *folders, name = (part for part in path[len(root) :].split("/") if part)
    folder = open_below(root, folders, held, for_all=True)
    found: dict[str, int] = {}
    for suffix in SUFFIXES:
        descriptor = _open_file(folder, name + suffix, shown=path + suffix)
        if descriptor is not None:
            found[suffix] = descriptor
            held.callback(os.close, descriptor)
    return found


def _open_file(folder: int, name: str, *, shown: str) -> int | None:
    """None where nothing is, or a directory."""
    try:
        # Opening a device may do something already, so it is looked at first.
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode):
            return None
        _check(about, shown)
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        _check(os.fstat(descriptor), shown)  # It may have become something else between the two.
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(about: os.stat_result, shown: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise Outside(f"{shown} is a link or no plain file, and the server opens neither as training data")
    if not about.st_mode & stat.S_IROTH:
        raise Outside(
            f"{shown} is not readable for everybody, and the server shows nothing of what others may"
            " not read; chmod o+r makes it so"
        )
