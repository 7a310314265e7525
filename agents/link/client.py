"""The session with the server: one WebSocket, kept up for ever.

Theory of operation. `Link.run` connects, proves with the node's key who it is (`link.identity`),
says hello, waits for the welcome, and then two things go on: whatever the server says becomes
events, and whenever somebody calls `wake`, the next frame is built (by `compose`, so it is
always of the present) and sent.
At most one frame is under way, so a slow server makes frames fewer, not older.
"""

import asyncio
import random
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from agents.core import backoff
from agents.core.events import Event, LinkDown, LinkUp, OrderReceived, ResyncAsked, ServerAcked
from agents.errors import LinkRefused, SignatureRejected
from agents.link.identity import NodeIdentity
from agents.link.older import OlderServer
from agents.link.server import Server, certificate_shown
from controlplane.protocol.codec import decode_to_older_agent, encode_frame
from controlplane.protocol.commands import CommandEnvelope
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.frames import (
    MAX_SERVER_MESSAGE_BYTES,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Acked,
    AgentFrame,
    AgentHello,
    Order,
    Refused,
    ToAgent,
    Welcome,
)
from controlplane.protocol.handshake import CHANNEL_CERTIFICATE, CHANNEL_HEADER, Challenge, KeyAccepted, RotateKey

_OPEN_TIMEOUT_S = 10.0
_QUIET_S = 10.0  # nothing heard for so long: ask
_DEAD_S = 20.0  # nor any answer: the session is dead, whatever TCP says
_STABLE_S = 10.0  # a session that lasted resets the backoff
_MAX_GARBAGE = 20  # undecodable messages before the session is given up
_OUTCAST = frozenset({"unknown_node", "revoked"})


