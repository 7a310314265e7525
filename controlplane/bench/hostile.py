"""Agents that break the rules of the protocol, with a key and an enrolment like any other.

By turns, a kind each heartbeat: readings of devices that the node never listed, an event about another node's rank, a
gap in the numbers of its events, more frames than are allowed; and beside its session sockets that prove nothing, and
say nothing or garbage. What they do must cost the others nothing.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from agents.link.server import Server
from controlplane.bench.agent import Agent, Node
from controlplane.bench.identity import HeldIdentity
from controlplane.bench.readings import Readings
from controlplane.bench.script import Act, Kind
from controlplane.bench.tally import Tally
from controlplane.protocol.frames import AgentEvent, AgentFrame, RankExited
from controlplane.protocol.launch import RankRef

UNLISTED, FOREIGN, GAP, BURST = KINDS = ("unlisted", "foreign", "gap", "burst")
FAR_DEVICE = 32
GAP_EVENTS = 1000
BURST_FRAMES = 1200
STRANGER_EVERY_S, STRANGER_STAYS_S = 2.0, 5.0
GARBAGE = bytes(range(256)) * 64
_OTHERS = RankRef(job_id="job_of_somebody_else", attempt=1, replica=0, incarnation=1, rank=0)


class Hostile(Agent):
    """Behaves until the script says otherwise."""

    def __init__(self, node: Node, identity: HeldIdentity, server: Server, readings: Readings, tally: Tally) -> None:
        super().__init__(node, identity, server, readings, tally)
        self._url = f"{server.url}/agent/v1/stream"
        self._strangers: set[asyncio.Task[None]] = set()
        self._active = False
        self._burst = 0

    def act(self, act: Act) -> None:
        """The beginning of it all."""
        if act.kind is Kind.HOSTILE:
            self._active = True
            self._spawn(self._knock())

    def compose(self) -> tuple[AgentFrame, bool] | None:
        """What the agent would say, made worse."""
        made = super().compose()
        if made is None or not self._active:
            return made
        frame, more = made
        if self._burst > 0:
            self._burst -= 1
            return frame, self._burst > 0
        kind = KINDS[self._beats % len(KINDS)]
        self._tally.hostile[kind] += 1
        if kind == BURST:
            self._burst = BURST_FRAMES
            return frame, True
        return worse(frame, kind, next_seq=self.state.next_seq), more

    async def stop(self) -> None:
        """With its strangers."""
        for task in self._strangers:
            task.cancel()
        await asyncio.gather(*self._strangers, return_exceptions=True)
        await super().stop()

    async def _knock(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(STRANGER_EVERY_S)
            turn += 1
            self._tally.hostile["stranger"] += 1
            self._spawn(stranger(self._url, GARBAGE if turn % 2 else b""))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._strangers.add(task)
        task.add_done_callback(self._strangers.discard)


def worse(frame: AgentFrame, kind: str, *, next_seq: int) -> AgentFrame:
    """The frame with one rule broken. `next_seq`: of the node's next event."""
    if kind == UNLISTED:
        far = tuple(
            msgspec.structs.replace(sample, index=sample.index + FAR_DEVICE, temperature_c=120.0)
            for sample in frame.devices
        )
        return msgspec.structs.replace(frame, devices=far)
    seq = next_seq + (GAP_EVENTS if kind == GAP else 0)
    lie = AgentEvent(seq, 0.0, RankExited(_OTHERS, exit_code=1, signal=None, expected=False))
    return msgspec.structs.replace(frame, events=(*frame.events, lie))


async def stranger(url: str, garbage: bytes) -> None:
    """A socket that proves nothing: it says `garbage`, or nothing where there is none."""
    with contextlib.suppress(OSError, TimeoutError, WebSocketException):
        options: dict[str, Any] = {"compression": None, "ping_interval": None, "proxy": None}
        async with connect(url, open_timeout=STRANGER_STAYS_S, **options) as socket:
            if garbage:
                await socket.send(garbage)
            async with asyncio.timeout(STRANGER_STAYS_S):
                async for _ in socket:
                    pass
