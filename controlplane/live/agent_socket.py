"""WS /agent/v1/stream: one agent's session.

A Channels consumer with its own receive loop (feasibility 3.2: the stock dispatch hops to
a thread before every message). The agent proves who it is (`live.proof`), is welcomed, then
for each frame: hints go to the stream's buffer, events to the writer. Decides nothing, touches
no table in the loop.
"""

import asyncio
import time
from typing import Any

import msgspec
from channels.consumer import AsyncConsumer
from django.conf import settings

from controlplane.live import proof
from controlplane.live.limits import FRAMES_PER_S, MAX_HINT_BYTES, SESSION_RETRY_S, Pace, check_size, only_listed
from controlplane.live.links import AgentLink, Send
from controlplane.live.process import WebProcess
from controlplane.live.writer import Item
from controlplane.protocol.codec import decode_from_agent, decode_from_newer_agent, encode_frame
from controlplane.protocol.errors import FrameTooLarge, MalformedFrame, ProtocolError
from controlplane.protocol.frames import (
    MAX_EVENTS_PER_FRAME,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    AgentFrame,
    AgentHello,
    FromAgent,
    Welcome,
)
from controlplane.protocol.handshake import NewKey, Proof
from controlplane.runtime import keys, metrics
from controlplane.runtime.address import client_address, place_of
from controlplane.runtime.ids import new_id
from controlplane.runtime.logs import get

HELLO_TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 10.0
MAX_BAD_FRAMES = 10
OVERLOAD_RETRY_S = 2.0
CLOSE_TRY_LATER = 1013
MAX_NAMED = 5
_log = get(__name__)


