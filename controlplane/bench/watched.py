"""What processes cost, read from /proc, and what they count, read from their /metrics.

A service is its first process and all below it; processor time of those that ended meanwhile is in their parent's
sum, so that none is lost. Memory is proportional (PSS) where the kernel gives it: pages that several share count
once in all.
"""

import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.bench.figures import Series, grown, read_figures

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
READ_TIMEOUT_S = 10.0
_PARENT, _CPU = 1, slice(11, 15)


@dataclass(frozen=True, slots=True)
class Use:
    """Since it began, and now; `pid` of its first process."""

    pid: int
    cpu_s: float
    memory_bytes: int


def uses(first: Mapping[str, int]) -> dict[str, Use]:
    """Of each service, by the pid of its first process; one that is gone is left out."""
    table = _processes()
    below: dict[int, list[int]] = {}
    for pid, fields in table.items():
        below.setdefault(int(fields[_PARENT]), []).append(pid)
    found = {}
    for name, pid in first.items():
        if pid in table:
            tree = _tree(pid, below)
            cpu_s = sum(sum(map(int, table[each][_CPU])) for each in tree) * TICK_S
            found[name] = Use(pid, cpu_s, sum(map(_memory_bytes, tree)))
    return found


def cores(before: Mapping[str, Use], after: Mapping[str, Use], elapsed_s: float) -> dict[str, float]:
    """Of a core, on average between two readings."""
    return {name: (use.cpu_s - before[name].cpu_s) / elapsed_s for name, use in after.items() if name in before}


def ended(before: Mapping[str, Use], after: Mapping[str, Use]) -> list[str]:
    """Names of the services whose first process was not the same at both readings: it is gone, or another."""
    return [name for name, use in before.items() if name not in after or after[name].pid != use.pid]


def spent_ms(before: Mapping[str, Use], after: Mapping[str, Use], number: int) -> dict[str, float]:
    """Milliseconds of a core that each service took between two readings for one of `number`; of one that was started
    between them, all that it took, its start included."""
    if number <= 0:
        return {}
    old = {name: use.cpu_s for name, use in before.items() if (seen := after.get(name)) and seen.pid == use.pid}
    return {name: 1e3 * (use.cpu_s - old.get(name, 0.0)) / number for name, use in after.items()}


def scrape(urls: Mapping[str, str]) -> dict[str, dict[Series, float]]:
    """What each process counts; one that does not answer is left out."""
    found = {}
    for name, url in urls.items():
        try:
            with urllib.request.urlopen(url, timeout=READ_TIMEOUT_S) as answer:  # noqa: S310 - checked by `run`
                found[name] = read_figures(answer.read().decode(errors="replace"))
        except (OSError, urllib.error.URLError):
            continue
    return found


def grew(
    before: Mapping[str, Mapping[Series, float]], after: Mapping[str, Mapping[Series, float]]
) -> dict[Series, float]:
    """All processes together."""
    whole: dict[Series, float] = {}
    for name, figures in after.items():
        for key, value in grown(before.get(name, {}), figures).items():
            whole[key] = whole.get(key, 0.0) + value
    return whole


def _processes() -> dict[int, list[str]]:
    """Fields of /proc/<pid>/stat behind the name, by pid."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
    return found


def _tree(pid: int, below: Mapping[int, list[int]]) -> list[int]:
    found = [pid]
    for each in found:
        found.extend(below.get(each, ()))
    return found


def _memory_bytes(pid: int) -> int:
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0
