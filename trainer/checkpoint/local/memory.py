"""The local tier in memory: a node's share on a tmpfs instead of a disk (as in Gemini, SOSP 2023).

A tmpfs outlives every process of the node and nothing more, so it is the copies on other
nodes that survive the node. What lies there is memory that training cannot have: before a
shard is written or taken in, there must be room for it and a reserve beside it, or the
kernel would sooner or later kill a rank for it. The rank host gives the memory back when
the job ends (`trainer.host`). Imports no torch.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import LocalTier
from trainer.errors import CheckpointFault

DEFAULT_ROOT = Path("/dev/shm")  # noqa: S108  Not predictable: below it the folder must be our own.
RESERVE_BYTES = 1 << 30
"""Stays free for training, beside what is written."""
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class _Names(NamedTuple):
    """What a version of cgroups calls a group's limit and what it holds (files), and how much
    of that it can give back, with the groups below it (a line of `memory.stat`)."""

    limit: str
    held: str
    reclaimable: str


V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = _Names("memory.max", "memory.current", "inactive_file")


def root_of(tier: LocalTier) -> Path:
    """The folder of the tier on this machine. `tier` must be wanted."""
    if tier.dir is not None:
        return Path(tier.dir)
    return DEFAULT_ROOT / f"holdfast-{os.geteuid()}"


def share_of(config: TrainerConfig, job_id: str, node: str) -> Path | None:
    """What this job keeps in this node's memory; None where it keeps nothing there."""
    tier = config.checkpoint.local
    return root_of(tier) / node / job_id if tier.medium == "memory" else None


class Memory:
    """Admits shards to one tmpfs. `reserve_bytes` stay free in the machine and in every cgroup
    of this process, as `proc` and `cgroups` show them."""

    def __init__(
        self, root: Path, *, reserve_bytes: int = RESERVE_BYTES, proc: Path = PROC, cgroups: Path = CGROUPS
    ) -> None:
        self._root, self._reserve_bytes, self._proc, self._cgroups = root, reserve_bytes, proc, cgroups

    def admit(self, nbytes: int) -> None:
        """Make the folder, ours alone, and see that `nbytes` fit. Raises CheckpointFault, OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        there = self._root.stat()
        if there.st_uid != os.geteuid():
            raise CheckpointFault(
                f"{self._root} belongs to another user: give checkpoint.local.dir a folder of its own"
            )
        if there.st_dev not in _tmpfs_devices(self._proc):
            raise CheckpointFault(
                f"{self._root} is on no tmpfs: leave checkpoint.local.dir out (/dev/shm), mount one there, "
                "or set checkpoint.local.medium to disk"
            )
        free = os.statvfs(self._root)
        for what, room in (
            (f"free on {self._root}", free.f_bavail * free.f_frsize),
            ("of memory available beyond the reserve", _available_bytes(self._proc) - self._reserve_bytes),
            *(
                (f"left in cgroup {group} beyond the reserve", room - self._reserve_bytes)
                for group, room in _cgroup_room(self._proc, self._cgroups)
            ),
        ):
            if room < nbytes:
                raise OSError(
                    errno.ENOSPC, f"a shard of {nbytes} bytes, but {max(0, room)} bytes {what}: keep or copy less"
                )


def _tmpfs_devices(proc: Path) -> set[int]:
    """Device numbers of the tmpfs that are mounted."""
    found = set()
    for line in (proc / "self/mountinfo").read_text().splitlines():
        place, _, kind = line.partition(" - ")
        if kind.startswith("tmpfs "):
            major, minor = place.split()[2].split(":")
            found.add(os.makedev(int(major), int(minor)))
    return found


def _available_bytes(proc: Path) -> int:
    """What the kernel can give without swapping."""
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise CheckpointFault(f"{proc}/meminfo says nothing of MemAvailable")


def _cgroup_room(proc: Path, cgroups: Path) -> Iterator[tuple[Path, int]]:
    """(group, bytes) of each of this process's cgroups that has a limit, in v2 and in v1."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, mine = line.split(":", 2)
        if not controllers:
            yield from _room(cgroups, mine, V2)
        elif "memory" in controllers.split(","):
            yield from _room(cgroups / controllers, mine, V1)


def _room(hierarchy: Path, mine: str, names: _Names) -> Iterator[tuple[Path, int]]:
    """Of the group `mine` and those above it. A container may see itself as the root."""
    folder = hierarchy / mine.lstrip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(hierarchy):
            return
        try:
            limit = (group / names.limit).read_text().strip()
            if limit != "max":  # In v1 no limit is a very large one.
                yield group, int(limit) - _held_bytes(group, names)
        except OSError:
            continue  # The root group of v2 has no limit, and not every group shows one.


def _held_bytes(group: Path, names: _Names) -> int:
    """What the group cannot give back: all but file pages that nobody has used lately."""
    statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int((group / names.held).read_text()) - int(statistics.get(names.reclaimable, 0))
