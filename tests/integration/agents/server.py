"""A control plane of one screen: accepts agents, acknowledges, sends orders.

It also answers enrolment (plain HTTP POST on the same port, as the real one does), and
signs its commands with a key of its own.
"""

import asyncio
import itertools
import json
import os
import ssl
import time
from collections.abc import Callable
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from agents.link.pins import signed_by
from controlplane.protocol.codec import decode_from_agent, encode_frame
from controlplane.protocol.commands import Body, CommandStatement, SignedCommand
from controlplane.protocol.frames import (
    PROTOCOL_MAX,
    Acked,
    AgentEvent,
    AgentFrame,
    AgentHello,
    CommandAnswer,
    FromAgent,
    Order,
    Refused,
    Welcome,
)
from controlplane.protocol.handshake import Challenge, Proof, session_statement
from controlplane.protocol.signing import encode_statement, key_id, signed_command, to_text

NODE_ID = "node_01"
JOIN_TOKEN = "holdfast_join_1_secret"


def public_text(key: Ed25519PrivateKey) -> str:
    return to_text(key.public_key().public_bytes_raw())


def sign(key: Ed25519PrivateKey, statement: CommandStatement) -> SignedCommand:
    """As controlplane.dispatch signs and sends it."""
    data = encode_statement(statement)
    return SignedCommand(statement.command_id, key_id(public_text(key)), key.sign(signed_command(data)), data)


