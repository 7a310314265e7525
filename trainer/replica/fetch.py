"""One joiner rank's transfer: chunks from several donors at once, each kept once it is whole.

`CONNECTIONS` are shared out among the donors, each with a request ahead of the answer it reads;
a request is for a run of chunks, a short one where little is left, so that all end together.
On a CPU the bytes go from the socket to where they belong, a chunk's in one call where one
tensor holds them, and are then digested there.
A chunk that arrives corrupt, or whose donor dies, goes back to the others; what is here is
never fetched again. A donor whose index differs from the first one read holds another state
and is left aside, as is one that sends `MAX_CORRUPT` corrupt chunks.
"""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import torch
import torch.distributed as dist
import xxhash

from controlplane.protocol.launch import RankRef
from trainer.errors import CatchUpFailed
from trainer.priority import yield_core
from trainer.replica.donor import INDEX, LENGTH, Member, Request, bound_blocking, connect, store_key
from trainer.replica.snapshot import CHUNK_BYTES, Index, Target
from trainer.store.client import OwnClient

CONNECTIONS = 2
"""In all, and one for each donor at least: more of them take each other's turns at two cores."""
AHEAD = 4
"""Chunks under way on a connection below which it asks for another run."""
MAX_RUN = 8
"""Chunks in one request."""
TURNS = 2
"""Runs that each connection still gets of what is missing, at least."""
MAX_CORRUPT = 3
MAX_INDEX_BYTES = 64 << 20
RETRY_S = 0.2
ADDRESS_POLL_S = 0.01
IDLE_POLL_S = 0.005
CONNECT_TIMEOUT_S = 5.0
IO_TIMEOUT_S = 10
PATIENCE_S = 120.0


@dataclass(slots=True)
class Received:
    """What a transfer cost. `donors` gave chunks; `corrupt` chunks were refused."""

    nbytes: int = 0
    took_s: float = 0.0
    donors: set[int] = field(default_factory=set)
    corrupt: int = 0


class _Aside(Exception):
    """This donor is of no use to this transfer."""


