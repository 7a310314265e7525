"""What goes wrong: kinds, and a schedule drawn from the seed."""

import random
from enum import StrEnum

from agents.core.effects import Effect
from agents.core.events import Tick
from controlplane.simulator.agent import Agent
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.network import Network
from controlplane.simulator.process import Process
from controlplane.simulator.server import Server
from controlplane.simulator.trainers import Trainers

QUIET_BEFORE_S = 15.0


class Fault(StrEnum):
    """Kinds of faults. Two at once and faults during recovery come from the schedule."""

    RANK_KILL = "rank_kill"
    RANK_HANG = "rank_hang"
    RANK_PAUSE = "rank_pause"
    NODE_LOSS = "node_loss"
    NODE_REBOOT = "node_reboot"
    NODE_CUT = "node_cut"
    NOISE = "noise"
    BACKEND_PAUSE = "backend_pause"
    DEVICE_LOST = "device_lost"
    XID_FATAL = "xid_fatal"
    EXCHANGE_BLIP = "exchange_blip"
    BAD_START = "bad_start"
    AGENT_RESTART = "agent_restart"
    AGENT_AWAY = "agent_away"
    DISK_FULL = "disk_full"
    WARM_REBOOT = "warm_reboot"
    AGENT_STILL = "agent_still"
    NODE_STILL = "node_still"


STILLS = (Fault.AGENT_STILL, Fault.NODE_STILL)
"""Drawn by themselves, so that a seed's other faults are the same without them."""


