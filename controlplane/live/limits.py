"""How much of one web process a single agent, or a stranger, may use.

Called by the agents' socket and its process, from the loop alone. Frames over their rate end
the session; bytes and events over theirs make that session wait, so that an agent which works
off what it kept during an outage is slowed and not cut off. Sessions over their rate are
refused before anything is written. Touches no table.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.samples import DeviceSample

FRAMES_PER_S, FRAMES_BURST = 200.0, 1000.0
EVENTS_PER_S, EVENTS_BURST = 1000.0, 20_000.0
BYTES_PER_S, BYTES_BURST = 4.0 * (1 << 20), 32.0 * (1 << 20)
# What of a node's frames goes on to the sentinel, by way of Redis; more is shed.
HINT_BYTES_PER_S, HINT_BYTES_BURST = 256.0 * (1 << 10), 2.0 * (1 << 20)
MAX_HINT_BYTES = 64 << 10
# Sessions of one node: a burst for restarts, then one in ten seconds.
SESSIONS_PER_S, SESSIONS_BURST = 0.1, 20.0
SESSION_RETRY_S = 15.0
# Sockets whose credential is not checked yet; the check itself takes milliseconds.
MAX_UNKNOWN_SOCKETS = 512
# A socket that has said nothing keeps its place for so long where those of its address are not the
# most: over 2,000 would have to open in a second, more than a process accepts, to push out one that answers.
GRACE_S = 0.25
MAX_DEVICES_A_FRAME = 64
MAX_RANKS_A_FRAME = 256
# A refusal of the same kind is audited for one node once in so long, with how many there were.
AUDIT_EVERY_S = 600.0
MAX_NODES = 20_000


@dataclass(slots=True)
class Bucket:
    """A token bucket; starts full. Times are monotonic seconds."""

    per_s: float
    burst: float
    tokens: float = field(init=False)
    at_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Full."""
        self.tokens = self.burst

    def take(self, number: float, now_s: float) -> bool:
        """False, and nothing taken, when there is not enough."""
        self._refill(now_s)
        if self.tokens < number:
            return False
        self.tokens -= number
        return True

    def owe(self, number: float, now_s: float) -> float:
        """Take in any case; returns how many seconds to wait until the debt is paid."""
        self._refill(now_s)
        self.tokens -= number
        return max(0.0, -self.tokens / self.per_s)

    def full(self, now_s: float) -> bool:
        """Nothing was taken for so long that forgetting the bucket changes nothing."""
        self._refill(now_s)
        return self.tokens >= self.burst

    def _refill(self, now_s: float) -> None:
        self.tokens = min(self.burst, self.tokens + max(0.0, now_s - self.at_s) * self.per_s)
        self.at_s = now_s


class Pace:
    """The buckets of one session."""

    def __init__(self) -> None:
        self._frames = Bucket(FRAMES_PER_S, FRAMES_BURST)
        self._events = Bucket(EVENTS_PER_S, EVENTS_BURST)
        self._bytes = Bucket(BYTES_PER_S, BYTES_BURST)
        self._hints = Bucket(HINT_BYTES_PER_S, HINT_BYTES_BURST)

    def may_speak(self) -> bool:
        """One more frame; False: too many came."""
        return self._frames.take(1.0, time.monotonic())

    def may_hint(self, size_bytes: int) -> bool:
        """Whether so many bytes of readings may go on; False: shed them, a point in a chart."""
        return size_bytes <= MAX_HINT_BYTES and self._hints.take(size_bytes, time.monotonic())

    def pause_s(self, size_bytes: int, events: int) -> float:
        """How long to read nothing more after a frame of that size."""
        now_s = time.monotonic()
        return max(self._bytes.owe(size_bytes, now_s), self._events.owe(events, now_s))


