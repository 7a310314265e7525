"""Starts a job's processes in the job's own place, as its own user, in its own control group.

Joins the node's policy (`users`), the job's directories (`places`), its log files, its socket
(`socket`) and its control groups (`cgroups`) for the runtime, which carries the core's effects
out through here. It decides nothing: whether a job may start was asked before.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from agents.core import effects as fx
from agents.core import events as ev
from agents.core.policy import AGENT, Policy
from agents.core.state import Rank
from agents.errors import LaunchError
from agents.log import note
from agents.ranks import debug_client
from agents.ranks.cgroups import ControlGroups
from agents.ranks.hosts import HostKeeper
from agents.ranks.launch import Standing
from agents.ranks.logs import LogFiles
from agents.ranks.places import Place, Places
from agents.ranks.socket import RankServer
from agents.ranks.spawn import find_unborn, spawn_rank
from agents.ranks.users import resolve, separates
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import ForkRank


class Starter:
    """One for the agent. `policy` gives the rules of now."""

    def __init__(
        self, policy: Callable[[], Policy], *, state_dir: Path, places: Places, logs: LogFiles, ranks: RankServer
    ) -> None:
        self._policy = policy
        self._state_dir = state_dir
        self._places = places
        self._logs = logs
        self._ranks = ranks
        self.groups = ControlGroups(lambda: policy().limits)

    def reopen(self, job_ids: Iterable[str]) -> None:
        """After a start of the agent: listen again for jobs that have processes here, and remove
        what others left. Raises OSError."""
        self._places.open()
        who = "each job's own user" if separates() and self._policy().users.default != AGENT else "the agent's own user"
        note("how ranks run", user=who, own_groups=self.groups.reason or "yes", limits=self.groups.unlimited or "kept")
        kept = set(job_ids)
        self._places.forget_all_but(kept)
        for job_id in kept:
            place = self._places.known(job_id)
            if place is not None:
                try:
                    debug_client.tidy(place.debug_servers)
                    self._ranks.open(job_id, place)
                except OSError as error:
                    note("a job's ranks cannot reach this agent", job=job_id, error=error)

    def known(self, job_id: str) -> Place | None:
        """The job's place, if it has one."""
        return self._places.known(job_id)

    def debug_servers(self, job_id: str) -> Path:
        """Where the debug servers of the job's ranks are, if they are."""
        return self._places.debug_servers(job_id)

    def standing(self, owner: str, *, cgroups: tuple[Path, ...] = (), home: Path | None = None) -> Standing:
        """As whom the owner's processes start. Raises LaunchError."""
        policy = self._policy()
        return Standing(
            user=resolve(policy, owner, state_dir=self._state_dir),
            home=str(home or "/"),
            inherit=policy.env.inherit,
            cgroups=cgroups,
            open_files=policy.limits.open_files,
        )

    def start_host(self, hosts: HostKeeper, job_id: str, owner: str) -> None:
        """The job's rank host, or why there is none as an event."""
        try:
            place = self._open(job_id, owner)
            hosts.start(job_id, place, self.standing(owner, cgroups=self.groups.host(job_id), home=place.home))
        except LaunchError as error:
            hosts.failed(job_id, error)

    def fork(self, hosts: HostKeeper, order: ForkRank) -> None:
        """Ask the job's host for the rank: with the socket and the log that are the job's own."""
        ref, log_path = order.ref, self._logs.rank(order.ref)
        try:
            place = self._places.known(ref.job_id)
            if place is None:
                raise LaunchError(f"the directory of {ref.job_id} is gone from {self._places.root}")
            if (host_pid := hosts.pid(ref.job_id)) is not None:
                self.groups.before_fork(ref.job_id, host_pid)
            os.close(self._logs.create(log_path, place))
        except LaunchError as error:
            hosts.not_asked(ref, error)
            return
        hosts.send(
            ref.job_id, msgspec.structs.replace(order, log_path=str(log_path), agent_socket=str(place.agent_socket))
        )

    def spawn(self, request: fx.Spawn) -> ev.RankForkedHere | ev.RankSpawnFailed:
        """A rank of a program of the job's own."""
        ref, owner = request.ref, request.launch.user
        try:
            place = self._open(ref.job_id, owner)
            standing = self.standing(owner, cgroups=self.groups.rank(ref), home=place.home)
            log = self._logs.create(self._logs.rank(ref), place)
        except LaunchError as error:
            return ev.RankSpawnFailed(now_s=time.monotonic(), ref=ref, error=str(error))
        try:
            return spawn_rank(request, log=log, agent_socket=str(place.agent_socket), standing=standing)
        finally:
            os.close(log)

    def find_unborn(self, ref: RankRef) -> ev.RankForkedHere | ev.RankSpawnFailed:
        """The agent was killed between starting a process and writing that down."""
        place = self._places.known(ref.job_id)
        return find_unborn(ref, place.uid if place is not None else os.geteuid())

    def adopt(self, rank: Rank | None, pid: int) -> Callable[[], str]:
        """A forked rank was born in its host's control group: it gets its own. Returns what tells at its end of the
        OOM killer there (`OomCounts.begin`)."""
        if rank is not None and rank.launch.entrypoint is None:
            self.groups.move(rank.ref, pid)
        return self.groups.ooms.begin(pid)

    def tidy(self, busy: frozenset[str]) -> None:
        """Forget the places of jobs of which nothing is left here."""
        for job_id in self._ranks.jobs - busy:
            self._ranks.shut(job_id)
            self._places.forget(job_id)
            self.groups.forget(job_id)

    def _open(self, job_id: str, owner: str) -> Place:
        user = resolve(self._policy(), owner, state_dir=self._state_dir)
        place = self._places.prepare(job_id, user)
        try:
            self._ranks.open(job_id, place)
        except OSError as error:
            raise LaunchError(f"cannot listen at {place.agent_socket}: {error.strerror}") from error
        return place
