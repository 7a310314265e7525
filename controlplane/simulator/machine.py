"""The machine under a simulated agent: what goes on when the agent is away.

Its disk, its processes with the host that forks them, its devices and its clock. A loss of power ends
the processes and the clock's count; what was not forced to the disk may be gone with them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from agents.core.records import Record
from agents.core.state import Identity
from controlplane.protocol.frames import NodeCheck
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import FromRank
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.process import Rank

MAX_OUTBOX = 1_000
COMPACT_ABOVE = 400
DISK_FULL = "[Errno 28] No space left on device"


class Disk:
    """The journal: `written` survives the agent, and of that what was forced survives the machine. While it is
    `full` records wait in the agent's memory, as `agents.link.journal` has it."""

    def __init__(self) -> None:
        self.full, self.freed_s = False, -1e9
        self.written: list[Record] = []
        self._waiting: list[Record] = []
        self._forced = self._compacted = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Disk":
        """Records never change: both worlds may hold the same."""
        other = Disk()
        other.full, other.freed_s, other.written, other._waiting = (
            self.full,
            self.freed_s,
            list(self.written),
            list(self._waiting),
        )
        other._forced, other._compacted = self._forced, self._compacted
        return other

    @property
    def error(self) -> str:
        """Why something is not written; "" when everything is."""
        return DISK_FULL if self._waiting else ""

    @property
    def wants_compaction(self) -> bool:
        """It has grown well beyond what the last compaction left."""
        return len(self.written) > COMPACT_ABOVE + 2 * self._compacted

    def append(self, record: Record) -> None:
        """Write it, and what waited before it."""
        self._waiting.append(record)
        if not self.full:
            self.written += self._waiting
            self._waiting = []

    def sync(self) -> str:
        """Force what is written; the error, or ""."""
        if not self.error:
            self._forced = len(self.written)
        return self.error

    def compact(self, records: Iterable[Record]) -> None:
        """Replace everything, if there is room."""
        if not self.full:
            self.written, self._waiting = list(records), []
            self._forced = self._compacted = len(self.written)

    def let_go(self) -> None:
        """The agent is gone, and what was in its memory."""
        self._waiting = []

    def lose_power(self, kept: float) -> None:
        """Of what was written and not forced this part is left."""
        self.let_go()
        loose = len(self.written) - self._forced
        del self.written[self._forced + int(loose * kept) :]
        self._forced = len(self.written)

    def wipe(self) -> None:
        """Another disk."""
        self.written, self._waiting, self.full = [], [], False
        self._forced = self._compacted = 0


@dataclass(slots=True)
class Child:
    """A process that the host has forked. `conn_id` 0: it has no connection to an agent; `outbox` is what it
    says then. `reads_s`: when (kernel's time) it has read what it was handed last. `ended`: how, (exit code,
    signal), once it is gone."""

    rank: Rank
    identity: Identity
    conn_id: int = 0
    said_s: float = 0.0
    reads_s: float = 0.0
    outbox: list[FromRank] = field(default_factory=list)
    ended: tuple[int | None, int | None] = (None, 9)

    def keep(self, message: FromRank) -> None:
        """Said with no agent there."""
        self.outbox = [*self.outbox, message][-MAX_OUTBOX:]


class Machine:
    """One node's hardware and kernel. `boot` counts its boots."""

    def __init__(self, node: str, kernel: Kernel) -> None:
        self.node = node
        self.boot = 0
        self.dead = False
        self.disk = Disk()
        self.children: dict[RankRef, Child] = {}
        self.hosts: dict[str, Identity] = {}
        self.broken: set[int] = set()
        self.lost: set[int] = set()
        self.failing: tuple[NodeCheck, ...] = ()
        self.unread_xids: list[tuple[int, int]] = []
        self._kernel = kernel
        self._booted_s = -100.0
        self._pids = 100

    @property
    def boot_id(self) -> str:
        """As the kernel names this boot."""
        return f"{self.node}-boot-{self.boot}"

    @property
    def now_s(self) -> float:
        """The monotonic clock: seconds of this boot."""
        return self._kernel.now_s - self._booted_s

    def leap(self, seconds: float) -> None:
        """The clock runs on while nothing here does."""
        self._booted_s -= seconds

    def identity(self) -> Identity:
        """Of a new process."""
        self._pids += 1
        return Identity(self._pids, int(self.now_s * 100))

    def on(self, device: int) -> Child | None:
        """Who runs on the device."""
        return next((c for c in self.children.values() if c.rank.alive and c.rank.device == device), None)

    def lose_power(self, end: Callable[[Rank], None]) -> None:
        """Everything that runs is gone without a word."""
        self.dead = True
        for child in self.children.values():
            end(child.rank)
        self.children, self.hosts = {}, {}
        self.disk.lose_power(self._kernel.random.random())

    def power_on(self, *, disk_kept: bool) -> None:
        """The next boot; its clock begins anew."""
        self.dead, self.boot, self._booted_s = False, self.boot + 1, self._kernel.now_s - 1.0
        if not disk_kept:
            self.disk.wipe()