class Place:
    """Of one socket whose credential is not checked yet. `pushed_out`: another has it now."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.since_s = time.monotonic()
        self.pushed_out = False
        self._patience: asyncio.Timeout | None = None

    @property
    def silent(self) -> bool:
        """Challenged, and nothing has come from it; what it proves is not being checked."""
        return self._patience is not None

    @contextmanager
    def waiting(self, patience: asyncio.Timeout) -> Iterator[None]:
        """Silent from here to the end of the block; being pushed out ends `patience`."""
        self._patience = patience
        try:
            yield
        finally:
            self._patience = None

    def push_out(self) -> None:
        """Only while it is silent."""
        assert self._patience is not None, "what has spoken keeps its place"
        self._patience.reschedule(asyncio.get_running_loop().time())
        self._patience, self.pushed_out = None, True


class Admission:
    """Who may open a session now, over all sockets of this process.

    Sockets that prove nothing have MAX_UNKNOWN_SOCKETS places. When all are taken, a newcomer gets
    that of a silent socket: of the address that has most of them, the oldest. So a flood from a few
    addresses pushes out its own, and one from many only what does not answer within GRACE_S.
    """

    def __init__(self) -> None:
        self._places: dict[Place, None] = {}
        self._sessions: dict[str, Bucket] = {}

    @contextmanager
    def unknown_socket(self, address: str) -> Iterator[Place | None]:
        """A place for a socket of `address`, while its credential is checked; None: there is none."""
        if not self._has_room(address):
            yield None
            return
        place = Place(address)
        self._places[place] = None
        try:
            yield place
        finally:
            self._places.pop(place, None)

    def _has_room(self, address: str) -> bool:
        if len(self._places) < MAX_UNKNOWN_SOCKETS:
            return True
        silent = [place for place in self._places if place.silent]
        if not silent:
            return False
        held = Counter(place.address for place in silent)
        most = max(held.values())
        oldest = next(place for place in silent if held[place.address] == most)
        is_fair = most > held[address] + 1
        if not is_fair and time.monotonic() - oldest.since_s < GRACE_S:
            return False
        del self._places[oldest]
        oldest.push_out()
        return True

    def may_open(self, node_id: str) -> bool:
        """False: this node has opened so many sessions that it has to wait."""
        now_s = time.monotonic()
        if len(self._sessions) >= MAX_NODES:
            self._sessions = {key: bucket for key, bucket in self._sessions.items() if not bucket.full(now_s)}
        bucket = self._sessions.setdefault(node_id, Bucket(SESSIONS_PER_S, SESSIONS_BURST))
        return bucket.take(1.0, now_s)


class Refusals:
    """Refused sessions, gathered so that a loop of them costs one audit row in a while."""

    def __init__(self) -> None:
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._due_s: dict[tuple[str, str], float] = {}

    def note(self, node_name: str, reason: str) -> None:
        """One more."""
        self._waiting[node_name, reason] += 1

    def due(self) -> list[tuple[str, str, int]]:
        """(node, reason, how many since the last time) to be audited now: the first at once."""
        now_s = time.monotonic()
        found = [key for key in self._waiting if self._due_s.get(key, 0.0) <= now_s]
        self._due_s = {key: at for key, at in self._due_s.items() if at > now_s}
        self._due_s |= dict.fromkeys(found, now_s + AUDIT_EVERY_S)
        return [(name, reason, self._waiting.pop((name, reason))) for name, reason in found]


def check_size(frame: AgentFrame) -> None:
    """Raises MalformedFrame for more devices or ranks than a node can have."""
    for what, number, limit in (
        ("devices", len(frame.devices), MAX_DEVICES_A_FRAME),
        ("ranks", len(frame.ranks), MAX_RANKS_A_FRAME),
    ):
        if number > limit:
            raise MalformedFrame(f"{number} {what} in one frame, {limit} are allowed")


def only_listed(frame: AgentFrame, listed: Collection[int]) -> AgentFrame:
    """The frame itself, or one without hints for devices that the node never listed, each
    device and each rank once."""
    devices: dict[int, DeviceSample] = {}
    for sample in frame.devices:
        if sample.index in listed:
            devices.setdefault(sample.index, sample)
    ranks: dict[object, RankStatus] = {status.ref: status for status in frame.ranks}
    if len(devices) == len(frame.devices) and len(ranks) == len(frame.ranks):
        return frame
    return msgspec.structs.replace(frame, devices=tuple(devices.values()), ranks=tuple(ranks.values()))
