"""Keeping a checkpoint where retention does not reach: by hard links, or a copy where there are none.

Called for the pinned checkpoint of an incident. Links are made name by name from the opened
directory, so that none is followed; a copy is made in the sandbox (`copying`).
"""

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

from controlplane.checkpoints import places
from controlplane.checkpoints.copying import MAX_DEPTH
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.verify import MAX_FILES, MAX_MARKER_BYTES
from controlplane.runtime.sandbox import service
from controlplane.runtime.sandbox.plan import Limits
from controlplane.runtime.sandbox.service import Task

COPY_LIMIT_S = 40.0
OPEN_FOLDER = 0o755
"""Of what is kept: the sandbox reads it as another user. The folder around it is the server's alone."""


def keep(row: Checkpoint, target: Path) -> None:
    """At `target`, which is made. Raises places.Outside, and OSError where it cannot be kept; nothing
    is left there then."""
    with places.opened(row) as source:
        try:
            target.mkdir(parents=True)
            target.chmod(OPEN_FOLDER)
            if not _linked(source, target):
                shutil.rmtree(target)
                target.mkdir()
                target.chmod(OPEN_FOLDER)
                _copy(source, target, max_bytes=row.bytes + MAX_MARKER_BYTES)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise


def _linked(source: int, target: Path) -> bool:
    """All of it, or False: it lies on another file system, or is somebody else's."""
    try:
        _link(source, target, left=MAX_FILES, depth=0)
    except PermissionError:
        return False
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _link(source: int, target: Path, *, left: int, depth: int) -> int:
    """Returns how many names of `left` are left. Raises places.Outside, OSError."""
    for name in os.listdir(source):
        left -= 1
        about = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode) and depth < MAX_DEPTH and left > 0:
            (target / name).mkdir()
            (target / name).chmod(OPEN_FOLDER)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=source)
            try:
                left = _link(below, target / name, left=left, depth=depth + 1)
            finally:
                os.close(below)
            continue
        if stat.S_ISREG(about.st_mode) and left > 0:
            os.link(name, target / name, src_dir_fd=source, follow_symlinks=False)
            about = (target / name).lstat()  # It may have become something else between the two.
        if not stat.S_ISREG(about.st_mode) or left <= 0:
            raise places.Outside(f"{name} is a link or no plain file, or there are more than {MAX_FILES}")
    return left


def _copy(source: int, target: Path, *, max_bytes: int) -> None:
    if (uid := service.own_uid()) is not None:
        os.chown(target, uid, -1)
    writable = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as place:
            task = Task(
                module="controlplane.checkpoints.copying",
                arguments=["{in0}", "{keep}", "--max-bytes", str(max_bytes)],
                place=Path(place),
                inputs=[source],
                writable=writable,
                limits=Limits(wall_s=COPY_LIMIT_S, disk_bytes=max_bytes),
            )
            if code := service.run(task):
                raise OSError(service.why_not_run(Path(place)) or f"it was not copied: {service.ended(code)}")
    finally:
        os.close(writable)
