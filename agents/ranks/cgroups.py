"""A control group for each rank, where the kernel and our rights give us one (cgroup v2), and the
limits of jobs (`limits`), without which no job starts that is to have them.

`<the agent's own group>/holdfast/<job>/<rank's life>`: whatever a rank leaves behind, in other
sessions and groups too, is found and ended there. The agent itself moves into a group beside
them where the job's limits ask for that. Where there is none (a container, an agent that is
not root), the reason is said once and process groups do alone. Called by the runtime.
"""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from agents.core.policy import Limits
from agents.errors import LaunchError
from agents.ranks.limits import FOLDER, PROC, Keeper, asked, own_group, write
from agents.ranks.memory_events import OomCounts
from controlplane.protocol.launch import RankRef

HOST = "host"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class ControlGroups:
    """`reason`: why there are none, "" when there are. `limits` gives the policy's limits of now."""

    def __init__(self, limits: Callable[[], Limits], *, proc: Path = PROC) -> None:
        self._limits, self._proc = limits, proc
        self.reason = ""
        self._base: Path | None = None
        try:
            self._base = self._prepare()
        except OSError as error:
            self.reason = f"no control groups for jobs: {error}"
        self._keeper = Keeper(self._base, self.reason, proc=proc)
        self.ooms = OomCounts()

    @property
    def unlimited(self) -> str:
        """Why the limits of now cannot be kept, so that jobs are refused; "" where they can."""
        return self._keeper.missing(self._limits())

    def host(self, job_id: str) -> tuple[Path, ...]:
        """For the job's rank host, made where they are not there. Raises LaunchError."""
        return self._all(job_id, HOST)

    def rank(self, ref: RankRef) -> tuple[Path, ...]:
        """For one life of a rank, made where they are not there. Raises LaunchError."""
        return self._all(ref.job_id, _name(ref))

    def before_fork(self, job_id: str, host_pid: int) -> None:
        """A rank is born in the groups of its host, which may have begun before there was such a limit: those
        of now are written, and the host is in their groups of version 1. Raises LaunchError."""
        own = self._path(job_id, HOST)
        for group in self._all(job_id, HOST):
            try:
                if group != own:
                    write(group / "cgroup.procs", str(host_pid))
            except OSError as error:
                raise LaunchError(f"the rank host cannot enter {group}, and so no rank of it: {error}") from error

    def move(self, ref: RankRef, pid: int) -> None:
        """A rank that was born in its host's group goes to its own."""
        group = self._make(ref.job_id, _name(ref))
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
        self._keeper.forget(_UNSAFE.sub("_", job_id))
        folder = self._path(job_id, "")
        if folder is None or not folder.is_dir():
            return
        for group in [*(entry for entry in folder.iterdir() if entry.is_dir()), folder]:
            with contextlib.suppress(OSError):
                group.rmdir()

    def _prepare(self) -> Path:
        if os.geteuid() != 0:
            raise PermissionError("the agent is not root")
        base = own_group(self._proc) / FOLDER
        base.mkdir(exist_ok=True)
        if not (base / "cgroup.kill").exists():
            base.rmdir()
            raise FileNotFoundError("the kernel has no cgroup.kill (Linux 5.14)")
        return base

    def _all(self, job_id: str, name: str) -> tuple[Path, ...]:
        group = self._make(job_id, name)
        # At each start: what could not be written for an earlier process may be mended, or the policy be new.
        limits = self._limits()
        if group is None and self._base is not None and any(asked(limits)):
            raise LaunchError(f"the group of {name} cannot be made below {self._base}, and without it it has no limits")
        kept = self._keeper.keep(limits, _UNSAFE.sub("_", job_id))
        return kept if group is None else (group, *kept)

    def _make(self, job_id: str, name: str) -> Path | None:
        job, group = self._path(job_id, ""), self._path(job_id, name)
        if job is None or group is None:
            return None
        try:
            job.mkdir(parents=True, exist_ok=True)
            group.mkdir(exist_ok=True)
        except OSError:
            return None
        return group

    def _path(self, job_id: str, name: str) -> Path | None:
        return self._base / _UNSAFE.sub("_", job_id) / name if self._base is not None else None


def _name(ref: RankRef) -> str:
    return f"a{ref.attempt}-r{ref.replica}-i{ref.incarnation}-k{ref.rank}"
