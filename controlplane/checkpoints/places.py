"""Where a job may keep checkpoints, and opening one there. The only way of the server to a
directory that a rank has named.

A path is compared twice. When it is reported: with the directory that the server itself gave
the job, by its text. When it is used: with that again and with the roots of the settings, and
it is opened from the root on, name by name, without following a link, so that what was put in
its place meanwhile leads nowhere. Never creates or changes anything.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.conf import settings

from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Attempt
from controlplane.jobs.numbers import LOCAL_KIND, spec_of
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.storage_checks import root_of
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared

SCHEME = "://"
MAX_PATH_CHARS = 1024
MAX_DEPTH = 8
"""Of a directory below its job's; a framework of somebody's own may keep folders of folders."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}")
_LOCAL = re.compile(rf"{LOCAL_KIND}:step_\d{{8,19}}-e\d{{1,19}}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Outside(Exception):
    """A path that a job may not name. The message is for people."""


_ATTEMPT: Prepared[Attempt] = Prepared(
    lambda job, number: Attempt.objects.filter(job_id=job, number=number), job=TEXT, number=NUMBER
)


def is_remote(path: str) -> bool:
    """On an object store: not to be read from here within a sweep."""
    return SCHEME in path


def own_program(row: Checkpoint) -> bool:
    """The job runs a program of its own: what that writes is read as bytes and never loaded."""
    return spec_of(row.job).spec.entrypoint is not None


def why_not_ours(attempt: Attempt, said: CheckpointReport) -> str:
    """Empty where the reported path is one of the attempt's own; else why it is not."""
    if said.kind == LOCAL_KIND or said.path.startswith(f"{LOCAL_KIND}:"):
        local = spec_of(attempt.job).spec.checkpoint.local
        known = said.kind == LOCAL_KIND and _LOCAL.fullmatch(said.path) and local.wanted
        return "" if known else f"{said.path[:MAX_PATH_CHARS]!r} is no checkpoint of a local tier that the job has"
    return _why_outside(said.path, attempt.checkpoint_dir, own_program=spec_of(attempt.job).spec.entrypoint is not None)


def why_not_readable(row: Checkpoint) -> str:
    """Empty where a stored path is still one of its job's and below a root of the settings."""
    attempt = _ATTEMPT.first(job=row.job_id, number=row.attempt)
    if attempt is None:
        return f"attempt {row.attempt} of its job is not known"
    if why := _why_outside(row.path, attempt.checkpoint_dir, own_program=own_program(row)):
        return why
    if root_of(row.path, settings.CHECKPOINT_ROOTS) is None:
        return f"{row.path} lies below none of the server's checkpoint roots (HOLDFAST_CHECKPOINT_ROOTS)"
    return ""


@contextmanager
def opened(row: Checkpoint) -> Iterator[int]:
    """A descriptor of the directory of a checkpoint on a file system. Raises Outside, OSError."""
    if why := why_not_readable(row):
        raise Outside(why)
    root = root_of(row.path, settings.CHECKPOINT_ROOTS)
    assert root is not None, "it lies below a root"
    with contextlib.ExitStack() as held:
        yield open_below(root, [name for name in row.path[len(root) :].split("/") if name], held)


def open_below(root: str, names: Sequence[str], held: contextlib.ExitStack, *, for_all: bool = False) -> int:
    """A descriptor of the directory that `names` lead to from `root`, open for as long as `held` holds;
    no link is followed. `for_all`: every user of the machine may pass through the directories below the
    root. Raises Outside, OSError."""
    # The root is the administrator's word, links in it included; what lies below it is anybody's.
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, folder)
    for name in names:
        where = f"{name} in {'/'.join((root, *names))}"
        if name in ("", ".", "..") or "/" in name:
            raise Outside(f"{where} is no name of a directory")
        try:
            folder = os.open(name, _FOLDER, dir_fd=folder)
        except NotADirectoryError as error:
            raise Outside(f"{where} is a link or no directory, and is not followed") from error
        held.callback(os.close, folder)
        if for_all and not os.fstat(folder).st_mode & stat.S_IXOTH:
            raise Outside(f"{where} is a directory that not everybody may enter; chmod o+x makes it one")
    return folder


def _why_outside(path: str, home: str, *, own_program: bool) -> str:
    """Names in `path` below `home`: one of the built-in trainer's, a few of another program's."""
    if len(path) > MAX_PATH_CHARS:
        return f"its path has {len(path)} characters, {MAX_PATH_CHARS} at most"
    if not path.startswith(f"{home}/"):
        return f"{path!r} does not lie in the job's own directory, {home}"
    names = path[len(home) + 1 :].split("/")
    if not all(_NAME.fullmatch(name) for name in names) or len(names) > (MAX_DEPTH if own_program else 1):
        return f"{path!r} is no name of a checkpoint in {home}"
    return ""
