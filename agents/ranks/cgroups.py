"""A control group for each rank, where the kernel and our rights give us one (cgroup v2).

`<the agent's own group>/holdfast/<job>/<rank's life>`: whatever a rank leaves behind, in other
sessions and groups too, is found and ended there. The agent itself moves into a group beside
them where the job's limits ask for that. Where there is none (a container, an agent that is
not root), the reason is said once and process groups do alone. Called by the runtime.
"""

import contextlib
import os
import re
from pathlib import Path

from agents.core.policy import Limits
from controlplane.protocol.launch import RankRef

FOLDER, OWN = "holdfast", "agent"
HOST = "host"
_MOUNT = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .* - cgroup2 ")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class ControlGroups:
    """`reason`: why there are none, "" when there are."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.reason = ""
        self.unlimited = ""
        self._base: Path | None = None
        try:
            self._base = self._prepare()
        except OSError as error:
            self.reason = f"no control groups for jobs: {error}"

    def host(self, job_id: str) -> Path | None:
        """For the job's rank host, made if it is not there."""
        return self._make(job_id, HOST)

    def rank(self, ref: RankRef) -> Path | None:
        """For one life of a rank, made if it is not there."""
        return self._make(ref.job_id, _name(ref))

    def move(self, ref: RankRef, pid: int) -> None:
        """A rank that was born in its host's group goes to its own."""
        group = self.rank(ref)
        if group is not None:
            with contextlib.suppress(OSError):
                (group / "cgroup.procs").write_text(str(pid))

    def kill(self, ref: RankRef) -> bool:
        """End everything that is left of the rank; True: nothing is left (or there is no group)."""
        group = self._path(ref.job_id, _name(ref))
        if group is None or not group.exists():
            return True
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def forget(self, job_id: str) -> None:
        """Nothing of the job is left here. A group that still holds a process stays."""
        folder = self._path(job_id, "")
        if folder is None or not folder.is_dir():
            return
        for group in [*(entry for entry in folder.iterdir() if entry.is_dir()), folder]:
            with contextlib.suppress(OSError):
                group.rmdir()

    def _prepare(self) -> Path:
        if os.geteuid() != 0:
            raise PermissionError("the agent is not root")
        own = _own_group()
        base = own / FOLDER
        base.mkdir(exist_ok=True)
        if not (base / "cgroup.kill").exists():
            base.rmdir()
            raise FileNotFoundError("the kernel has no cgroup.kill (Linux 5.14)")
        wanted = self._controllers()
        if wanted:
            try:
                _enable(own, base, wanted)
            except OSError as error:
                self.unlimited = f"the limits of jobs are not kept by control groups: {error}"
        return base

    def _controllers(self) -> list[str]:
        pairs = (("memory", self._limits.memory_bytes), ("pids", self._limits.processes))
        return [name for name, limit in pairs if limit is not None]

    def _make(self, job_id: str, name: str) -> Path | None:
        job, group = self._path(job_id, ""), self._path(job_id, name)
        if job is None or group is None:
            return None
        try:
            if not job.exists():
                job.mkdir()
                self._limit(job)
            group.mkdir(exist_ok=True)
        except OSError:
            return None
        return group

    def _limit(self, job: Path) -> None:
        for file, limit in (("memory.max", self._limits.memory_bytes), ("pids.max", self._limits.processes)):
            if limit is not None and not self.unlimited:
                (job / file).write_text(str(limit))

    def _path(self, job_id: str, name: str) -> Path | None:
        return self._base / _UNSAFE.sub("_", job_id) / name if self._base is not None else None


def _name(ref: RankRef) -> str:
    return f"a{ref.attempt}-r{ref.replica}-i{ref.incarnation}-k{ref.rank}"


def _own_group() -> Path:
    """The agent's own group as a path. Raises OSError."""
    mine = next(
        (line[3:].strip() for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), ""
    )
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        found = _MOUNT.match(line)
        if found and mine:
            group = Path(found[2]) / os.path.relpath(mine, found[1])
            # An earlier life of the agent has moved into a group of its own below.
            return group.parent if group.name == OWN else group
    raise FileNotFoundError("no cgroup2 is mounted here")


def _enable(own: Path, base: Path, controllers: list[str]) -> None:
    """Controllers for the groups below; a group with processes of its own cannot give any, so the
    agent goes into one beside them. Raises OSError."""
    (own / OWN).mkdir(exist_ok=True)
    (own / OWN / "cgroup.procs").write_text("0")
    wish = " ".join(f"+{name}" for name in controllers)
    (own / "cgroup.subtree_control").write_text(wish)
    (base / "cgroup.subtree_control").write_text(wish)
