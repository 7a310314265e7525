"""Nodes that leave as was said: notices of their provider, and maintenance windows that people set.

The agent reads its notice every other second, as `agents.notices` does; when it is over the machine truly goes, with
all that is on it, and may come back with another boot. Some notices are withdrawn, some windows cancelled. It draws
from chances of its own.
"""

import math
import random
from dataclasses import dataclass

from agents.core.events import NoticeRead
from controlplane.policy.known_end import KnownEnd
from controlplane.protocol.states import EndSource
from controlplane.simulator.agent import Agent
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.rows import NodeRow
from controlplane.simulator.server import Server

NOTICE, WINDOW = "spot_notice", "maintenance_window"
"""Their names among the faults that happened."""
READ_S = 2.0
NOTICES_S = (5.0, 30.0, 30.0, 60.0, 120.0)
AHEAD_S, LASTS_S = (20.0, 120.0), (10.0, 60.0)
UP_BEFORE_S = 5.0
AGAIN_S = 3.0


@dataclass(slots=True, kw_only=True)
class Left:
    """A node that went, with how long before that was known, and how many processes of jobs lived on it then."""

    node: str
    at_s: float
    known_s: float
    alive: int


class Departures:
    """Takes machines away. `happened`: by name."""

    def __init__(self, kernel: Kernel, server: Server, agents: dict[str, Agent], seed: int) -> None:
        self._kernel, self._server, self._agents = kernel, server, agents
        self._random = random.Random(f"departures {seed}")
        self._going: dict[str, float] = {}
        self._until_s = math.inf
        self.happened: list[str] = []
        self.left: list[Left] = []

    def schedule(self, since_s: float, until_s: float, notices: int, windows: int) -> None:
        """So many of each, which have left by `until_s` or soon after."""
        self._until_s = until_s
        for _ in range(notices):
            self._kernel.after(self._random.uniform(since_s, until_s), self.notice)
        for _ in range(windows):
            self._kernel.after(self._random.uniform(since_s, until_s), self.window)

    def notice(self, in_s: float | None = None) -> None:
        """Of a node on which something runs, or of any."""
        agent = self._node()
        if agent is None:
            return
        in_s = self._soon(self._random.choice(NOTICES_S)) if in_s is None else in_s
        self.happened.append(NOTICE)
        self._kernel.log("fault", f"{agent.node} has a notice of {in_s:.0f} s")
        self._going[agent.node] = self._kernel.now_s + in_s
        self._read(agent)
        if self._random.random() < 0.2:
            self._kernel.after(self._random.uniform(0.0, in_s), self._withdraw, agent)
        back_s = self._random.uniform(20.0, 60.0) if self._random.random() < 0.6 else None
        self._kernel.after(in_s, self._leave, agent, in_s, back_s)

    def window(self) -> None:
        """A person sets one, and may cancel it."""
        agent = self._node()
        if agent is None or self._server.paused:
            if self._kernel.now_s < self._until_s:
                self._kernel.after(AGAIN_S, self.window)
            return
        ahead_s, lasts_s = self._soon(self._random.uniform(*AHEAD_S)), self._random.uniform(*LASTS_S)
        now_s, row = self._kernel.now_s, self._server.rows.nodes[agent.node]
        self.happened.append(WINDOW)
        self._kernel.log("person", f"{agent.node} is away from {ahead_s:.0f} s on, for {lasts_s:.0f} s")
        self._going[agent.node] = now_s + ahead_s
        row.ends[EndSource.WINDOW] = KnownEnd(
            id=f"end_{len(self.happened)}",
            source=EndSource.WINDOW,
            leaves_s=now_s + ahead_s,
            back_s=now_s + ahead_s + lasts_s,
            said_s=now_s,
            reason="new fans",
        )
        self._server.ring()
        if self._random.random() < 0.2:
            self._kernel.after(self._random.uniform(0.0, ahead_s), self._cancel, agent, row)
        self._kernel.after(ahead_s, self._leave, agent, ahead_s, max(1.0, lasts_s - UP_BEFORE_S))

    def _soon(self, in_s: float) -> float:
        return min(in_s, max(NOTICES_S[0], self._until_s - self._kernel.now_s))

    def _read(self, agent: Agent) -> None:
        """What its provider says now, as long as the machine is there."""
        at_s = self._going.get(agent.node)
        left_s = None if at_s is None else max(0.0, at_s - self._kernel.now_s)
        if not agent.dead:
            agent.dispatch(NoticeRead(now_s=agent.machine.now_s, leaves_in_s=left_s, reason="the provider takes it"))
        if left_s:
            self._kernel.after(READ_S, self._read, agent)

    def _withdraw(self, agent: Agent) -> None:
        if self._going.pop(agent.node, None) is not None:
            self._kernel.log("fault", f"the notice of {agent.node} is withdrawn")

    def _cancel(self, agent: Agent, row: NodeRow) -> None:
        if self._server.paused:
            self._kernel.after(AGAIN_S, self._cancel, agent, row)
        elif self._going.pop(agent.node, None) is not None:
            self._kernel.log("person", f"{agent.node} stays after all")
            row.ends.pop(EndSource.WINDOW, None)
            self._server.ring()

    def _leave(self, agent: Agent, known_s: float, back_s: float | None) -> None:
        """Power loss, unless it stays after all."""
        if self._going.pop(agent.node, None) is None or agent.dead:
            return
        alive = sum(child.rank.alive and not child.rank.hung for child in agent.machine.children.values())
        self.left.append(Left(node=agent.node, at_s=self._kernel.now_s, known_s=known_s, alive=alive))
        self._kernel.log("fault", f"{agent.node} leaves, with {alive} processes")
        agent.crash()
        if back_s is not None:
            self._kernel.after(back_s, agent.reboot)

    def _node(self) -> Agent | None:
        up = [each for each in self._agents.values() if not each.dead and each.node not in self._going]
        busy = [each for each in up if any(child.rank.alive for child in each.machine.children.values())]
        if len(up) < 2:
            return None
        return self._random.choice(busy if busy and self._random.random() < 0.8 else up)
