"""Ranks without processes: they join, flush, install, commit steps, die, catch up.

All of a job's ranks over all fake agents, in step as the two-phase protocol keeps them.
"""

import asyncio
from dataclasses import dataclass

from controlplane.protocol import commands, frames
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import Flush, Install, View
from controlplane.protocol.rank import CaughtUp, OuterError, StepReport, TrainingDone, ViewInstalled
from controlplane.protocol.states import Phase
from tests.integration.backend.ending import end
from tests.integration.backend.fake_agent import FakeAgent

TICK_S = 0.05
CATCH_UP_STEPS = 3


@dataclass(slots=True)
class FakeRank:
    """One told process."""

    agent: FakeAgent
    ref: RankRef
    launch: ReplicaLaunch
    device_index: int
    view: View | None = None
    flushed_epoch: int = 0
    epoch: int = 0


class World:
    """`committed` steps of the job; `rate` steps a tick (0 stands still)."""

    def __init__(self, agents: list[FakeAgent]) -> None:
        self.agents = agents
        self.ranks: dict[RankRef, FakeRank] = {}
        self.install: Install | None = None
        self.job_id = ""
        self.committed = 0
        self.total = 10_000
        self.joined_at: dict[int, int] = {}
        self.running = True
        self._task: asyncio.Task[None] | None = None
        for agent in agents:
            agent.on_command = self.carry_out

    def start(self) -> None:
        """Connect everybody and let time pass."""
        for agent in self.agents:
            agent.start()
        self._task = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """End it all."""
        if self._task is not None:
            await end(self._task)
        for agent in self.agents:
            await agent.stop()

    def carry_out(self, agent: FakeAgent, envelope: commands.CommandEnvelope) -> None:
        """What the agent does with one order."""
        match envelope.body:
            case commands.StartRanks(launch=launch):
                self._start(agent, launch)
            case commands.DeliverView(view=view):
                self._view(agent, view)
            case commands.DeliverInstall(install=install):
                self._install(agent, install)
            case commands.CollectStacks():
                self._look(agent, envelope.command_id, envelope.body)
            case commands.StopRanks(replica=replica, incarnation=incarnation):
                for ref in [r for r in self.ranks if self.ranks[r].agent is agent]:
                    if replica in (-1, ref.replica) and incarnation in (-1, ref.incarnation):
                        self.end(ref, expected=True)

    def _look(self, agent: FakeAgent, command_id: str, asked: commands.CollectStacks) -> None:
        for ref in [r for r, rank in self.ranks.items() if rank.agent is agent]:
            if ref.replica == asked.replica and asked.rank in (-1, ref.rank):
                text = "Thread 0x7f (most recent call first):\n  in all_reduce\n"
                agent.tell(frames.StacksCollected(ref, text, "py-spy", command_id, asked.look))

    def _start(self, agent: FakeAgent, launch: ReplicaLaunch) -> None:
        if launch.job_id != self.job_id:
            self.job_id, self.committed, self.install = launch.job_id, 0, None
            self.joined_at.clear()
        for placement in launch.ranks:
            ref = RankRef(launch.job_id, launch.attempt, launch.replica, launch.incarnation, placement.rank)
            self.ranks[ref] = FakeRank(agent, ref, launch, placement.device_index)
            agent.set_rank(ref, placement.device_index, Phase.PARKED)
            agent.tell(frames.RankStarted(ref, 4242, placement.device_index))
            agent.tell(frames.RankJoined(ref, 0.1))
        self.total = launch.config.training.steps

    def _view(self, agent: FakeAgent, view: View) -> None:
        roles = {(m.replica, m.incarnation): m.role for m in view.members}
        for rank in [r for r in self.ranks.values() if r.agent is agent]:
            ref = rank.ref
            role = roles.get((ref.replica, ref.incarnation))
            if role is None:
                self.end(ref, expected=True)
                continue
            rank.view = view
            if rank.flushed_epoch >= view.epoch:
                continue
            rank.flushed_epoch = view.epoch
            self.install = None
            agent.set_rank(ref, rank.device_index, Phase.VIEW_CHANGE, step=self.committed)
            who = (ref.replica, ref.incarnation, ref.rank)
            agent.say(ref, Flush(ref.job_id, ref.attempt, view.epoch, *who, self.committed, False, role))

    def _install(self, agent: FakeAgent, install: Install) -> None:
        for rank in [r for r in self.ranks.values() if r.agent is agent and r.view is not None]:
            if rank.view is None or rank.view.epoch != install.epoch or rank.epoch >= install.epoch:
                continue
            rank.epoch = install.epoch
            agent.set_rank(rank.ref, rank.device_index, Phase.COMPUTE, step=install.step)
            agent.say(rank.ref, ViewInstalled(install.epoch, install.step, False, 0.01))
            if rank.ref.replica not in install.contributors:
                self.joined_at.setdefault(rank.ref.replica, self.committed)
        self.install = install

    def end(self, ref: RankRef, *, expected: bool = False, signal: int | None = 9) -> None:
        """The process is gone and its agent says so."""
        rank = self.ranks.pop(ref)
        rank.agent.ranks.pop(ref, None)
        rank.agent.tell(frames.RankExited(ref, None, signal, expected, "last words"))

    def kill_replica(self, index: int) -> None:
        """SIGKILL of all its ranks; the others' exchange fails."""
        for ref in [r for r in self.ranks if r.replica == index]:
            self.end(ref)
        self.joined_at.pop(index, None)
        install, self.install = self.install, None
        for rank in self.ranks.values():
            if install is not None:
                rank.agent.say(rank.ref, OuterError(install.epoch, self.committed, "connection closed by peer"))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.running and self.install is not None and self.committed < self.total:
                self._step(self.install)

    def _step(self, install: Install) -> None:
        members = [r for r in self.ranks.values() if r.epoch == install.epoch]
        wanted = {m.replica for r in members[:1] if r.view for m in r.view.members}
        if not members or {r.ref.replica for r in members} != wanted:
            return
        contributing = sorted(wanted - set(self.joined_at))
        launch = members[0].launch
        count = launch.config.training.global_batch // launch.config.training.micro_batch
        step, self.committed = self.committed, self.committed + 1
        for rank in members:
            mine: tuple[int, ...] = ()
            if rank.ref.replica in contributing:
                position = contributing.index(rank.ref.replica)
                mine = tuple(range(position, count, len(contributing)))
            rank.agent.set_rank(rank.ref, rank.device_index, Phase.COMPUTE, step=self.committed)
            last = rank.ref.rank == rank.launch.world_size - 1
            rank.agent.say(
                rank.ref,
                StepReport(
                    step, install.epoch, TICK_S, 64, mine, 4.0 - step * 0.001 if last else None, 1.0,
                    f"hash-{step}-{rank.ref.rank}",
                ),
            )  # fmt: skip
            if self.committed >= self.total:
                rank.agent.say(rank.ref, TrainingDone(self.committed))
        self._catch_up(members)

    def _catch_up(self, members: list[FakeRank]) -> None:
        for replica, since in list(self.joined_at.items()):
            if self.committed - since < CATCH_UP_STEPS:
                continue
            del self.joined_at[replica]
            for rank in [r for r in members if r.ref.replica == replica]:
                rank.agent.say(rank.ref, CaughtUp(rank.epoch, self.committed, CATCH_UP_STEPS, 0.1, 1000, 0))
