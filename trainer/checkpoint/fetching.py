"""A checkpoint of an object store as a directory of this machine, compared with its marker.

Called by `resume` on a node and by `examine` for the control plane; no torch, and nothing that
is fetched is parsed but the marker.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from trainer.checkpoint import manifest
from trainer.checkpoint.storage import storage_at
from trainer.errors import CheckpointFault

DOWNLOADS_AT_ONCE = 8


def fetch(address: str, root: Path, *, life: int) -> Path:
    """The checkpoint at `address` as a directory below `root`, compared once by those of one
    `life` (the attempt), and fetched where it is not there or differs; what else was fetched
    there is removed. Raises CheckpointFault, OSError, ValueError."""
    remote = storage_at(address)
    content = manifest.read_marker(remote)
    if content is None:
        raise CheckpointFault(f"{manifest.MARKER} is absent or no marker")
    if strangers := manifest.outside(content):
        raise CheckpointFault("; ".join(strangers))
    target = root / f"fetched-{content.digest}"
    with _alone(root / f"fetched-{content.digest}.lock") as lock:
        if target.is_dir() and (lock.read_text() == str(life) or manifest.verify(target).ok):
            lock.write_text(str(life))
            os.utime(target)  # It is in use: `staging.sweep` leaves it.
            return target
        draft = target.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for entry in content.files:
            (draft / entry.name).parent.mkdir(parents=True, exist_ok=True)
        try:
            with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
                list(pool.map(lambda entry: remote.download(entry.name, draft / entry.name), content.files))
        except FileNotFoundError as error:
            raise CheckpointFault(f"a file is missing: {error}") from error
        manifest.write_marker(draft, content)
        verdict = manifest.verify(draft)
        if not verdict.ok:
            shutil.rmtree(draft, ignore_errors=True)
            raise CheckpointFault("; ".join(verdict.faults))
        for old in root.glob("fetched-*"):
            if old.is_dir() and old != draft:
                shutil.rmtree(old, ignore_errors=True)
        os.replace(draft, target)
        lock.write_text(str(life))
    return target


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """One rank of this node at a time; a rank that dies lets go. Gives the file that is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path
