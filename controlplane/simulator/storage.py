"""The storage of checkpoints that all nodes share, and a node's reader of it.

Bytes rot on it, and the server's own machine sees it or does not. It draws from chances of its own.
"""

import random
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from agents.core import effects as fx
from agents.core import events as ev
from controlplane.protocol.readback import Verdict
from controlplane.simulator.machine import Machine

LASTS_S = (0.5, 25.0)
PROGRESS_S = 15.0
ENDED = "its reader was ended"


class Storage:
    """`rotten`: paths whose bytes are not what was committed; `seen_here`: the server's machine has it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"storage {seed}")
        self.seen_here = self._chance.random() < 0.5
        self.rotten: set[str] = set()

    def is_rotten(self, path: str) -> bool:
        """What is there is not what was committed."""
        return path in self.rotten

    def lasts_s(self) -> float:
        """How long one reading takes."""
        return self._chance.uniform(*LASTS_S)

    def read(self, path: str, *, node: str = "", loads: bool = False) -> Verdict:
        """As a node finds it, or ("") the server's own machine, which may load it too."""
        if not node and not self.seen_here:
            return Verdict(ok=None, detail=f"{path} is not visible from the control plane")
        if path in self.rotten:
            return Verdict(ok=False, detail=f"{path}: a digest is another")
        return Verdict(ok=True, detail="every file is as it was committed", loaded=loads)


class Owner(Protocol):
    """The agent of the node. `after` calls in this run of it alone."""

    def dispatch(self, event: ev.Event) -> None:
        """Something has happened."""

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Later, if the agent still lives."""


class Reader:
    """Of one node; it ends with its agent, as the process does that it stands for."""

    def __init__(self, machine: Machine, agent: Owner) -> None:
        self.storage = Storage(0)
        self._machine, self._agent = machine, agent
        self._at_work = ""

    def work(self, effect: fx.ReadCheckpoint | fx.StopReading) -> None:
        """Begin, or end what is at work."""
        if isinstance(effect, fx.StopReading):
            self._over(effect.command_id, "", ENDED)
            return
        self._at_work = effect.command_id
        lasts_s = self.storage.lasts_s()
        if lasts_s > PROGRESS_S:
            self._agent.after(PROGRESS_S, self._progress, effect.command_id)
        self._agent.after(lasts_s, self._read, effect)

    def _progress(self, command_id: str) -> None:
        if self._at_work == command_id:
            now_s = self._machine.now_s
            self._agent.dispatch(ev.CheckpointProgress(now_s=now_s, command_id=command_id, read_bytes=1 << 30))

    def _read(self, effect: fx.ReadCheckpoint) -> None:
        found = self.storage.read(effect.wanted.path, node=self._machine.node)
        self._over(effect.command_id, msgspec.json.encode(found).decode(), "")

    def _over(self, command_id: str, verdict: str, error: str) -> None:
        if self._at_work == command_id:
            self._at_work, now_s = "", self._machine.now_s
            self._agent.dispatch(ev.CheckpointRead(now_s=now_s, command_id=command_id, verdict=verdict, error=error))
