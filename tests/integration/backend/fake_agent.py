"""A scripted agent: the real protocol over a real WebSocket, processes that are only told of.

Keeps a journal as a real one does: events are sent until they are acknowledged, commands
are carried out once and answered from the journal when they are repeated.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection, connect

from agents.errors import SignatureRejected
from agents.link.enrol import Facts, enrol
from agents.link.keys import NodeKey, rotation, unsigned_proof
from agents.link.pins import Pins
from agents.link.server import Server
from controlplane.access import join_tokens
from controlplane.protocol import commands, frames
from controlplane.protocol.codec import decode_to_agent, encode_frame
from controlplane.protocol.handshake import Challenge, KeyAccepted, Proof, RotateKey
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceInfo, DeviceSample
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.protocol.states import Phase, RankState, Section
from tests.integration.backend.ending import end

HEARTBEAT_S = 0.2
RECONNECT_S = 0.2


@dataclass(kw_only=True)
class Enrolled:
    """A node's key and id, and the counter of its sessions: what an agent's state directory holds."""

    node_id: str
    key: NodeKey
    server_keys: tuple[str, ...] = ()
    counter: int = 0
    machine_id: str = "machine"

    def copy(self) -> "Enrolled":
        """As a copied disk has it."""
        return replace(self)

    def prove(self, challenge: Challenge, *, boot_id: str, journal_id: str, host: str = "127.0.0.1") -> Proof:
        """The answer to a challenge, as the real agent gives it."""
        proof = unsigned_proof(
            node_id=self.node_id, boot_id=boot_id, journal_id=journal_id, machine_id=self.machine_id,
            counter=self.counter, protocol_min=frames.PROTOCOL_MIN, protocol_max=frames.PROTOCOL_MAX, server_host=host,
        )  # fmt: skip
        return self.key.proof(challenge.nonce, proof)


def join_token(*, uses: int = 1, hold: bool = False, **binding: Any) -> str:
    """A token of the database; bound to nobody unless `binding` says."""
    return join_tokens.create(join_tokens.Binding(**binding), uses=uses, hold=hold).secret


def enroll(url: str, name: str, join_token: str, **changes: Any) -> Enrolled:
    """With a key of its own."""
    key = changes.pop("key", None) or NodeKey.fresh()
    old_key = changes.pop("old_key", None)
    facts = Facts(**{"node_name": name, "boot_id": f"boot-{name}", "machine_id": "machine", "segment": "",
                     "devices": ()} | changes)  # fmt: skip
    server = Server(url=url.replace("http://", "ws://"))
    made = enrol(server, join_token=join_token, key=key, old_key=old_key, facts=facts)
    return Enrolled(node_id=made.node_id, key=key, server_keys=made.server_keys, machine_id=facts.machine_id)


class FakeAgent:
    """`on_command` carries a command out, once. `ranks` it lists in its frames."""

    def __init__(self, url: str, name: str, credential: Enrolled, *, devices: int = 2) -> None:
        self.url = url.replace("http://", "ws://") + "/agent/v1/stream"
        self.name, self.credential, self.device_count = name, credential, devices
        self.boot_id, self.journal_id = f"boot-{name}", f"journal-{name}"
        self.ranks: dict[RankRef, frames.RankStatus] = {}
        self.on_command: Callable[[FakeAgent, commands.CommandEnvelope], None] = lambda agent, envelope: None
        self.executed: list[commands.CommandEnvelope] = []
        self.received: Counter[str] = Counter()
        self.answers: dict[str, frames.CommandAnswer] = {}
        self.temperature_c: dict[int, float] = {}
        self.readings: dict[int, dict[str, Any]] = {}
        self.unacked: list[frames.AgentEvent] = []
        self.next_seq = 1
        self.refused: list[frames.Refused] = []
        self.pins = Pins((), node_id="")
        self.welcomed = asyncio.Event()
        self.muted = False
        self.next_key = credential.key
        self._wake = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._frame_seq = 0
        self._sent_upto = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, and again whenever the connection ends."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Close for good."""
        if self._task is not None:
            await end(self._task)

    def tell(self, body: frames.EventBody) -> int:
        """Journal an event; it is sent until it is acknowledged."""
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self.unacked.append(frames.AgentEvent(seq, 0.0, body))
        self._wake.set()
        return seq

    def say(self, ref: RankRef, report: Any) -> int:
        """A rank's report."""
        return self.tell(frames.RankSaid(ref, report))

    def set_rank(self, ref: RankRef, device_index: int, phase: Phase, *, step: int = 0) -> None:
        """What the frames say about a rank from now on."""
        section = Section.SETUP if phase is Phase.PARKED else Section.STEP
        self.ranks[ref] = frames.RankStatus(
            ref=ref, state=RankState.TRAINING, pid=1000 + ref.rank, device_index=device_index, section=section,
            phase=phase, step=step, phase_age_s=0.0, silent_s=0.0,
        )  # fmt: skip

    async def send_raw(self, data: bytes | str) -> None:
        """Anything, as it is."""
        assert self._socket is not None
        await self._socket.send(data)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError, websockets.WebSocketException, TimeoutError):
                await self._session()
            self.welcomed.clear()
            await asyncio.sleep(RECONNECT_S)

    async def _session(self) -> None:
        async with connect(self.url, compression=None) as socket:
            self._socket, self._frame_seq = socket, 0
            first = await self.open(socket)
            if isinstance(first, frames.Refused):
                self.refused.append(first)
                return
            assert isinstance(first, frames.Welcome)
            self.pins = Pins(first.server_keys, node_id=first.node_id)
            self._acked(first.acked_seq)
            self._sent_upto = first.acked_seq
            self.welcomed.set()
            sender = asyncio.create_task(self._send_frames(socket))
            try:
                async for data in socket:
                    await self._take(socket, decode_to_agent(data))  # type: ignore[arg-type]
            finally:
                await end(sender)

    async def open(self, socket: ClientConnection, *more: bytes | str) -> frames.ToAgent:
        """Prove who we are, say hello and `more`; the server's decision."""
        self.credential.counter += 1
        greeted = False
        while True:
            message = decode_to_agent(await asyncio.wait_for(socket.recv(), 20.0))  # type: ignore[arg-type]
            if not isinstance(message, Challenge):
                return message
            await socket.send(encode_frame(self._prove(message)))
            if not greeted:
                greeted = True
                for data in (encode_frame(self._hello()), *more):
                    await socket.send(data)

    def _prove(self, challenge: Challenge) -> Proof:
        return self.credential.prove(challenge, boot_id=self.boot_id, journal_id=self.journal_id)

    def _hello(self) -> frames.AgentHello:
        devices = tuple(
            DeviceInfo(index=i, uuid=f"GPU-{self.name}-{i}", model="Test", memory_bytes=1 << 34, driver="simulated")
            for i in range(self.device_count)
        )
        return frames.AgentHello(
            protocol_min=frames.PROTOCOL_MIN, protocol_max=frames.PROTOCOL_MAX, node_name=self.name,
            agent_version="test", boot_id=self.boot_id, journal_id=self.journal_id, devices=devices,
            ranks=tuple(self.ranks.values()),
        )  # fmt: skip

    async def _send_frames(self, socket: ClientConnection) -> None:
        while True:
            self._wake.clear()
            if not self.muted:
                await socket.send(encode_frame(self._frame()))
            try:
                await asyncio.wait_for(self._wake.wait(), HEARTBEAT_S)
            except TimeoutError:
                continue

    def _frame(self) -> frames.AgentFrame:
        self._frame_seq += 1
        fresh = tuple(event for event in self.unacked if event.seq > self._sent_upto)[:200]
        if fresh:
            self._sent_upto = fresh[-1].seq
        samples = tuple(
            DeviceSample(
                index=i,
                temperature_c=self.temperature_c.get(i, 55.0),
                power_w=300.0,
                utilization_ratio=0.9,
                **self.readings.get(i, {}),
            )
            for i in range(self.device_count)
        )
        return frames.AgentFrame(
            seq=self._frame_seq, uptime_s=self._frame_seq * HEARTBEAT_S, devices=samples,
            ranks=tuple(self.ranks.values()), events=fresh,
        )  # fmt: skip

    async def _take(self, socket: ClientConnection, message: frames.ToAgent) -> None:
        if isinstance(message, frames.Acked):
            self._acked(message.seq)
            if message.resend:
                self._sent_upto = message.seq
                self._wake.set()
        elif isinstance(message, frames.Order):
            for command in message.commands:
                try:
                    self._command(self.pins.verify(command, message.server_time_s))
                except SignatureRejected as error:
                    answer = frames.CommandAnswer(command.command_id, "failed", str(error), SIGNATURE_REJECTED)
                    self.tell(answer)
        elif isinstance(message, frames.Refused):
            self.refused.append(message)
        elif isinstance(message, Challenge):
            await socket.send(encode_frame(self._prove(message)))
        elif isinstance(message, RotateKey):
            self.next_key = NodeKey.fresh()
            mine = self.credential
            new = rotation(mine.key, self.next_key, nonce=message.nonce, node_id=mine.node_id)
            await socket.send(encode_frame(new))
        elif isinstance(message, KeyAccepted):
            self.credential.key = self.next_key

    def _acked(self, seq: int) -> None:
        self.unacked = [event for event in self.unacked if event.seq > seq]

    def _command(self, envelope: commands.CommandEnvelope) -> None:
        self.received[envelope.command_id] += 1
        if envelope.command_id in self.answers:
            self.tell(self.answers[envelope.command_id])
            return
        self.answers[envelope.command_id] = frames.CommandAnswer(envelope.command_id, "succeeded")
        self.tell(frames.CommandAnswer(envelope.command_id, "acknowledged"))
        self.executed.append(envelope)
        self.on_command(self, envelope)
        self.tell(self.answers[envelope.command_id])
