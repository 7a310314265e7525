"""Serves torch's TCPStore clients; each job sees its own keys only.

A key begins with `/<job id>/<token>/` (`protocol.store_keys`). The first key on a connection
binds it to that job; a key without the right token, or of another job, ends the connection,
is counted and told in the log. Nothing lists keys across jobs: a count is of the connection's
own job. One job cannot fill the store (`memory.MAX_BYTES`) nor take all connections. Started
by `python -m trainer.store`; knows no name server, so a lost answer of one delays nobody.
"""

import asyncio
import hmac
import resource
import sys
import time
from functools import lru_cache

from controlplane.protocol.store_keys import METRICS_KEY, STORE_ITSELF, TOKEN_CHARS, store_token
from trainer.store import wire
from trainer.store.memory import Shelf, ShelfFull
from trainer.store.wire import Incomplete, Malformed, Query, Reader, Request

FIRST_KEY_WITHIN_S = 60.0
FORGET_AFTER_S = 24 * 3600.0
TIDY_EVERY_S = 600.0
MAX_UNSENT_BYTES = 64 << 20
MAX_JOB_ID_CHARS = 128
TELL_EVERY_S = 1.0


class NotYours(Exception):
    """The key has no valid token, or is another job's."""


class StoreServer:
    """The shelves of all jobs. Runs in one event loop; `start` before anything else."""

    def __init__(self, key: bytes) -> None:
        self.shelves: dict[str, Shelf] = {}
        self.clients: dict[str, int] = {}
        self.connections = 0
        self.refused = 0
        self._told_s = -TELL_EVERY_S
        self._key = key
        self._token = lru_cache(maxsize=4096)(lambda job_id: store_token(key, job_id).encode("ascii"))
        self._server: asyncio.Server | None = None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_a_job = max(64, files // 2)

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Client(self), host, port, backlog=4096)
        return int(self._server.sockets[0].getsockname()[1])

    def tell_health(self, metrics_address: str) -> None:
        """Keep where our figures are ("": nowhere) for the control plane, which asks with the shared key."""
        self.shelf(STORE_ITSELF).put(METRICS_KEY.encode("ascii"), metrics_address.encode("ascii"))

    async def tidy_for_ever(self) -> None:
        """Forget jobs that nobody has asked for in a day."""
        while True:
            await asyncio.sleep(TIDY_EVERY_S)
            self.tidy(time.monotonic())

    def tidy(self, now_s: float) -> None:
        """Drop the shelves of jobs without a client that were last used FORGET_AFTER_S ago."""
        for job_id, shelf in list(self.shelves.items()):
            if job_id != STORE_ITSELF and not self.clients.get(job_id) and now_s - shelf.used_s > FORGET_AFTER_S:
                del self.shelves[job_id]

    def split(self, key: bytes) -> tuple[str, bytes]:
        """(job, what the key is called within it). Raises NotYours."""
        parts = key.split(b"/", 3)
        if len(parts) != 4 or parts[0] or len(parts[1]) > MAX_JOB_ID_CHARS or len(parts[2]) != TOKEN_CHARS:
            raise NotYours("a key without a job's token")
        job_id = parts[1].decode("ascii", "replace")
        if not hmac.compare_digest(self._token(job_id), parts[2]):
            raise NotYours(f"a wrong token for {job_id!r}")
        return job_id, parts[3]

    def shelf(self, job_id: str) -> Shelf:
        """The job's own; made at its first key."""
        shelf = self.shelves.setdefault(job_id, Shelf())
        shelf.used_s = time.monotonic()
        return shelf

    def bind(self, job_id: str) -> None:
        """One more connection of the job. Raises NotYours when it has too many."""
        if self.clients.get(job_id, 0) >= self._most_a_job:
            raise NotYours(f"{job_id!r} has {self._most_a_job} connections, one job may have no more")
        self.clients[job_id] = self.clients.get(job_id, 0) + 1

    def unbind(self, job_id: str) -> None:
        """One less."""
        self.clients[job_id] -= 1
        if not self.clients[job_id]:
            del self.clients[job_id]

    def refuse(self, peer: object, why: str) -> None:
        """Count it, and say so at most once a second."""
        self.refused += 1
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            print(f"store refused {peer!r}: {why} ({self.refused} refused so far)", file=sys.stderr, flush=True)


