"""A fleet without processes: the ranks are the product's own cores, their agents are the test's.

Every rank runs `trainer.core` by way of the simulator's trainer, on a clock that never runs ahead of the real one: what
a view, an install, a broken exchange and a joiner mean is decided there and nowhere here. What stays of the test's own
is the device of it: commands are handed to ranks, and what ranks say goes into an agent's journal (`fake_agent`).
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from agents.core.relay import is_member
from controlplane.protocol import commands, frames
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import View
from controlplane.protocol.rank import StepReport, ViewInstalled
from controlplane.protocol.states import Phase
from controlplane.simulator.checkers import Checkers
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.process import Process, Rank
from controlplane.simulator.timing import Timing
from controlplane.simulator.trainer import Trainer
from tests.integration.backend.ending import end
from tests.integration.backend.fake_agent import FakeAgent
from trainer.core import effects as do

STEP_S = 0.05
TURN_S = 0.02
PAUSED_S = 0.1
STACK = "Thread 0x7f (most recent call first):\n  in all_reduce\n"


class ReportingTrainer(Trainer):
    """Of one job. Its ranks report steps and installs too, as `trainer.loop` does; nothing is saved."""

    def __init__(self, world: "World", launch: ReplicaLaunch) -> None:
        count = launch.config.training.global_batch // launch.config.training.micro_batch
        each_s = 3 * world.step_s / count
        timing = Timing(
            micro_batch_s=(each_s, each_s), exchange_s=(0.001, 0.002), fetch_s=(0.1, 0.2), setup_s=(0.05, 0.1),
            peer_notice_s=(0.01, 0.02),
        )  # fmt: skip
        self.checkers = Checkers(world.kernel, count)
        self._world = world
        super().__init__(world.kernel, self.checkers, world.said, timing)

    def _carry_out(self, process: Process, rank: Rank, effect: do.Effect) -> None:
        match effect:
            case do.Entered(epoch=epoch, step=step, recomputed=recomputed):
                self._world.said(rank, ViewInstalled(epoch, step, False, 0.01, recomputed))
            case do.CommitStep():
                self._world.said(rank, self._step(process, rank, effect))
        super()._carry_out(process, rank, effect)

    def _step(self, process: Process, rank: Rank, commit: do.CommitStep) -> StepReport:
        summed = self.groups[(process.attempt, commit.epoch)].batches[commit.step]
        speaks, last = rank.ref.rank == 0, rank.ref.rank == process.launch.world_size - 1
        return StepReport(
            step=commit.step,
            epoch=commit.epoch,
            step_time_s=self._world.step_s,
            tokens=64,
            micro_batches=commit.micro_batches,
            loss=4.0 - commit.step * 0.001 if last and not commit.keeps else None,
            grad_norm=1.0,
            parameter_hash=None if commit.keeps else f"hash-{commit.step}-{rank.ref.rank}",
            trained=tuple(sorted(batch for mine in summed.values() for batch in mine)) if speaks else (),
        )

    def _compute(self, process: Process, ask: do.Compute) -> None:
        if self._world.running:
            super()._compute(process, ask)
        else:
            self._kernel.after(PAUSED_S, self._again, process, ask, process.token)

    def _again(self, process: Process, ask: do.Compute, token: int) -> None:
        if process.token == token and process.able():
            self._compute(process, ask)

    def _saved(self, process: Process, step: int, lineage: list[int], epoch: int) -> None:
        """There is no storage that a server could read it back from."""


@dataclass(slots=True)
class Placed:
    """A rank, where it is. `admitted`: a view has had it; until then it hears of none, as from a real agent."""

    agent: FakeAgent
    rank: Rank
    trainer: ReportingTrainer
    admitted: bool = False


class World:
    """`running` False: no micro-batch ends, all else goes on."""

    def __init__(self, agents: list[FakeAgent], *, step_s: float = STEP_S) -> None:
        self.agents, self.step_s = agents, step_s
        self.kernel = Kernel(seed=1)
        self.ranks: dict[RankRef, Placed] = {}
        self.running = True
        self._trainers: dict[str, ReportingTrainer] = {}
        self._task: asyncio.Task[None] | None = None
        for agent in agents:
            agent.on_command = self.carry_out

    def start(self) -> None:
        """Connect everybody and let time pass."""
        for agent in self.agents:
            agent.start()
        self._task = asyncio.create_task(self._pass_time())

    async def stop(self) -> None:
        """End it all. What the cores did must have been right."""
        if self._task is not None:
            await end(self._task)
        for agent in self.agents:
            await agent.stop()
        found = [each for trainer in self._trainers.values() for each in trainer.checkers.violations]
        assert not found, found

    def carry_out(self, agent: FakeAgent, envelope: commands.CommandEnvelope) -> None:
        """What its agent does with one command."""
        here = [placed for placed in self.ranks.values() if placed.agent is agent]
        match envelope.body:
            case commands.StartRanks(launch=launch):
                self._start(agent, launch)
            case commands.DeliverView(view=view):
                for placed in here:
                    self._view(placed, view)
            case commands.DeliverInstall(install=install):
                for placed in here:
                    placed.trainer.see_install(placed.rank, install)
            case commands.CollectStacks() as asked:
                for ref in [placed.rank.ref for placed in here]:
                    if ref.replica == asked.replica and asked.rank in (-1, ref.rank):
                        agent.tell(frames.StacksCollected(ref, STACK, "py-spy", envelope.command_id, asked.look))
            case commands.StopRanks(replica=replica, incarnation=incarnation):
                for ref in [placed.rank.ref for placed in here]:
                    if replica in (-1, ref.replica) and incarnation in (-1, ref.incarnation):
                        self.end(ref, expected=True)

    def end(self, ref: RankRef, *, expected: bool = False, signal: int | None = 9) -> None:
        """The process is gone and its agent says so; its peers find out by themselves."""
        placed = self.ranks.pop(ref)
        placed.trainer.kill(placed.rank)
        placed.agent.ranks.pop(ref, None)
        placed.agent.tell(frames.RankExited(ref, None, signal, expected, "last words"))

    def kill_replica(self, index: int) -> None:
        """SIGKILL of all its ranks."""
        for ref in [ref for ref in self.ranks if ref.replica == index]:
            self.end(ref)

    def said(self, rank: Rank, report: Any) -> None:
        """A rank's line reaches its agent."""
        placed = self.ranks.get(rank.ref)
        if placed is not None:
            placed.agent.say(rank.ref, report)

    def _start(self, agent: FakeAgent, launch: ReplicaLaunch) -> None:
        trainer = self._trainers.setdefault(launch.job_id, ReportingTrainer(self, launch))
        for rank in trainer.spawn(launch, agent.name, lambda rank: agent.tell(frames.RankJoined(rank.ref, 0.1))):
            self.ranks[rank.ref] = Placed(agent, rank, trainer)
            agent.tell(frames.RankStarted(rank.ref, 4242, rank.device))

    def _view(self, placed: Placed, view: View) -> None:
        ref = placed.rank.ref
        if is_member(ref, view):
            placed.admitted = True
            placed.trainer.see_view(placed.rank, view)
        elif placed.admitted and not view.waits(ref.replica, ref.incarnation):
            self.end(ref, expected=True)

    async def _pass_time(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            # Not by how long the turn took: a machine that is busy would get all its steps at once afterwards.
            self.kernel.run(self.kernel.now_s + TURN_S)
            for placed in self.ranks.values():
                process = placed.trainer.process_of(placed.rank)
                phase = process.phase() if process.epoch or process.interrupted() else Phase.PARKED
                placed.agent.set_rank(placed.rank.ref, placed.rank.device, phase, step=process.committed)
