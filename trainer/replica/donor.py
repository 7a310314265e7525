"""The donor's side of catching up: copy the state in the background, serve its chunks over TCP.

The copy starts when the install is there, in the middle of a step if need be, and must be over
before the next optimizer step (`wait_copied`); forward and backward do not touch the state.
The address goes through the rendezvous store together with a token that the joiner has to
send first. A snapshot is kept, through any number of views, for as long as one of the
joiners it was taken for is still fetching, so that a transfer survives a view change.
"""

import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch
import torch.distributed as dist

from controlplane.protocol.bounds import Digest, Index, IndexOrAll, Step
from controlplane.protocol.launch import RankRef
from trainer.priority import yield_core
from trainer.replica.snapshot import Snapshot
from trainer.store.client import OwnClient

BACKLOG = 16
IO_TIMEOUT_S = 60
TOKEN_BYTES = 16
ANNOUNCE_EVERY_S = 1.0
MAX_REQUEST_BYTES = 512
MAX_OFFERS = 2
IN_FLIGHT_BYTES = 512 << 10
"""Size of the socket's buffer at either end between two processes of one host. A round trip
there takes some 20 us, in which a core copies 128 KiB; the kernel's own buffers grow to many
times a core's cache, and each byte then goes out to memory and back once more."""
INDEX = -1
LENGTH = struct.Struct("<Q")
Member = tuple[int, int]  # replica, incarnation


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a joiner: `count` chunks of the state of `step` from `first` on, or its index
    (`first` INDEX). The answer is the chunks' bytes, or the index's length and its bytes; the
    connection is closed where there is none."""

    token: Digest
    step: Step
    first: IndexOrAll
    count: Index = 1


def store_key(ref: RankRef, donor: Member, step: int) -> str:
    """Where the address of the snapshot of `step` of the rank beside `ref` stands."""
    return f"snapshot/{ref.job_id}/{ref.attempt}/{step}/{donor[0]}.{donor[1]}/{ref.rank}"


def bound_blocking(connection: socket.socket, timeout_s: int) -> None:
    """Blocking calls that end after `timeout_s` by themselves: the kernel then fills a whole
    buffer in one call, which a socket with Python's timeout does not do."""
    connection.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", timeout_s, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def bound_sending(connection: socket.socket) -> None:
    """Bound what waits to be sent to a process of this host; to another host the kernel's own
    buffer stays: there the round trip decides how much has to be under way."""
    if connection.getsockname()[0] == connection.getpeername()[0]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, IN_FLIGHT_BYTES // 2)


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to IPv4 address `host` that takes in no more at once than `IN_FLIGHT_BYTES`
    where that is this host. A window is sized by the buffer that there is before it connects."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if local_host_towards(host, port) == host:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, IN_FLIGHT_BYTES // 2)
        connection.settimeout(timeout_s)
        connection.connect((host, port))
    except OSError:
        connection.close()
        raise
    return connection


@dataclass(slots=True)
class _Offer:
    """One snapshot and the joiners that may still fetch from it."""

    snapshot: Snapshot
    joiners: set[Member]
    copied: threading.Event = field(default_factory=threading.Event)


class Donor:
    """One listening socket per rank, `MAX_OFFERS` snapshots at most."""

    def __init__(self, ref: RankRef, store: dist.Store, *, local_host: str) -> None:
        self._ref = ref
        self._store = OwnClient(store)
        self._offers: list[_Offer] = []
        self._token = secrets.token_hex(TOKEN_BYTES)
        self._listener = socket.create_server((local_host, 0), backlog=BACKLOG)
        self._address = f"{local_host} {self._listener.getsockname()[1]} {self._token}"
        threading.Thread(target=self._accept, name="donor", daemon=True).start()

    def serve(self, joiners: set[Member], state: Sequence[torch.Tensor], *, step: int) -> None:
        """Serve `joiners` from now on, nobody else. Who has an offer keeps it, the others
        get one of `state` (by reference until `wait_copied` returns), which is that of `step`."""
        self._keep(joiners)
        new = joiners - {joiner for offer in self._offers for joiner in offer.joiners}
        if not new:
            return
        same = next((offer for offer in self._offers if offer.snapshot.step == step), None)
        if same is not None:
            same.joiners |= new
            return
        offer = _Offer(Snapshot(step), new)
        self._offers = [*self._offers, offer][-MAX_OFFERS:]
        # By device: the thread that brings an install has not chosen one.
        on = next((tensor.device for tensor in state if tensor.is_cuda), None)
        after = torch.cuda.current_stream(on).record_event() if on is not None else None
        arguments = (offer, list(state), after)
        threading.Thread(target=self._copy, args=arguments, name="donor-copy", daemon=True).start()

    @property
    def is_copying(self) -> bool:
        """A copy is under way: `serve` may wait for its end."""
        return not all(offer.copied.is_set() for offer in self._offers)

    def wait_copied(self) -> float:
        """Call before anything writes to the state; returns the seconds that it took."""
        began_s = time.monotonic()
        for offer in self._offers:
            offer.copied.wait()
        return time.monotonic() - began_s

    def release(self, replicas: set[int]) -> None:
        """These joiners have caught up."""
        self._keep({joiner for offer in self._offers for joiner in offer.joiners if joiner[0] not in replicas})

    def _keep(self, joiners: set[Member]) -> None:
        """Offers that nobody fetches from free their memory, once their copy has ended."""
        for offer in self._offers:
            offer.joiners &= joiners
            if not offer.joiners:
                offer.copied.wait()
        self._offers = [offer for offer in self._offers if offer.joiners]

    def _copy(self, offer: _Offer, state: list[torch.Tensor], after: "torch.cuda.Event | None") -> None:
        try:
            offer.snapshot.take(state, after=after)
        finally:
            offer.copied.set()
        offer.snapshot.seal()
        step = offer.snapshot.step
        # The thread that goes on keeps nothing of the state, which its offer may give up before it.
        del offer, state
        self._announce(step)

    def _announce(self, step: int) -> None:
        """Say where the snapshot is for as long as it is offered: a store that was started again knows
        it no more, and whoever joins looks for it there. Without a store each word waits for one."""
        key = store_key(self._ref, (self._ref.replica, self._ref.incarnation), step)
        while any(offered.snapshot.step == step for offered in self._offers):
            try:
                if not self._store.check([key]):
                    self._store.set(key, self._address)
            except RuntimeError as error:
                print(f"donor: its address is not in the store: {error!r}", flush=True)
            time.sleep(ANNOUNCE_EVERY_S)

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), name="donor-serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        yield_core()
        with connection:
            try:
                bound_blocking(connection, IO_TIMEOUT_S)
                bound_sending(connection)
                with connection.makefile("rb") as lines:
                    while data := self._answer(lines.readline(MAX_REQUEST_BYTES)):
                        connection.sendall(data)
            except OSError:
                return  # The joiner went away; it comes again or a new view names another donor.

    def _answer(self, line: bytes) -> memoryview | bytes:
        """Empty: nothing of the kind here."""
        try:
            request = msgspec.json.decode(line, type=Request)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return b""
        held = [offer.snapshot for offer in self._offers if offer.snapshot.step == request.step]
        if not hmac.compare_digest(request.token, self._token) or not held or held[0].index is None:
            return b""
        if request.first == INDEX:
            return LENGTH.pack(len(held[0].index)) + held[0].index
        return held[0].chunks(request.first, request.count).numpy().data


def local_host_towards(host: str, port: int) -> str:
    """The address of this machine on the way to `host` (no packet is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
