"""What lies on a node on its way to an object store and back, below `staging_root()`.

`<job>-<replica>.<incarnation>.<rank>/step_...` is what a rank uploads, `<job>/fetched-<digest>`
what the ranks of the node load. A rank that is killed takes nothing away: the next life of its
replica does, and what no rank has touched for a day goes with whichever starts on the node.
Nothing else that may lie there is touched.
"""

import contextlib
import os
import re
import shutil
import stat
import time
from pathlib import Path

from controlplane.protocol.launch import RankRef
from trainer.checkpoint.manifest import parse_name
from trainer.errors import ConfigInvalid

FORGOTTEN_S = 86400.0
"""Left by a job that has ended, or that is elsewhere now."""
_INCOMING = re.compile(r"^fetched-[0-9a-f]+(\.draft)?$")
_OUTGOING = re.compile(r"^(?P<job>.+)-(?P<replica>\d+)\.(?P<incarnation>\d+)\.\d+$")


def claim(root: Path) -> None:
    """Make it, for this user alone: it has a name that others can foresee. Raises ConfigInvalid where
    somebody else was there first, OSError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = root.stat(follow_symlinks=False)
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
        raise ConfigInvalid(f"{root} belongs to another user: remove it, or let HOLDFAST_STAGING_DIR name a place")


def outgoing(root: Path, ref: RankRef) -> Path:
    """Where this rank stages its saves."""
    return root / f"{ref.job_id}-{ref.replica}.{ref.incarnation}.{ref.rank}"


def incoming(root: Path, job_id: str) -> Path:
    """Where the node's ranks of a job fetch to."""
    return root / job_id


def sweep(root: Path, ref: RankRef) -> None:
    """At the start of a rank, whose agent has ended the older incarnations of its replica. Never
    raises: what stays is tried again by the next one."""
    for folder in sorted(root.glob("*/")):
        with contextlib.suppress(OSError):  # Another rank of the node is doing the same.
            _sweep_one(folder, ref)


def _sweep_one(folder: Path, ref: RankRef) -> None:
    life = _OUTGOING.match(folder.name)
    if life is None:
        going = [path for path in folder.iterdir() if _INCOMING.match(path.name) and _is_forgotten(path)]
    elif _is_older_incarnation(life, ref) or _is_forgotten(folder):
        going = [path for path in folder.iterdir() if parse_name(path.name)]
    else:
        return
    for path in going:
        shutil.rmtree(path, ignore_errors=True)
    if life is not None:
        folder.rmdir()


def _is_older_incarnation(found: re.Match[str], ref: RankRef) -> bool:
    """Incarnations count the lives of a replica over the whole job."""
    mine = found["job"] == ref.job_id and int(found["replica"]) == ref.replica
    return mine and int(found["incarnation"]) < ref.incarnation


def _is_forgotten(folder: Path) -> bool:
    return time.time() - folder.stat().st_mtime > FORGOTTEN_S