class Link:
    """Owns the connection. Never raises into the agent; ends up in a retry instead."""

    def __init__(
        self,
        server: Server,
        *,
        identity: NodeIdentity,
        hello: Callable[[], AgentHello],
        compose: Callable[[], tuple[AgentFrame, bool] | None],
        dispatch: Callable[[Event], None],
        note: Callable[..., None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._server = server
        self._identity = identity
        self._hello = hello
        self._compose = compose
        self._dispatch = dispatch
        self._note = note
        self._jitter = jitter
        self._wake = asyncio.Event()
        self._wake_at: asyncio.TimerHandle | None = None
        self._socket: ClientConnection | None = None
        self._heard_s = 0.0
        self._garbage = 0
        self._said: AgentHello | None = None
        self._drop_s: float | None = None
        self._within_s = backoff.CAP_S
        self._revision = self._hello_revision = PROTOCOL_MAX
        self.unknown_fields: Counter[str] = Counter()
        self.older = OlderServer(note)
        self.on_outcast: Callable[[], Awaitable[bool]] = _no_remedy

    def wake(self, within_s: float = 0.0) -> None:
        """A frame must leave within this time; an earlier request stands."""
        if within_s <= 0.0:
            self._wake_now()
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + within_s
        if self._wake_at is not None and self._wake_at.when() <= due:
            return
        if self._wake_at is not None:
            self._wake_at.cancel()
        self._wake_at = loop.call_at(due, self._wake_now)

    def drop(self, seconds: float) -> None:
        """Close after the frame under way and stay away for so long."""
        self._drop_s = seconds
        self._wake_now()

    async def run(self) -> None:
        """For ever: connect, serve, wait, again. Ends only by cancellation."""
        failures = 0
        while True:
            began_s = time.monotonic()
            at_least_s = 0.0
            try:
                await self._session()
            except LinkRefused as error:
                self._note("server refused the session", code=error.code, detail=str(error))
                at_least_s = await self._after_refusal(error)
            except InvalidStatus as error:
                status = error.response.status_code
                self._note("server refused the connection", status=status)
                if status in (401, 403):
                    at_least_s = backoff.CAP_S
            except (OSError, TimeoutError, ConnectionClosed, InvalidHandshake, ProtocolError) as error:
                self._note("link lost", error=f"{type(error).__name__}: {error}")
            except Exception:
                self._note("internal error", on="link", trace=traceback.format_exc(limit=8))
            finally:
                self._socket = None
                self._dispatch(LinkDown(now_s=time.monotonic()))
            if self._drop_s is not None:
                await asyncio.sleep(self._drop_s)
                self._drop_s = None
                failures = 0
            stable = time.monotonic() - began_s > _STABLE_S
            failures = 0 if stable else failures + 1
            delay_s = backoff.delay_s(failures, self._jitter(), at_least_s=at_least_s, within_s=self._within_s)
            await asyncio.sleep(delay_s)

    async def _after_refusal(self, error: LinkRefused) -> float:
        """What can be done about it; seconds to stay away at least."""
        if error.code == "unknown_node" and self._identity.unknown():
            return 0.0
        if error.code in _OUTCAST and await self.on_outcast():
            return 0.0
        if error.code == "malformed_frame" and self._socket is None and self._hello_revision > PROTOCOL_MIN:
            # A hello comes before the revision is agreed on: an older server may not know all of it.
            self._hello_revision = PROTOCOL_MIN
            self._note("the server did not understand our hello: it is said as older agents say it")
            return 0.0
        if error.code == "resync":
            self._dispatch(LinkDown(now_s=time.monotonic()))
            self._dispatch(ResyncAsked(now_s=time.monotonic()))
        return backoff.PARKED_S if error.retry_after_s is None else error.retry_after_s

    async def _session(self) -> None:
        await asyncio.to_thread(self._identity.begin_session)
        tls = self._server.context()
        socket = await connect(
            f"{self._server.url}/agent/v1/stream",
            ssl=tls,
            additional_headers={CHANNEL_HEADER: CHANNEL_CERTIFICATE} if tls is not None else None,
            compression=None,
            max_size=MAX_SERVER_MESSAGE_BYTES,
            open_timeout=_OPEN_TIMEOUT_S,
            ping_interval=None,
            close_timeout=1.0,
            proxy=None,
            user_agent_header=None,
        )
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                welcome = await self._welcome(socket)
            self._identity.welcomed()
            self._socket = socket
            self._within_s = welcome.reconnect_within_s
            self._heard_s = time.monotonic()
            self._garbage = 0
            self._renew(welcome)
            self._dispatch(LinkUp(now_s=self._heard_s, welcome=welcome))
            await self._serve(socket)
        finally:
            # A stop of the agent closes politely; a dead peer must not hold us up.
            await socket.close(1001, "agent stops; its ranks run on")

    async def _welcome(self, socket: ClientConnection) -> Welcome:
        """Prove who we are as often as we are asked to, say hello once, until the server decides."""
        hello: AgentHello | None = None
        while True:
            message = self._understood(await socket.recv())
            match message:
                case Challenge():
                    if hello is None:
                        hello = self._hello()
                        await self._prove(socket, message, hello)
                        await socket.send(encode_frame(hello, self._hello_revision))
                    else:
                        await self._prove(socket, message, hello)
                case Welcome() if hello is None:
                    raise LinkRefused("bad_protocol", "this server asks for no proof of identity", retry_after_s=None)
                case Welcome():
                    self._said = hello
                    self._revision = min(message.protocol, PROTOCOL_MAX)
                    self.older.begin()
                    return message
                case Refused():
                    raise LinkRefused(message.code, message.detail, retry_after_s=message.retry_after_s)
                case _:
                    continue

    def _understood(self, data: str | bytes) -> ToAgent:
        """Fields of a newer server that this agent does not know are dropped, counted and noted
        once each. Raises ProtocolError."""
        message, dropped = decode_to_older_agent(_bytes(data))
        for name in dropped.keys() - self.unknown_fields.keys():
            self._note("the server is newer and says what this agent does not know: dropped", field=name)
        self.unknown_fields.update(dropped)
        return message

    async def _prove(self, socket: ClientConnection, challenge: Challenge, said: AgentHello) -> None:
        shown = certificate_shown(socket.transport.get_extra_info("ssl_object")) if challenge.bind_tls else ""
        proof = self._identity.prove(
            challenge.nonce, boot_id=said.boot_id, journal_id=said.journal_id, tls_certificate=shown
        )
        await socket.send(encode_frame(proof))

    async def _rotate(self, socket: ClientConnection, asked: RotateKey) -> None:
        """A new key, on disk before it is told. A disk that refuses leaves the old one in use."""
        try:
            new = await asyncio.to_thread(self._identity.rotate, asked.nonce)
        except OSError as error:
            self._note("no new key could be stored: the old one stays", error=str(error))
            return
        await socket.send(encode_frame(new))

    async def _serve(self, socket: ClientConnection) -> None:
        tasks = {
            asyncio.create_task(self._receive(socket)),
            asyncio.create_task(self._send(socket)),
            asyncio.create_task(self._watch(socket)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        assert done, "one of them ended"

    async def _receive(self, socket: ClientConnection) -> None:
        async for data in socket:
            now_s = time.monotonic()
            self._heard_s = now_s
            try:
                message = self._understood(data)
            except ProtocolError as error:
                self._garbage += 1
                self._note("message from the server dropped", error=str(error)[:200])
                if self._garbage > _MAX_GARBAGE:
                    raise
                continue
            match message:
                case Acked():
                    self._dispatch(ServerAcked(now_s=now_s, seq=message.seq, resend=message.resend))
                case Order():
                    self._dispatch(self._verified(message, now_s))
                case Refused():
                    raise LinkRefused(message.code, message.detail, retry_after_s=message.retry_after_s)
                case Challenge() if self._said is not None:
                    await self._prove(socket, message, self._said)
                case RotateKey():
                    await self._rotate(socket, message)
                case KeyAccepted():
                    await asyncio.to_thread(self._identity.accepted, message.public_key)
                    self._note("the node's key was replaced")
                case _:
                    continue

    def _verified(self, order: Order, now_s: float) -> OrderReceived:
        """Only what the server signed for this node goes on as a command."""
        pins = self._identity.pins
        good: list[CommandEnvelope] = []
        bad: list[tuple[str, str]] = []
        for command in order.commands:
            try:
                good.append(pins.verify(command, order.server_time_s))
            except SignatureRejected as error:
                bad.append((command.command_id, str(error)))
        return OrderReceived(now_s=now_s, commands=tuple(good), rejected=tuple(bad))

    def _renew(self, welcome: Welcome) -> None:
        """The server has rotated its keys, or another speaks in its name."""
        pins = self._identity.pins
        if welcome.server_keys == pins.keys:
            return
        if pins.renew(welcome.server_keys, welcome.server_keys_signature):
            self._note("the server's keys were renewed", keys=len(welcome.server_keys))
        else:
            self._note("keys not taken: no pinned key of the server has signed them; its commands are refused")

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            composed = self._compose()
            if composed is not None:
                frame, more = composed
                await socket.send(encode_frame(self.older.fit(frame, self._revision), self._revision))
                if more:
                    self._wake.set()
                    continue
            if self._drop_s is not None:
                return

    async def _watch(self, socket: ClientConnection) -> None:
        """The peer's event loop must show life, not only its kernel."""
        while True:
            await asyncio.sleep(_QUIET_S / 2)
            if time.monotonic() - self._heard_s > _QUIET_S:
                async with asyncio.timeout(_DEAD_S - _QUIET_S):
                    await (await socket.ping())
                self._heard_s = time.monotonic()

    def _wake_now(self) -> None:
        if self._wake_at is not None:
            self._wake_at.cancel()
            self._wake_at = None
        self._wake.set()


async def _no_remedy() -> bool:
    return False


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data
