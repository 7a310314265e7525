"""How much one rank's processes may ask of the agent: a share of reads, lines and bytes.

Called by the sockets for ranks. A share belongs to a session of processes at one job's socket (a
rank leads its own session), so a rank that connects again and again gets no more of it. Who has
used it up is not read from until it has grown again: its own writes wait, nobody else's do, and
nothing that it sent is lost.

Processes of sessions that are no rank's (strangers: anybody can begin a session) have only so
many connections at one socket, of one user and in all. Beyond that the oldest that has not said
hello is closed for the newcomer. Ranks that the agent knows are outside of these counts, so no
number of strangers keeps one of them out. It never reads a clock: time is an argument.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

LINES_PER_S = 500.0
"""A rank reports where it is at most fifty times a second, and a few facts a step."""
BURST_LINES = 2_000.0
"""What a rank keeps while its agent is away is half of that."""
BYTES_PER_S = 2.0 * 1024 * 1024
BURST_BYTES = 16.0 * 1024 * 1024
CONNECTION_LINES = 50.0
"""What a connection costs, in lines: it is accepted, looked up in /proc and greeted."""
MAX_CONNECTIONS_OF_ONE = 8
MAX_STRANGERS_OF_JOB = 128
"""More than a loop accepts in one go (100): who says hello at once is heard before it has to yield."""
MAX_STRANGERS_OF_USER = 256
MAX_STRANGERS = 512
"""With the agent's other files below 1,024, the usual limit of open files."""
MAX_SHARES = 1_024
MAX_REFUSED = 100
"""Refused lines of one connection, after which it is closed."""
FORGET_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connects: to which job's socket, whose ranks run as `uid`; its session, 0 where the
    kernel tells nothing of it. `known`: that session is one of the job's ranks here; `leads`: and
    the process is the rank itself."""

    job_id: str
    uid: int
    session: int
    known: bool = False
    leads: bool = False


@dataclass(slots=True)
class Share:
    """Tokens of one session of processes; below zero it waits. `connections` open now."""

    at_s: float
    lines: float = BURST_LINES
    bytes: float = BURST_BYTES
    connections: int = 0
    known: bool = False

    def refill(self, now_s: float) -> None:
        """What time gives back."""
        passed_s = max(now_s - self.at_s, 0.0)
        self.lines = min(BURST_LINES, self.lines + passed_s * LINES_PER_S)
        self.bytes = min(BURST_BYTES, self.bytes + passed_s * BYTES_PER_S)
        self.at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until there is anything left of it; 0: there is now."""
        self.refill(now_s)
        return max(0.0, -self.lines / LINES_PER_S, -self.bytes / BYTES_PER_S)

    def spend(self, *, lines: float = 1.0, size_bytes: float = 0.0) -> None:
        """Take from it, below zero if need be."""
        self.lines -= lines
        self.bytes -= size_bytes


@dataclass(slots=True, eq=False)
class Pass:
    """One connection that was let in. `close` ends it for another's sake; `stranger`: it counts as
    one; `greeted`: it said hello, and yields to nobody."""

    caller: Caller
    share: Share
    close: Callable[[], None]
    stranger: bool
    greeted: bool = False
    left: bool = False


class Gate:
    """The shares of everybody on the node's sockets for ranks."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int, bool], Share] = {}
        self._strangers: dict[Pass, None] = {}

    def enter(self, caller: Caller, now_s: float, close: Callable[[], None]) -> Pass | None:
        """A new connection. None: it is one too many, or too soon; close it."""
        share = self._share(caller, now_s)
        if share.connections >= MAX_CONNECTIONS_OF_ONE or share.wait_s(now_s) > 0.0:
            return None
        if not caller.known and not self._make_room(caller):
            return None
        share.spend(lines=CONNECTION_LINES)
        share.connections += 1
        entry = Pass(caller, share, close, stranger=not caller.known)
        if entry.stranger:
            self._strangers[entry] = None
        return entry

    def greet(self, entry: Pass, *, known: bool) -> None:
        """It said hello. `known`: and is a rank's now, as one is that was faster than its host."""
        entry.greeted = True
        if known and entry.stranger:
            entry.stranger = False
            entry.share.known = True
            self._strangers.pop(entry, None)

    def leave(self, entry: Pass) -> None:
        """One that was let in has closed. Said again, it changes nothing."""
        if not entry.left:
            entry.left = True
            entry.share.connections -= 1
            self._strangers.pop(entry, None)

    def _make_room(self, caller: Caller) -> bool:
        """Close the oldest stranger who has not said hello, where there is one too many. Where all
        together are too many, it is one of the user who has most."""
        of_job = [entry for entry in self._strangers if entry.caller.job_id == caller.job_id]
        of_user = [entry for entry in self._strangers if entry.caller.uid == caller.uid]
        if len(of_job) >= MAX_STRANGERS_OF_JOB:
            among = of_job
        elif len(of_user) >= MAX_STRANGERS_OF_USER:
            among = of_user
        elif len(self._strangers) >= MAX_STRANGERS:
            ((most, _),) = Counter(entry.caller.uid for entry in self._strangers).most_common(1)
            among = [entry for entry in self._strangers if entry.caller.uid == most]
        else:
            return True
        oldest = next((entry for entry in among if not entry.greeted), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.close()
        return True

    def _share(self, caller: Caller, now_s: float) -> Share:
        key = (caller.job_id, caller.session, caller.leads)
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= MAX_SHARES:
                self._forget(now_s)
            share = self._shares[key] = Share(at_s=now_s)
        share.known = share.known or caller.known
        return share

    def _forget(self, now_s: float) -> None:
        """Make room among the shares: those of ranks that have long been whole again, then the
        oldest of strangers. Whoever has a connection keeps its own; those are bounded."""
        for key, share in tuple(self._shares.items()):
            if not share.connections and now_s - share.at_s >= FORGET_AFTER_S:
                del self._shares[key]
        idle = (key for key, share in self._shares.items() if not share.connections and not share.known)
        for key in tuple(idle)[: max(len(self._shares) - MAX_SHARES * 3 // 4, 0)]:
            del self._shares[key]