class AgentSocket(AsyncConsumer):
    """See the module."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        """Accept, challenge, welcome, read until the end."""
        await receive()
        await send({"type": "websocket.accept"})
        process = WebProcess.current()
        await process.ensure_started()
        link = AgentLink(node_id="", node_name="?", session_id=f"{process.name}.{new_id('ses')[4:]}", send=send)
        if process.intake.full:
            await self._come_again(process, link)
            return
        entrance = proof.Entrance(process, link, receive, scope)
        with process.admission.unknown_socket(place_of(client_address(scope))) as place:
            if place is None:
                await process.count("?", "unknown_sockets", "too many sockets wait to be authenticated")
                await send({"type": "websocket.close", "code": CLOSE_TRY_LATER})
                return
            proved = await entrance.prove(place)
        if proved and not process.admission.may_open(link.node_id):
            await process.count(link.node_name, "reconnects", "more sessions than allowed")
            process.refusals.note(link.node_name, "reconnects")
            await link.refuse("overloaded", "this node opens sessions too often", SESSION_RETRY_S)
        elif proved and process.intake.full:
            # Others were quicker since it was let in.
            await self._come_again(process, link)
        elif proved:
            await Session(process, link, entrance).run(receive)
        process.note_refusal(link)

    async def _come_again(self, process: WebProcess, link: AgentLink) -> None:
        """More come back at once than this process opens sessions: it is refused until it is its turn."""
        metrics.FRAMES.labels(result="come_again").inc()
        retry_s = process.intake.come_again_s(len(process.links))
        await link.refuse("overloaded", "more agents come back than sessions are opened: come again then", retry_s)


class Session:
    """One accepted agent, from hello to close."""

    def __init__(self, process: WebProcess, link: AgentLink, entrance: proof.Entrance) -> None:
        self.process = process
        self.link = link
        self.entrance = entrance
        self.bad = 0
        self.pace = Pace()
        self.listed: frozenset[int] = frozenset()
        self.may_be_open = False
        self._heard: asyncio.Task[bytes | None] | None = None

    async def run(self, receive: Any) -> None:
        """Hello, welcome, frames; always leaves the session row closed."""
        try:
            if await self._open(receive):
                await self._read(receive)
        finally:
            if self._heard is not None:
                self._heard.cancel()
            self.link.closed = True
            self.process.unregister(self.link)
            self._leave()

    def _leave(self) -> None:
        """Its row is closed, unless it never was open, or this process has a newer session of the node."""
        if self.may_be_open and self.link.node_id not in self.process.links:
            self.process.writer.put(
                Item(node_id=self.link.node_id, session_id=self.link.session_id, callback=self.link.on_written)
            )

    async def _open(self, receive: Any) -> bool:
        try:
            data = await asyncio.wait_for(proof.next_bytes(receive), HELLO_TIMEOUT_S)
        except TimeoutError:
            await self.link.refuse("bad_protocol", f"no hello within {HELLO_TIMEOUT_S:.0f} s", 1.0)
            return False
        if data is None:
            return False
        try:
            said, _ = await self._understood(data)
        except ProtocolError as error:
            await self._count(error.code, str(error))
            await self.link.refuse(error.code, str(error))
            return False
        if not isinstance(said, AgentHello):
            await self.link.refuse("bad_protocol", "after the proof comes the hello", 1.0)
            return False
        version = min(PROTOCOL_MAX, said.protocol_max)
        if version < max(PROTOCOL_MIN, said.protocol_min):
            ours = f"{PROTOCOL_MIN} to {PROTOCOL_MAX}"
            await self.link.refuse(
                "bad_protocol", f"we speak {ours}, the agent {said.protocol_min} to {said.protocol_max}"
            )
            return False
        with self.process.intake.inside():
            if not await self.entrance.admitted(said) or not await self._opened(said, receive):
                return False
            await self._welcome(version)
            self.process.intake.opened(time.monotonic())
        return True

    async def _opened(self, said: AgentHello, receive: Any) -> bool:
        """Whether its row says so. What the agent sends meanwhile is kept for later; where its socket ends, the
        hello is not applied any more."""
        link = self.link
        item = Item(
            node_id=link.node_id, session_id=link.session_id, callback=link.on_written, hello=said,
            gone=lambda: link.closed,
        )  # fmt: skip
        if not self.process.writer.put(item):
            await link.refuse("overloaded", "too many events wait to be written", OVERLOAD_RETRY_S)
            return False
        self.may_be_open = True
        self._heard = asyncio.ensure_future(proof.next_bytes(receive))
        either: set[asyncio.Future[Any]] = {link.opened, self._heard}
        await asyncio.wait(either, timeout=OPEN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if self._heard.done() and self._heard.result() is None:
            link.closed = True
        elif not link.opened.done():
            await asyncio.wait({link.opened}, timeout=OPEN_TIMEOUT_S if self._heard.done() else 0.0)
        if link.opened.done():
            return not link.closed and link.opened.exception() is None
        link.opened.cancel()
        if not link.closed:
            self.process.intake.rate.late(time.monotonic())
        await link.refuse("overloaded", "the session could not be opened in time", OVERLOAD_RETRY_S)
        return False

    async def _welcome(self, version: int) -> None:
        link, acked = self.link, self.link.opened.result()
        await link.tell(
            Welcome(
                protocol=version,
                node_id=link.node_id,
                session_id=link.session_id,
                acked_seq=acked,
                frame_interval_s=settings.FRAME_INTERVAL_S,
                sample_interval_s=settings.SAMPLE_INTERVAL_S,
                demo=settings.HOLDFAST_DEMO,
                reconnect_within_s=self.process.intake.return_s(),
                server_keys=keys.server_public_keys(),
                server_keys_signature=keys.server_keys_signature(),
            )
        )
        self.listed = await self.process.indexes(link.node_id)
        await self.process.register(link)

    async def _next(self, receive: Any) -> bytes | None:
        if self._heard is None:
            return await proof.next_bytes(receive)
        heard, self._heard = self._heard, None
        return await heard

    async def _read(self, receive: Any) -> None:
        while not self.link.closed:
            data = await self._next(receive)
            if data is None:
                return
            if not self.pace.may_speak():
                await self._count("rate", "more frames than allowed")
                self.process.refusals.note(self.link.node_name, "rate")
                await self.link.refuse("overloaded", f"at most {FRAMES_PER_S:.0f} frames a second", OVERLOAD_RETRY_S)
                return
            try:
                pause_s = self.pace.pause_s(len(data), await self._take(data))
            except ProtocolError as error:
                if not await self._bad(error):
                    return
            except asyncio.QueueFull:
                await self.link.refuse("overloaded", "too many events wait to be written", OVERLOAD_RETRY_S)
                return
            else:
                if pause_s > 0.0:
                    await self._count("pace", f"{pause_s:.1f} s until more is read")
                    await asyncio.sleep(pause_s)

    async def _understood(self, data: bytes) -> tuple[FromAgent, bytes]:
        """The message, and bytes that decode to it here: fields of a newer agent that this server
        does not know are dropped and counted. Raises ProtocolError."""
        if not self.entrance.newer:
            return decode_from_agent(data), data
        message, dropped = decode_from_newer_agent(data)
        if not dropped:
            return message, data
        names = ", ".join(sorted(dropped)[:MAX_NAMED])
        await self._count("newer_field", f"not known here, dropped: {names}; upgrade the server")
        return message, encode_frame(message)

    async def _take(self, data: bytes) -> int:
        """One frame; how many events it has. Raises ProtocolError, or QueueFull when the writer
        is behind."""
        frame, data = await self._understood(data)
        if isinstance(frame, Proof | NewKey):
            self.entrance.answered(frame)
            return 0
        if not isinstance(frame, AgentFrame):
            raise MalformedFrame("a second hello in one session")
        if len(frame.events) > MAX_EVENTS_PER_FRAME:
            raise MalformedFrame(f"{len(frame.events)} events in one frame, {MAX_EVENTS_PER_FRAME} are allowed")
        check_size(frame)
        metrics.FRAMES.labels(result="ok").inc()
        await self._hints(frame, data)
        if not frame.events:
            return 0
        link = self.link
        item = Item(node_id=link.node_id, session_id=link.session_id, callback=link.on_written, events=frame.events)
        if not self.process.writer.put(item):
            raise asyncio.QueueFull
        return len(frame.events)

    async def _hints(self, frame: AgentFrame, data: bytes) -> None:
        """Its readings, of what the node has listed and within its share, to the sentinel."""
        clean = only_listed(frame, self.listed)
        if clean is not frame:
            dropped = len(frame.devices) - len(clean.devices) + len(frame.ranks) - len(clean.ranks)
            await self._count("unknown_device", f"{dropped} readings of devices that the node never listed")
        if clean is not frame or len(data) > MAX_HINT_BYTES:
            data = encode_frame(msgspec.structs.replace(clean, events=()))
        if self.pace.may_hint(len(data)):
            self.process.buffer_frame(self.link, data)
        else:
            await self._count("hints", f"{len(data)} bytes of readings are over this node's share")

    async def _bad(self, error: ProtocolError) -> bool:
        """Count it; False when it was one too many (or too large to go on)."""
        self.bad += 1
        metrics.FRAMES.labels(result=error.code).inc()
        await self._count(error.code, str(error))
        if self.bad < MAX_BAD_FRAMES and not isinstance(error, FrameTooLarge):
            return True
        await self.link.refuse(error.code, f"{self.bad} bad frames; the last: {error}", OVERLOAD_RETRY_S)
        return False

    async def _count(self, reason: str, detail: str) -> None:
        await self.process.count(self.link.node_name, reason, detail)