class Fetch:
    """The state of `step` into `state`, from `donors`, in the background. `whole` once all of
    it is here; until then `state` is neither what it was nor what it will be. `store` is a
    client that nobody waits at meanwhile: to make one takes longer than to find the donors."""

    def __init__(
        self,
        ref: RankRef,
        store: OwnClient | dist.Store,
        state: Sequence[torch.Tensor],
        *,
        step: int,
        donors: tuple[Member, ...],
    ) -> None:
        self.step = step
        self.received = Received()
        self._ref, self._store = ref, store
        self._target = Target(state)
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._index_bytes = b""
        self._missing: deque[int] = deque()
        self._left = 0
        self._whole = threading.Event()
        self._donors: tuple[Member, ...] = ()
        self._aside: set[Member] = set()
        self._threads: list[threading.Thread] = []
        self._sockets: dict[socket.socket, Member] = {}
        self._cancelled = False
        self._began_s = self._moved_s = time.monotonic()
        self.turn_to(donors)

    @property
    def whole(self) -> bool:
        """Every chunk is in place."""
        return self._whole.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Until the state is whole, at most `timeout_s`."""
        return self._whole.wait(timeout_s)

    @property
    def donors(self) -> tuple[Member, ...]:
        """Who is asked, in order of preference."""
        return self._donors

    def check(self) -> None:
        """Raises CatchUpFailed when nothing can come any more, or nothing has come for `PATIENCE_S`."""
        if self.whole:
            return
        if self._donors and set(self._donors) <= self._aside:
            raise CatchUpFailed(f"no donor of {self._names()} has the state of step {self.step} for me")
        idle_s = time.monotonic() - self._moved_s
        if idle_s > PATIENCE_S:
            raise CatchUpFailed(f"nothing from donors {self._names()} for {idle_s:.0f} s")

    def turn_to(self, donors: tuple[Member, ...]) -> None:
        """Go on with these donors; the others are not asked any more."""
        with self._lock:
            new = [donor for donor in donors if donor not in self._donors]
            self._donors, self._moved_s = donors, time.monotonic()
        self._hang_up(lambda donor: donor not in donors)
        for donor in new:
            for _ in range(max(1, CONNECTIONS // len(donors))):
                thread = threading.Thread(target=self._run, args=(donor,), name="fetch", daemon=True)
                self._threads.append(thread)
                thread.start()

    def cancel(self) -> None:
        """Returns when nothing writes to the state any more."""
        self._cancelled = True
        self._hang_up(lambda donor: True)
        for thread in self._threads:
            thread.join()

    def _hang_up(self, on: Callable[[Member], bool]) -> None:
        """Who waits for these donors gives its chunks back at once."""
        with self._lock:
            connections = [connection for connection, donor in self._sockets.items() if on(donor)]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- one connection -----------------------------------------------------------------

    def _run(self, donor: Member) -> None:
        yield_core()
        key = store_key(self._ref, donor, self.step)
        scratch = torch.empty(0 if self._target.in_host_memory else CHUNK_BYTES, dtype=torch.uint8)
        while self._wanted(donor):
            try:
                if not self._store.check([key]):
                    time.sleep(ADDRESS_POLL_S)
                    continue
                with self._connect(donor, self._store.get(key).decode("ascii")) as (connection, token):
                    self._agree(donor, connection, token)
                    self._pull(donor, connection, token, scratch)
            except (_Aside, CatchUpFailed) as error:
                print(f"catching up: replica {donor[0]} is left aside: {error}", flush=True)
                with self._lock:
                    self._aside.add(donor)
            except (OSError, RuntimeError) as error:
                # It may be gone; the next view says so. The store may be gone for a while too.
                print(f"catching up: replica {donor[0]}: {error!r}", flush=True)
                time.sleep(RETRY_S)

    def _wanted(self, donor: Member) -> bool:
        return not self._cancelled and not self.whole and donor in self._donors and donor not in self._aside

    @contextlib.contextmanager
    def _connect(self, donor: Member, address: str) -> Iterator[tuple[socket.socket, str]]:
        host, port, token = address.split(" ")
        with connect(host, int(port), CONNECT_TIMEOUT_S) as connection:
            bound_blocking(connection, IO_TIMEOUT_S)
            with self._lock:
                self._sockets[connection] = donor
            try:
                if self._wanted(donor):
                    yield connection, token
                else:
                    raise ConnectionError("not asked any more")
            finally:
                with self._lock:
                    del self._sockets[connection]

    def _agree(self, donor: Member, connection: socket.socket, token: str) -> None:
        """The first index read decides what is fetched; who holds another one is no donor of it."""
        self._ask(connection, token, INDEX)
        length = _length(connection)
        if length > MAX_INDEX_BYTES:
            raise CatchUpFailed(f"index of {length} bytes")
        data = bytearray(length)
        _fill(connection, memoryview(data))
        index = self._target.read_index(bytes(data), self.step)
        with self._lock:
            if self._index is None:
                self._index, self._index_bytes = index, bytes(data)
                self._missing = deque(range(index.chunks))
                self._left = index.chunks
                if not self._left:
                    self._whole.set()
            elif self._index_bytes != bytes(data):
                raise _Aside("its state differs from the first donor's")

    def _pull(self, donor: Member, connection: socket.socket, token: str, scratch: torch.Tensor) -> None:
        asked: deque[int] = deque()
        corrupt = 0
        try:
            while self._wanted(donor):
                while len(asked) < AHEAD and (run := self._take()):
                    asked.extend(run)
                    self._ask(connection, token, run[0], len(run))
                if not asked:
                    time.sleep(IDLE_POLL_S)  # Others have the last ones under way; one may come back.
                    continue
                if not self._receive(donor, connection, asked[0], scratch):
                    corrupt += 1
                    self._give_back(asked.popleft())
                    if corrupt >= MAX_CORRUPT:
                        raise _Aside(f"{corrupt} corrupt chunks")
                    continue
                asked.popleft()
        finally:
            self._give_back(*asked)

    def _receive(self, donor: Member, connection: socket.socket, chunk: int, scratch: torch.Tensor) -> bool:
        """False: it came corrupt."""
        index = self._index
        assert index is not None, "chunks are asked for by an index"
        offset = chunk * index.chunk_bytes
        count = min(index.chunk_bytes, self._target.nbytes - offset)
        on_host = self._target.in_host_memory
        windows = self._target.windows(offset, count) if on_host else [scratch[:count].numpy().data]
        found = xxhash.xxh3_128()
        for window in windows:
            _fill(connection, window)
            found.update(window)
        if found.digest() != index.digest(chunk):
            with self._lock:
                self.received.corrupt += 1
            return False
        if not on_host:
            self._target.put(offset, scratch[:count])
        self._arrived(donor, count)
        return True

    def _take(self) -> list[int]:
        """The next run that nobody has under way; empty when there is none."""
        with self._lock:
            share = len(self._missing) // (TURNS * max(CONNECTIONS, len(self._donors)))
            run: list[int] = []
            while self._missing and len(run) < max(1, min(share, MAX_RUN)):
                if run and self._missing[0] != run[-1] + 1:
                    break
                run.append(self._missing.popleft())
            return run

    def _give_back(self, *chunks: int) -> None:
        with self._lock:
            self._missing.extendleft(reversed(chunks))

    def _arrived(self, donor: Member, count: int) -> None:
        with self._lock:
            self._moved_s = time.monotonic()
            self.received.nbytes += count
            self.received.donors.add(donor[0])
            self._left -= 1
            if not self._left:
                self.received.took_s = self._moved_s - self._began_s
                self._whole.set()

    def _ask(self, connection: socket.socket, token: str, first: int, count: int = 1) -> None:
        connection.sendall(msgspec.json.encode(Request(token, self.step, first, count)) + b"\n")

    def _names(self) -> str:
        return ", ".join(f"{replica}.{incarnation}" for replica, incarnation in self._donors)


def _length(connection: socket.socket) -> int:
    head = bytearray(LENGTH.size)
    _fill(connection, memoryview(head))
    return int(LENGTH.unpack(head)[0])


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    """Raises OSError when the peer goes away or nothing comes for `IO_TIMEOUT_S`."""
    position = 0
    while position < len(buffer):
        count = connection.recv_into(buffer[position:], len(buffer) - position, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError(f"closed {len(buffer) - position} bytes early")
        position += count