class Faults:
    """Breaks things, on schedule and right after decisions."""

    def __init__(
        self, kernel: Kernel, network: Network, server: Server, agents: dict[str, Agent], trainer: Trainers
    ) -> None:
        self._kernel, self._network, self._server = kernel, network, server
        self.agents, self._trainer = agents, trainer
        self.injected: list[str] = []
        self._kind = Fault.NOISE
        self._ambush: list[Fault] = []
        self._until_s = 0.0

    def schedule(self, until_s: float, count: int, *, stills: int = 0) -> None:
        """Draw `count` faults before `until_s`; a third of them strikes as a pair, another
        third lies in wait for the next eviction or admission. And `stills` times an agent or a node stands still."""
        chance, kinds = self._kernel.random, tuple(kind for kind in Fault if kind not in STILLS)
        self._until_s = until_s
        for _ in range(count):
            at_s, kind = chance.uniform(QUIET_BEFORE_S, until_s), chance.choice(kinds)
            style = chance.randrange(3)
            self._kernel.after(at_s, self.strike, kind)
            if style == 0:
                self._kernel.after(at_s + chance.uniform(0.0, 0.2), self.strike, chance.choice(kinds))
            elif style == 1:
                self._kernel.after(at_s, self._lie_in_wait, chance.choice((Fault.RANK_KILL, Fault.NODE_LOSS)))
        for _ in range(stills):
            self._kernel.after(chance.uniform(QUIET_BEFORE_S, until_s), self.strike, chance.choice(STILLS))
        self._server.on_decision = self._decided

    def schedule_leaps(self, until_s: float, count: int, seed: int) -> None:
        """Clocks of nodes that leap, by chances of their own: a world without is the world it was."""
        chance = random.Random(f"leaps {seed}")
        for _ in range(count):
            agent, seconds = chance.choice(list(self.agents.values())), chance.choice((3.0, 20.0, 300.0, 7200.0))
            self._kernel.after(chance.uniform(QUIET_BEFORE_S, until_s), self.leap_clock, agent, seconds)

    def leap_clock(self, agent: Agent, seconds: float) -> None:
        """The agent stood still: what is due comes first, before anything that its ranks have said since."""
        if not agent.dead:
            self.injected.append("clock_leap")
            self._say(f"the clock of {agent.node} leaps by {seconds:.0f} s")
            agent.machine.leap(seconds)
            agent.dispatch(Tick(now_s=agent.machine.now_s))

    def _lie_in_wait(self, kind: Fault) -> None:
        self._ambush.append(kind)

    def _decided(self, choice: str) -> None:
        """A fault during recovery: strikes shortly after the next act of it."""
        if choice in ("evict", "evict_and_replace", "hold_and_replace", "admit", "start", "install") and self._ambush:
            kind = self._ambush.pop()
            self._kernel.after(self._kernel.between(0.0, 3.0), self.strike, kind)

    def strike(self, kind: Fault) -> None:
        """Do it now, somewhere."""
        if self._kernel.now_s > self._until_s:
            return
        self._kind = kind
        match kind:
            case Fault.RANK_KILL:
                self._with_process(self.kill_rank)
            case Fault.RANK_HANG:
                self._with_process(self.hang_rank)
            case Fault.RANK_PAUSE:
                self._with_process(self.pause_rank)
            case Fault.NODE_LOSS | Fault.NODE_REBOOT:
                self._with_node(self.lose_node if kind is Fault.NODE_LOSS else self.reboot_node)
            case Fault.NODE_CUT:
                self._with_node(self.cut_node)
            case Fault.DEVICE_LOST | Fault.XID_FATAL:
                self._with_node(self.break_device if kind is Fault.DEVICE_LOST else self.fatal_xid)
            case Fault.NOISE:
                self._noise()
            case Fault.BACKEND_PAUSE:
                self.injected.append(kind)
                self._server.pause(self._kernel.between(2.0, 12.0))
            case Fault.EXCHANGE_BLIP:
                self.injected.append(kind)
                self.blip()
            case Fault.AGENT_RESTART | Fault.AGENT_AWAY:
                self._with_node(self.restart_agent if kind is Fault.AGENT_RESTART else self.end_agent)
            case Fault.DISK_FULL:
                self._with_node(self.fill_disk)
            case Fault.WARM_REBOOT:
                self._with_node(self.warm_reboot)
            case Fault.AGENT_STILL | Fault.NODE_STILL:
                self._with_node(self.stop_agent if kind is Fault.AGENT_STILL else self.stop_node)
            case Fault.BAD_START:
                self.injected.append(kind)
                self._trainer.crash_starts += 1

    # --- victims -----------------------------------------------------------------------------

    def _with_process(self, fault: object) -> None:
        alive = [p for p in self._trainer.living() if any(r.alive and not r.hung for r in p.ranks.values())]
        if alive and callable(fault):
            self.injected.append(self._kind)
            fault(self._kernel.random.choice(alive))

    def _with_node(self, fault: object) -> None:
        up = [agent for agent in self.agents.values() if not agent.dead]
        if len(up) > 1 and callable(fault):
            self.injected.append(self._kind)
            fault(self._kernel.random.choice(up))

    # --- deeds ---------------------------------------------------------------------------------

    def kill_rank(self, process: Process) -> None:
        """SIGKILL one rank."""
        rank = self._kernel.random.choice([r for r in process.ranks.values() if r.alive])
        self._say(f"SIGKILL rank {rank.ref.rank} of r{process.index}.{process.incarnation}")
        self.agents[rank.node].end(rank)

    def hang_rank(self, process: Process) -> None:
        """SIGSTOP one rank, for good."""
        rank = self._kernel.random.choice([r for r in process.ranks.values() if r.alive])
        rank.stop(self._kernel.now_s, process.phase_since_s)
        self._say(f"SIGSTOP rank {rank.ref.rank} of r{process.index}.{process.incarnation}")

    def pause_rank(self, process: Process) -> None:
        """SIGSTOP and SIGCONT: it may wake as a zombie."""
        self.hang_rank(process)
        stopped = next(rank for rank in process.ranks.values() if rank.hung)
        self._kernel.after(self._kernel.between(1.0, 12.0), self._wake, stopped.ref.rank, process)

    def _wake(self, rank: int, process: Process) -> None:
        if process.ranks[rank].alive:
            self._say(f"SIGCONT rank {rank} of r{process.index}.{process.incarnation}")
            self._trainer.wake(process.ranks[rank])

    def lose_node(self, agent: Agent) -> None:
        """Power loss, for good."""
        self._say(f"{agent.node} loses power")
        agent.crash()

    def reboot_node(self, agent: Agent) -> None:
        """Power loss, and back with an empty disk."""
        self.lose_node(agent)
        self._kernel.after(self._kernel.between(5.0, 40.0), agent.reboot)

    def warm_reboot(self, agent: Agent) -> None:
        """Power loss, and back with what its disk had kept, under another boot id."""
        self.lose_node(agent)
        self._kernel.after(self._kernel.between(2.0, 30.0), self._power_on, agent)

    def _power_on(self, agent: Agent) -> None:
        agent.reboot(disk_kept=True)

    def restart_agent(self, agent: Agent) -> None:
        """The agent ends between two effects of what it does next, and is back in a moment."""
        left, away_s = self._kernel.random.randrange(1, 40), self._kernel.between(0.2, 3.0)

        def count(effect: Effect) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._say(f"the agent of {agent.node} ends after {type(effect).__name__}")
                self._network.note_out(agent.node, self._kernel.now_s, self._kernel.now_s + away_s)
                agent.stop(away_s)

        agent.on_effect = count

    def end_agent(self, agent: Agent) -> None:
        """The agent is away for a while; its ranks go on."""
        away_s = self._kernel.between(3.0, 30.0)
        self._say(f"the agent of {agent.node} is away for {away_s:.1f} s")
        self._network.note_out(agent.node, self._kernel.now_s, self._kernel.now_s + away_s)
        agent.stop(away_s)

    def stop_agent(self, agent: Agent) -> float:
        """SIGSTOP and SIGCONT of the agent alone: its clock is ahead of every deadline when it runs again, and
        what its ranks said waits."""
        stood_s = self._kernel.between(2.0, 25.0)
        self._say(f"the agent of {agent.node} stands still for {stood_s:.1f} s")
        self._network.note_out(agent.node, self._kernel.now_s, self._kernel.now_s + stood_s)
        agent.stand_still(stood_s)
        return stood_s

    def stop_node(self, agent: Agent) -> None:
        """The whole machine stands still, as a virtual one that is moved: its ranks with its agent."""
        stood_s = self.stop_agent(agent)
        for child in tuple(agent.machine.children.values()):
            if child.rank.alive and not child.rank.hung:
                process = self._trainer.process_of(child.rank)
                child.rank.stop(self._kernel.now_s, process.phase_since_s)
                self._kernel.after(stood_s, self._wake, child.rank.ref.rank, process)

    def fill_disk(self, agent: Agent) -> None:
        """The journal takes nothing more, until somebody makes room."""
        self._say(f"the disk of {agent.node} is full")
        agent.machine.disk.full = True
        self._kernel.after(self._kernel.between(5.0, 40.0), self.make_room, agent)

    def make_room(self, agent: Agent) -> None:
        """On its disk, again."""
        self._say(f"the disk of {agent.node} has room")
        agent.machine.disk.full, agent.machine.disk.freed_s = False, self._kernel.now_s

    def cut_node(self, agent: Agent) -> None:
        """The node loses its control link; its ranks do not."""
        self._say(f"{agent.node} is cut off")
        self._network.cut_link(agent.node)
        self._kernel.after(self._kernel.between(3.0, 30.0), self._mend, agent)

    def _mend(self, agent: Agent) -> None:
        self._say(f"{agent.node} is back in touch")
        self._network.mend_link(agent.node)

    def break_device(self, agent: Agent) -> None:
        """A device falls off the bus."""
        self._say(f"device 0 of {agent.node} falls off the bus")
        agent.lose_device(0)

    def fatal_xid(self, agent: Agent) -> None:
        """XID 79."""
        self._say(f"XID 79 on device 1 of {agent.node}")
        agent.xid(1, 79)

    def _noise(self) -> None:
        self.injected.append(Fault.NOISE)
        self._say("the network is bad")
        self._network.loss, self._network.repeat, self._network.extra_delay_s = 0.1, 0.2, 0.3
        self._kernel.after(self._kernel.between(5.0, 30.0), self._silence)

    def _silence(self) -> None:
        self._network.loss = self._network.repeat = self._network.extra_delay_s = 0.0
        self._say("the network is good again")

    def blip(self) -> None:
        """The exchange that is under way fails for everybody."""
        current = [p for p in self._trainer.living() if p.epoch and p.able()]
        if current:
            newest = max(current, key=lambda process: (process.attempt, process.epoch))
            self._say(f"the exchange of epoch {newest.epoch} fails for everybody")
            self._trainer.break_group_of(newest)

    def _say(self, text: str) -> None:
        self._kernel.log("fault", text)
