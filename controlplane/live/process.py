"""What one web process keeps besides requests: its agents, its browsers, its pumps.

ASGI wrapper: started by the lifespan (or by the first socket where there is none),
stopped with it. Each pump is a loop that survives any failure of Redis or the database
and says so once.
"""

import asyncio
import contextlib
import ipaddress
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

import redis
from django.conf import settings
from django.db import close_old_connections, transaction

from controlplane.access import services as access
from controlplane.fleet import identity
from controlplane.fleet.identity import Admission as Admitted
from controlplane.fleet.identity import Shown
from controlplane.fleet.models import Node
from controlplane.fleet.selectors import device_indexes
from controlplane.live import proof, pumps
from controlplane.live.hub import Hub
from controlplane.live.intake import Intake
from controlplane.live.limits import Admission, Refusals
from controlplane.live.links import AgentLink
from controlplane.live.together import Together
from controlplane.live.writer import Writer
from controlplane.protocol.handshake import Proof
from controlplane.runtime import bus, counters, keys, metrics
from controlplane.runtime.batches import BatchSealer, Room
from controlplane.runtime.logs import get
from controlplane.runtime.seal import tally
from controlplane.runtime.tls_files import ShownCertificates

FLUSH_S = 0.025
COUNT_S = 0.5
# Refusals for what a session did; "replaced" and "overloaded" are ordinary and only counted.
AUDITED = frozenset(
    {"unknown_node", "revoked", "bad_protocol", "identity_mismatch", "frame_too_large", "malformed_frame"}
)
MAX_BUFFERED = 20_000
RESTART_S = 0.5
IDLE_S = 0.5
DB_THREADS = 3

T = TypeVar("T")
_log = get(__name__)
App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


