"""Where the limits that a node's policy sets for jobs are kept: control groups of version 2, of
version 1, or some of each (hybrid).

Version 2 has one tree, in which `cgroups` makes a group for each job; a controller that is not in
it may be mounted alone (version 1), and then the job has a group there too,
`<the agent's own group>/holdfast/<job>`. A limit that cannot be kept is a refusal: a job that was
to be limited never runs without. Called by `cgroups`.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.core.policy import Limits
from agents.errors import LaunchError

FOLDER, OWN = "holdfast", "agent"
PROC = Path("/proc/self")
MOST_GENERATIONS = 16
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)$")
MEND = (
    "give the agent, as root, a control group with that controller (Linux 5.14; systemd: Delegate=yes; a "
    "container: a writable cgroup file system), or take the limit out of the node's policy file"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: `key` in the policy, the controller that keeps it, and what is written where."""

    key: str
    controller: str
    file: str
    text: str
    old_file: str
    old_text: str


def asked(limits: Limits) -> Iterator[Limit]:
    """What the policy asks of control groups."""
    if limits.memory_bytes is not None:
        text = str(limits.memory_bytes)
        yield Limit("memory_bytes", "memory", "memory.max", text, "memory.limit_in_bytes", text)
    if limits.processes is not None:
        text = str(limits.processes)
        yield Limit("processes", "pids", "pids.max", text, "pids.max", text)
    if limits.cpus is not None:
        quota_us = max(1000, round(limits.cpus * 100_000))
        yield Limit("cpus", "cpu", "cpu.max", f"{quota_us} 100000", "cpu.cfs_quota_us", str(quota_us))


class Keeper:
    """Keeps the limits of jobs. `base`: of the groups of jobs in version 2, None where there are none,
    for the reason `why`."""

    def __init__(self, base: Path | None, why: str, *, proc: Path = PROC) -> None:
        self._base, self._why, self._proc = base, why, proc

    def keep(self, limits: Limits, job: str) -> tuple[Path, ...]:
        """Write them for the job, whose name is fit for a path; the groups of version 1 that its processes
        have to be in besides. Raises LaunchError."""
        groups = []
        for limit in asked(limits):
            try:
                group = self._keep(limit, job)
            except OSError as error:
                why = f"{error} ({self._why})" if self._why else f"{error}"
                raise LaunchError(f"limits.{limit.key} = {limit.text} cannot be kept here: {why}; {MEND}") from error
            groups += [group] if group is not None else []
        return tuple(groups)

    def missing(self, limits: Limits) -> str:
        """Why jobs will be refused; "" where all limits can be kept."""
        faults = []
        for limit in asked(limits):
            try:
                if not self._in_two(limit.controller):
                    group = _old_group(self._proc, limit.controller)
                    if not os.access(group, os.W_OK):
                        raise PermissionError(f"{group} is not the agent's to write")
            except OSError as error:
                faults.append(f"limits.{limit.key}: {error}")
        return "; ".join(faults)

    def forget(self, job: str) -> None:
        """Remove the job's groups of version 1; one that still holds a process stays."""
        for controller in ("memory", "pids", "cpu"):
            with contextlib.suppress(OSError):
                (_old_group(self._proc, controller) / FOLDER / job).rmdir()

    def _keep(self, limit: Limit, job: str) -> Path | None:
        if self._in_two(limit.controller):
            assert self._base is not None
            write(self._base / job / limit.file, limit.text)
            return None
        group = _old_group(self._proc, limit.controller) / FOLDER / job
        group.mkdir(parents=True, exist_ok=True)
        write(group / limit.old_file, limit.old_text)
        return group

    def _in_two(self, controller: str) -> bool:
        """The tree of version 2 has it, for groups below ours. Raises OSError where it has it and
        does not give it to us."""
        if self._base is None or controller not in _words(self._base.parent / "cgroup.controllers"):
            return False
        if controller not in _words(self._base / "cgroup.subtree_control"):
            _enable(self._base, controller)
        return True


def write(file: Path, text: str) -> None:
    """What the kernel offers; a file that is not there is not made. Raises OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def own_group(proc: Path = PROC) -> Path:
    """The agent's own group in the tree of version 2. Raises OSError."""
    group = group_of(proc, "")
    if group is None:
        raise FileNotFoundError("no cgroup2 is mounted here")
    # An earlier life of the agent has moved into a group of its own below.
    return group.parent if group.name == OWN else group


def _old_group(proc: Path, controller: str) -> Path:
    group = group_of(proc, controller)
    if group is None:
        raise FileNotFoundError(f"no control group has the controller {controller}")
    return group


def group_of(proc: Path, controller: str) -> Path | None:
    """That of a process (`proc`: its directory below /proc) in the tree of the controller, "" for that of version 2.
    In a container its own path may not be visible, and what is seen is its root. Raises OSError."""
    mine = None
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            mine = path
    seen = []
    for line in (proc / "mountinfo").read_text().splitlines():
        found = _MOUNT.match(line)
        if found is None or mine is None:
            continue
        root, mounted, kind, options = found.groups()
        if kind == "cgroup2" if not controller else (kind == "cgroup" and controller in options.split(",")):
            below = os.path.relpath(mine, root)
            group = Path(mounted) / below
            seen.append(Path(mounted) if below.startswith("..") or not group.is_dir() else group)
    # A tree may be mounted several times, for some to read only: the first that we may write, else the first.
    return next(
        (group for group in seen if os.access(group, os.W_OK) and not _is_read_only(group)), seen[0] if seen else None
    )


def _is_read_only(group: Path) -> bool:
    try:
        return bool(os.statvfs(group).f_flag & os.ST_RDONLY)
    except OSError:
        return True


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _is_ours(pid: str) -> bool:
    """The agent's process started it, or one that it started did."""
    for _ in range(MOST_GENERATIONS):
        if pid == str(os.getpid()):
            return True
        try:
            # The name, in brackets, may hold anything; the parent is the second word after it.
            pid = Path("/proc", pid, "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            return False
    return False


def _enable(base: Path, controller: str) -> None:
    """For the groups below; a group with processes of its own cannot give any, so the agent and what it
    has started go into one beside them. Raises OSError."""
    own = base.parent
    (own / OWN).mkdir(exist_ok=True)
    write(own / OWN / "cgroup.procs", "0")
    for pid in _words(own / "cgroup.procs"):
        if _is_ours(pid):
            with contextlib.suppress(ProcessLookupError):
                write(own / OWN / "cgroup.procs", pid)
    write(own / "cgroup.subtree_control", f"+{controller}")
    write(base / "cgroup.subtree_control", f"+{controller}")
