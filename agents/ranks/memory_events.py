"""What the kernel counts of its OOM killer's work in the control group of a rank.

`memory.events` (version 2) of the nearest group that has one, or `memory.oom_control` (version 1): `oom_kill` is raised
before the process is sent its SIGKILL, so that whoever sees the end sees the count. A group may hold more than the
rank: each process that was counted explains one end, and what was counted before a process began explains none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agents.ranks.limits import group_of

PROC = Path("/proc")
UNLIMITED_BYTES = 1 << 60
"""A limit of version 1 that is none is the greatest number of pages that the kernel can write."""


@dataclass(frozen=True, slots=True)
class _Version:
    """`controller` as `limits.group_of` names its tree; where the count is, and where the limit."""

    controller: str
    events: str
    limit: str


_VERSIONS = (
    _Version("", "memory.events", "memory.max"),
    _Version("memory", "memory.oom_control", "memory.limit_in_bytes"),
)


class OomCounts:
    """For all ranks of the node: how many of each group's count are explained."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._explained: dict[Path, int] = {}

    def begin(self, pid: int) -> Callable[[], str]:
        """A process is watched from now on. Call what is returned when it has ended by SIGKILL, or nobody knows how:
        in words what the kernel counted since, "" where it counted nothing, or no group has a count."""
        found = self._counter(pid)
        if found is None:
            return lambda: ""
        group, version = found
        for gone in [other for other in self._explained if not other.exists()]:
            del self._explained[gone]
        self._explained[group] = _oom_kills(group / version.events) or 0
        return lambda: self._end(group, version)

    def _end(self, group: Path, version: _Version) -> str:
        count, before = _oom_kills(group / version.events), self._explained.get(group)
        if count is None or before is None or count <= before:
            return ""
        self._explained[group] = before + 1
        limit_bytes = _limit_bytes(group, version.limit)
        limit = f"limit {_words(limit_bytes)}" if limit_bytes is not None else "no limit"
        counted = f"{version.events} oom_kill {before} -> {count}, {limit}"
        return f"the kernel's OOM killer ended a process of its control group ({counted})"

    def _counter(self, pid: int) -> tuple[Path, _Version] | None:
        for version in _VERSIONS:
            try:
                group = group_of(self._proc / str(pid), version.controller)
            except (OSError, ValueError):
                continue
            for each in (group, *group.parents) if group is not None else ():
                if _oom_kills(each / version.events) is not None:
                    return each, version
        return None


def _oom_kills(file: Path) -> int | None:
    """None: there is no such count."""
    try:
        pairs = (line.split() for line in file.read_text().splitlines())
        return next((int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill"), None)
    except (OSError, ValueError):
        return None


def _limit_bytes(group: Path, name: str) -> int | None:
    """The tightest limit of the group and those above it; None: none has any."""
    found = []
    for each in (group, *group.parents):
        try:
            text = (each / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < UNLIMITED_BYTES:
            found.append(int(text))
    return min(found, default=None)


def _words(size_bytes: int) -> str:
    """`2 GiB`, `1.5 GiB`, `512 MiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes} bytes"