class WebProcess:
    """`name` is how the outbox finds this process: part of each of its session ids."""

    _current: ClassVar["WebProcess | None"] = None

    def __init__(self, app: App) -> None:
        self.app = app
        self.name = f"w{os.urandom(5).hex()}"
        self.links: dict[str, AgentLink] = {}
        self.hub = Hub()
        self.outbox_wakeup = asyncio.Event()
        self.any_due = False
        self.arrived: set[str] = set()
        self.writer = Writer(self._volatile_from_thread)
        self.started_s = time.monotonic()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.admission = Admission()
        self.intake = Intake()
        self.signers: Together[tuple[Proof, bytes], Node | None] = Together(self.in_thread, proof.nodes_that_signed)
        self.admissions: Together[tuple[str, Shown], Admitted | None] = Together(self.in_thread, identity.admit_plain)
        self.indexes: Together[str, frozenset[int]] = Together(self.in_thread, device_indexes)
        self.refusals = Refusals()
        self.certificates = ShownCertificates(settings.TLS_CERTIFICATES)
        self._counts: dict[tuple[str, str], tuple[int, str]] = {}
        self._buffer: list[tuple[str, str, float, bytes]] = []
        self._batches = BatchSealer(self.name)
        self._room = Room()
        self._tasks: list[asyncio.Task[None]] = []
        self._pool = ThreadPoolExecutor(DB_THREADS, thread_name_prefix="live-db")
        WebProcess._current = self

    @classmethod
    def current(cls) -> "WebProcess":
        """The one of this process."""
        assert cls._current is not None, "the ASGI application makes it"
        return cls._current

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            if settings.REQUIRE_LOOPBACK and not _on_loopback(scope):
                await _refuse_remote(scope, receive, send)
                return
            await self.app(scope, receive, send)
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.ensure_started()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def ensure_started(self) -> None:
        """Start the writer and the pumps, once."""
        if self.loop is not None:
            return
        # Without it no agent could be welcomed and no command given: say so at the start.
        keys.current()
        self.loop = asyncio.get_running_loop()
        self.writer.start()
        loops = (
            self._flush_telemetry,
            self._flush_counts,
            lambda: pumps.listen(self),
            lambda: pumps.deliver_orders(self),
            lambda: pumps.follow_events(self),
            lambda: pumps.tell_health(self),
            lambda: pumps.announce_watched(self),
            lambda: pumps.beat(self),
        )
        self._tasks = [asyncio.create_task(self._keep(loop)) for loop in loops]

    async def stop(self) -> None:
        """Close every agent's session in an orderly way, so that it reconnects elsewhere."""
        for link in list(self.links.values()):
            await link.refuse("overloaded", "this server process is going down", 0.2)
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.writer.stop)
        self._pool.shutdown(wait=False)

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run database work outside the loop, with the connection given back after it."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, _with_connection, work, *args)

    async def count(self, node_name: str, reason: str, detail: str = "") -> None:
        """Count refused input. Rows are written once in `COUNT_S`, whatever a flood sends."""
        metrics.FRAMES.labels(result=reason).inc()
        number, _ = self._counts.get((node_name, reason), (0, ""))
        self._counts[node_name, reason] = (number + 1, detail)

    def note_refusal(self, link: AgentLink) -> None:
        """A session was refused by us for what it did: audited, not with every try."""
        if link.refused_as in AUDITED:
            self.refusals.note(link.node_name, link.refused_as)

    def any_node(self) -> None:
        """Commands are due, to whatever nodes."""
        self.any_due = True
        self.outbox_wakeup.set()

    async def register(self, link: AgentLink) -> None:
        """The newest session of a node is the one that gets its orders."""
        before = self.links.get(link.node_id)
        self.links[link.node_id] = link
        self.arrived.add(link.node_id)
        metrics.AGENT_CONNECTIONS.set(len(self.links))
        self.outbox_wakeup.set()
        if before is not None and before is not link:
            await before.refuse("replaced", "a newer session of this node is live", 0.1)

    def unregister(self, link: AgentLink) -> None:
        """Only if it was not replaced meanwhile."""
        if self.links.get(link.node_id) is link:
            del self.links[link.node_id]
        metrics.AGENT_CONNECTIONS.set(len(self.links))

    def buffer_frame(self, link: AgentLink, data: bytes) -> None:
        """A frame's hints wait for the next append; the oldest are shed."""
        if len(self._buffer) >= MAX_BUFFERED:
            del self._buffer[: MAX_BUFFERED // 10]
            metrics.FRAMES.labels(result="shed").inc(MAX_BUFFERED // 10)
        self._buffer.append((link.node_id, link.session_id, time.time(), data))

    async def _flush_counts(self) -> None:
        """Counts and refusals to rows; while the database is away they wait in memory."""
        while True:
            await asyncio.sleep(COUNT_S)
            counts, self._counts = self._counts, {}
            try:
                await self.in_thread(_write_counts, counts)
            except Exception:
                for (node_name, reason), (number, detail) in counts.items():
                    later, newest = self._counts.get((node_name, reason), (0, ""))
                    self._counts[node_name, reason] = (number + later, newest or detail)
                raise
            refused = self.refusals.due()
            if refused:
                await self.in_thread(_audit_refusals, refused)

    def _volatile_from_thread(self, topic: str, message: dict[str, Any]) -> None:
        """The writer's pictures, when Redis cannot carry them: at least to our own browsers."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.hub.volatile, topic, message)

    async def _flush_telemetry(self) -> None:
        """Append what waits, sealed and numbered; a sign of life where nothing does."""
        client = bus.async_client()
        flushed_s = 0.0
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                if not self._buffer and time.monotonic() - flushed_s < IDLE_S:
                    continue
                batch, self._buffer = self._buffer, []
                flushed_s = time.monotonic()
                try:
                    for entry in self._batches.seal(batch):
                        at = await client.xadd(bus.STREAM, {"d": entry}, minid=self._room.oldest(), approximate=True)
                        self._room.note(at.decode(), len(entry), time.monotonic())
                except redis.ResponseError as error:
                    # Not a stream, or one whose numbers are used up: none of us made it so.
                    tally.note("stream", str(error))
                    self._room = Room()
                    with contextlib.suppress(redis.RedisError, OSError):
                        await client.delete(bus.STREAM)
                    await asyncio.sleep(RESTART_S)
                except (redis.RedisError, OSError) as error:
                    # Hints: the newest wins, so nothing is kept for later.
                    bus.health.note(error)
                    metrics.FRAMES.labels(result="stream_away").inc(len(batch))
                    await asyncio.sleep(RESTART_S)
        finally:
            await client.aclose()

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a pump for ever; a failure is logged and it starts again."""
        while True:
            try:
                await loop()
            except asyncio.CancelledError:
                raise
            except Exception:
                _log.exception("a pump failed and starts again")
            await asyncio.sleep(RESTART_S)


def _write_counts(counts: dict[tuple[str, str], tuple[int, str]]) -> None:
    """All or none, so that none is counted twice."""
    with transaction.atomic():
        for (node_name, reason), (number, detail) in counts.items():
            counters.count(node_name, reason, number=number, detail=detail)


def _audit_refusals(refused: list[tuple[str, str, int]]) -> None:
    for node_name, code, number in refused:
        access.audit(f"node:{node_name}", "agent.session_refused", node_name, reason=code, data={"times": number})


def _on_loopback(scope: dict[str, Any]) -> bool:
    """The socket it came in on listens on loopback (a unix socket names no address)."""
    host = (scope.get("server") or ("", None))[0]
    try:
        return host in ("", None, "testserver") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _refuse_remote(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The embedded profile has no TLS and is for one machine: it serves nobody else."""
    _log.error("refused: the embedded profile listens beyond loopback", server=str(scope.get("server")))
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 4403})
        return
    body = b"The embedded profile serves loopback only; use the production profile.\n"
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


def _with_connection(work: Callable[..., T], *args: Any) -> T:
    close_old_connections()
    try:
        return work(*args)
    finally:
        close_old_connections()