class Server:
    """`events` in order of arrival without repeats; `arrived` parallel to it (monotonic seconds)."""

    def __init__(self, *, interval_s: float = 0.2, demo: bool = True, acks: bool = True) -> None:
        self.interval_s = interval_s
        self.demo = demo
        self.acks = acks
        self.refusal: Refused | None = None
        self.protocol = PROTOCOL_MAX
        self.bind_tls = False
        self.news: dict[str, Any] = {}
        self.refuses_hello: Callable[[bytes], bool] = lambda data: False
        self.raw_hellos: list[bytes] = []
        self.raw_frames: list[bytes] = []
        self.hellos: list[AgentHello] = []
        self.frames: list[AgentFrame] = []
        self.events: list[AgentEvent] = []
        self.arrived: list[float] = []
        self.acked: dict[str, int] = {}
        self.tokens: list[str] = []
        self.headers: list[str] = []
        self.enrolments: list[dict[str, Any]] = []
        self.keys = [Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()]
        self.keys_signature = ""
        self.public_key = ""
        self.proofs: list[Proof] = []
        self.new_keys: list[Any] = []
        self.strangers = 0
        self.second_token = ""
        self.refusals = 0
        self.connections = 0
        self.gaps = 0
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self._socket: ServerConnection | None = None
        self._changed = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._run = f"{time.monotonic_ns():x}"

    @property
    def url(self) -> str:
        return f"wss://localhost:{self.port}" if self.tls else f"ws://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "Server":
        self._inner = await serve(self._agent, "127.0.0.1", 0, compression=None, ping_interval=None)
        self._inner_port = next(iter(self._inner.sockets)).getsockname()[1]
        self._front = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._front.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._front.close()
        if self._socket is not None:
            self._socket.transport.abort()
        self._inner.close()

    async def send(self, body: Body, *, epoch: int = 0, job_id: str = "", attempt: int = 0, **changes: Any) -> str:
        statement = self.statement(body, epoch=epoch, job_id=job_id, attempt=attempt, **changes)
        await self.send_signed(sign(self.keys[0], statement))
        return statement.command_id

    async def send_signed(self, *commands: SignedCommand, server_time_s: float | None = None) -> None:
        """As they are, whoever signed them."""
        await self.send_raw(encode_frame(Order(commands, time.time() if server_time_s is None else server_time_s)))

    def statement(self, body: Body, **changes: Any) -> CommandStatement:
        values = {"epoch": 0, "issued_at_s": time.time(), "ttl_s": 60.0, "node_id": NODE_ID} | changes
        values["issued_at_s"] -= values.pop("age_s", 0.0)
        values.setdefault("command_id", f"cmd_{self._run}_{next(self._numbers)}")
        return CommandStatement(body=body, **values)

    @property
    def public_keys(self) -> tuple[str, ...]:
        return tuple(public_text(key) for key in self.keys)

    async def send_raw(self, data: bytes) -> None:
        await self.until(lambda: self._socket is not None)
        await self._socket.send(data)

    async def until(self, holds: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        """Wait for something the agent says; what `holds` returned."""
        async with asyncio.timeout(timeout_s), self._changed:
            while not (found := holds()):
                await self._changed.wait()
            return found

    def bodies(self, kind: type) -> list[Any]:
        return [event.body for event in self.events if isinstance(event.body, kind)]

    def answer(self, command_id: str) -> CommandAnswer | None:
        final = [a for a in self.bodies(CommandAnswer) if a.command_id == command_id and a.state != "acknowledged"]
        return final[-1] if final else None

    async def done(self, command_id: str, timeout_s: float = 30.0) -> CommandAnswer:
        return await self.until(lambda: self.answer(command_id), timeout_s)

    async def cut(self) -> None:
        if self._socket is not None:
            self._socket.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST /agent/v1/enroll"):
            length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length"))
            await self._enrol(json.loads(await reader.readexactly(length)), writer)
            return
        self.headers.append(head.decode())
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._inner_port)
        inner_writer.write(head)
        try:
            await asyncio.gather(_pipe(reader, inner_writer), _pipe(inner_reader, writer))
        except asyncio.CancelledError:
            # The loop ends with the test; asyncio's own callback would print the cancellation.
            return

    async def _enrol(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.enrolments.append(request)
        good = request["join_token"] in (JOIN_TOKEN, self.second_token)
        if good:
            answer = {"node_id": NODE_ID, "server_keys": self.public_keys}
            status, kind, body = "201 Created", "application/json", answer
            self.public_key = request["public_key"]
        else:
            status, kind = "403 Forbidden", "application/problem+json"
            body = {"title": "Forbidden", "detail": "this join token has expired"}
        data = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        await writer.drain()
        writer.close()

    async def _agent(self, socket: ServerConnection) -> None:
        nonce = os.urandom(32)
        await socket.send(encode_frame(Challenge(nonce, bind_tls=self.bind_tls)))
        proof = decode_from_agent(await socket.recv())
        assert isinstance(proof, Proof)
        if self.public_key and not signed_by(self.public_key, proof.signature, session_statement(nonce, proof)):
            self.strangers += 1
            await socket.send(encode_frame(Refused("unknown_node", "no node is known by this key", 0.1)))
            return
        self.proofs.append(proof)
        data = await socket.recv()
        self.raw_hellos.append(data)
        if self.refuses_hello(data):
            await socket.send(encode_frame(Refused("malformed_frame", "agent frame: unknown field")))
            return
        hello = decode_from_agent(data)
        assert isinstance(hello, AgentHello)
        self.connections += 1
        if self.refusal is not None:
            await socket.send(encode_frame(self.refusal))
            async with self._changed:
                self.refusals += 1
                self._changed.notify_all()
            return
        seen = self.acked.setdefault(hello.journal_id, 0)
        await socket.send(
            self._with_news(
                Welcome(
                    protocol=self.protocol,
                    node_id=NODE_ID,
                    session_id=f"ses_{self.connections}",
                    acked_seq=seen,
                    frame_interval_s=self.interval_s,
                    sample_interval_s=self.interval_s,
                    demo=self.demo,
                    server_keys=self.public_keys,
                    server_keys_signature=self.keys_signature,
                )
            )
        )
        async with self._changed:
            self.hellos.append(hello)
            self._socket = socket
            self._changed.notify_all()
        try:
            async for data in socket:
                self.raw_frames.append(data)
                await self._frame(socket, hello.journal_id, decode_from_agent(data))
        except ConnectionClosed:
            pass
        finally:
            if self._socket is socket:
                self._socket = None

    def _with_news(self, message: Welcome) -> bytes:
        """As a server says it that knows fields which this release does not."""
        return msgspec.msgpack.encode(msgspec.msgpack.decode(encode_frame(message)) | self.news)

    async def _frame(self, socket: ServerConnection, journal_id: str, frame: FromAgent) -> None:
        if not isinstance(frame, AgentFrame):
            async with self._changed:
                (self.proofs if isinstance(frame, Proof) else self.new_keys).append(frame)
                self._changed.notify_all()
            return
        now_s = time.monotonic()
        async with self._changed:
            self.frames.append(frame)
            for event in frame.events:
                if event.seq == self.acked[journal_id] + 1:
                    self.acked[journal_id] = event.seq
                    self.events.append(event)
                    self.arrived.append(now_s)
                elif event.seq > self.acked[journal_id]:
                    self.gaps += 1
            self._changed.notify_all()
        if frame.events and self.acks:
            await socket.send(encode_frame(Acked(self.acked[journal_id])))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
