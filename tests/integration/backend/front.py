"""What stands before the web process in TLS: a proxy as it should be, or a machine in the middle.

`Front` ends TLS and passes WebSocket messages on, changed or not; `Dialler` is the real agent's key,
identity and link, without the rest of an agent. The name that it dials is 127.0.0.2: this machine, and
yet none of the names for which a proof may do without a certificate.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from agents.core.events import Event, LinkUp
from agents.link.client import Link
from agents.link.enrol import Facts, enrol
from agents.link.identity import NodeIdentity, own_key
from agents.link.server import Server
from controlplane.protocol import frames
from controlplane.protocol.codec import decode_from_agent, decode_to_agent, encode_frame
from controlplane.protocol.handshake import CHANNEL_HEADER, Challenge, Proof
from controlplane.protocol.samples import DeviceInfo
from tests.integration.agents.authority import Authority
from tests.integration.backend.ending import end

HOST = "127.0.0.2"
DECIDED_S = 20.0


class Front:
    """`target`: the web process, ws://. `challenge` and `proof` change those messages on their way;
    `offer` False: the header by which the agent offers to bind its proof is dropped."""

    def __init__(
        self, target: str, context: ssl.SSLContext, *, offer: bool = True,
        challenge: Callable[[Challenge], Challenge] = lambda one: one,
        proof: Callable[[Proof], Proof] = lambda one: one,
    ) -> None:  # fmt: skip
        self._target, self._context, self._offer = target.replace("http://", "ws://"), context, offer
        self._challenge, self._proof = challenge, proof
        self.passed_on = 0

    async def __aenter__(self) -> "Front":
        self._server = await serve(self._agent, HOST, 0, ssl=self._context, compression=None)
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _agent(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        offer = socket.request.headers.get(CHANNEL_HEADER) if self._offer else None
        headers = None if offer is None else {CHANNEL_HEADER: offer}
        async with connect(self._target + socket.request.path, additional_headers=headers, compression=None) as server:
            pumps = {
                asyncio.create_task(_pump(server, socket, self._to_agent)),
                asyncio.create_task(_pump(socket, server, self._to_server)),
            }
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            await end(*pumps)

    def _to_agent(self, data: bytes) -> bytes:
        message = decode_to_agent(data)
        return encode_frame(self._challenge(message)) if isinstance(message, Challenge) else data

    def _to_server(self, data: bytes) -> bytes:
        message = decode_from_agent(data)
        if not isinstance(message, Proof):
            return data
        self.passed_on += 1
        return encode_frame(self._proof(message))


class Dialler:
    """An agent that enrolled at `server` (plain, on loopback) and then dials fronts."""

    def __init__(self, directory: Path, authority: Authority, name: str = "node-1") -> None:
        self.directory, self.authority, self.name = directory, authority, name
        self.notes: list[dict[str, Any]] = []
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def enrol(self, url: str, token: str) -> None:
        """Blocking."""
        facts = Facts(
            node_name=self.name, boot_id="boot", machine_id="machine", segment="", devices=self._hello().devices
        )
        key = own_key(self.directory)
        server = Server(url=url.replace("http://", "ws://"))
        self.credential = enrol(server, join_token=token, key=key, old_key=None, facts=facts)

    @contextlib.asynccontextmanager
    async def session(self, front: Front) -> Any:
        """One session through this front, as long as the block lasts: "welcome", or "code: detail"
        of the refusal."""
        decided: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def dispatch(event: Event) -> None:
            if isinstance(event, LinkUp) and not decided.done():
                decided.set_result("welcome")

        def note(text: str, **fields: Any) -> None:
            self.notes.append({"text": text} | fields)
            if text == "server refused the session" and not decided.done():
                decided.set_result(f"{fields['code']}: {fields['detail']}")

        identity = NodeIdentity(self.directory, self.credential, server_host=HOST, machine_id="machine")
        link = Link(
            Server(url=f"wss://{HOST}:{front.port}", ca_file=self.authority.file),
            identity=identity, hello=self._hello, compose=lambda: None, dispatch=dispatch, note=note,
        )  # fmt: skip
        running = asyncio.create_task(link.run())
        try:
            yield await asyncio.wait_for(decided, DECIDED_S)
        finally:
            await end(running)

    async def told(self, front: Front) -> str:
        """The server's decision about one session, which ends then."""
        async with self.session(front) as said:
            return str(said)

    def _hello(self) -> frames.AgentHello:
        device = DeviceInfo(index=0, uuid=f"GPU-{self.name}", model="Test", memory_bytes=1 << 34, driver="simulated")
        return frames.AgentHello(
            protocol_min=frames.PROTOCOL_MIN, protocol_max=frames.PROTOCOL_MAX, node_name=self.name,
            agent_version="test", boot_id="boot", journal_id="journal", devices=(device,), ranks=(),
        )  # fmt: skip


def changed(**fields: Any) -> Callable[[Any], Any]:
    """The message with other values."""
    return lambda message: msgspec.structs.replace(message, **fields)


async def _pump(source: Any, sink: Any, change: Callable[[bytes], bytes]) -> None:
    try:
        async for data in source:
            await sink.send(change(data))
    except ConnectionClosed:
        return