class Client(asyncio.Protocol):
    """One connection, from its handshake to its end."""

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._valid = False
        self._job_id = ""
        self._needed_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has FIRST_KEY_WITHIN_S to name a job's token."""
        assert isinstance(transport, asyncio.Transport), "a stream transport"
        self._transport = transport
        self._server.connections += 1
        self._deadline = asyncio.get_running_loop().call_later(FIRST_KEY_WITHIN_S, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Serve each whole request; an unfinished one waits."""
        self._buffer += data
        if len(self._buffer) < self._needed_bytes:
            return
        at = self._needed_bytes = 0
        try:
            while at < len(self._buffer) and self._transport is not None and not self._transport.is_closing():
                reader = Reader(self._buffer, at)
                request = reader.request()
                at = reader.at
                self._serve(request)
        except Incomplete as error:
            self._needed_bytes = error.needed_bytes - at
            limit_bytes = wire.MAX_REQUEST_BYTES if self._job_id else wire.MAX_UNBOUND_BYTES
            if self._needed_bytes > limit_bytes:
                self._refuse(f"a request of more than {limit_bytes} bytes")
        except (Malformed, NotYours, ShelfFull, ValueError) as error:
            self._refuse(str(error))
        del self._buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        """It waits for nothing any more."""
        self._transport = None
        self._server.connections -= 1
        if self._deadline is not None:
            self._deadline.cancel()
        if self._job_id:
            self._server.shelf(self._job_id).leave(self)
            self._server.unbind(self._job_id)

    def tell(self, data: bytes) -> None:
        """A client that does not read loses its connection, not our memory."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() + len(data) > MAX_UNSENT_BYTES:
            self._refuse("it does not read its answers")
            return
        self._transport.write(data)

    def _serve(self, request: Request) -> None:
        if not self._valid:
            if request.query is not Query.VALIDATE or request.number != wire.MAGIC:
                raise Malformed("the first request of a connection is a validation")
            self._valid = True
        elif request.query is Query.PING:
            self.tell(wire.ping(request.number))
        elif request.query is Query.VALIDATE:
            raise Malformed("a second validation")
        else:
            keys = tuple(self._own(key) for key in request.keys)
            if not self._job_id:
                # Only a key binds a connection; what asks for all keys without one sees none.
                raise NotYours("a request without a key, before any key of a job")
            self._answer(request, keys, self._server.shelf(self._job_id))

    def _own(self, key: bytes) -> bytes:
        job_id, name = self._server.split(key)
        if not self._job_id:
            self._server.bind(job_id)
            self._job_id = job_id
            if self._deadline is not None:
                self._deadline.cancel()
        if job_id != self._job_id:
            raise NotYours(f"a key of {job_id!r} on a connection of {self._job_id!r}")
        return name

    def _answer(self, request: Request, keys: tuple[bytes, ...], shelf: Shelf) -> None:
        woken: list[object] = []
        match request.query:
            case Query.SET | Query.MULTI_SET:
                for key, value in zip(keys, request.values, strict=True):
                    woken += shelf.put(key, value)
            case Query.APPEND:
                woken = shelf.append(keys[0], request.values[0])
            case Query.COMPARE_SET:
                stands, woken = shelf.compare_set(keys[0], *request.values)
                self.tell(wire.value(stands))
            case Query.GET | Query.MULTI_GET:
                self.tell(b"".join(wire.value(shelf.values.get(key, b"")) for key in keys))
            case Query.ADD:
                total, woken = shelf.add(keys[0], request.number)
                self.tell(wire.number(total))
            case Query.CHECK:
                self.tell(wire.READY if shelf.has(keys) else wire.NOT_READY)
            case Query.WAIT:
                if shelf.wait(self, keys):
                    self.tell(wire.STOP_WAITING)
            case Query.CANCEL_WAIT:
                shelf.leave(self)
                self.tell(wire.WAIT_CANCELED)
            case Query.GETNUMKEYS:
                self.tell(wire.number(len(shelf.values)))
            case Query.DELETE_KEY:
                self.tell(wire.number(int(shelf.delete(keys[0]))))
            case Query.QUEUE_PUSH:
                woken = shelf.push(keys[0], request.values[0])
            case Query.QUEUE_POP:
                length, first = shelf.pop(keys[0])
                self.tell(wire.number(length) + (b"" if first is None else wire.value(first)))
            case Query.QUEUE_LEN:
                self.tell(wire.number(len(shelf.queues.get(keys[0], ()))))
        for client in woken:
            assert isinstance(client, Client), "only clients wait"
            client.tell(wire.STOP_WAITING)

    def _give_up(self) -> None:
        self._refuse(f"no key of a job within {FIRST_KEY_WITHIN_S:.0f} s")

    def _refuse(self, why: str) -> None:
        if self._transport is not None:
            self._server.refuse(self._transport.get_extra_info("peername"), why)
            self._transport.abort()
