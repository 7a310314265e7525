"""How much one rank's processes may ask of the agent: a share of reads, lines and bytes.

Called by the socket for ranks. A share belongs to a session of processes (a rank leads its
own), so a rank that connects again and again, or from many processes, gets no more of it.
Who has used it up is not read from until it has grown again: its own writes wait, nobody
else's do, and nothing that it sent is lost. It never reads a clock: time is an argument.
"""

from dataclasses import dataclass

LINES_PER_S = 500.0
"""A rank reports where it is at most fifty times a second, and a few facts a step."""
BURST_LINES = 2_000.0
"""What a rank keeps while its agent is away is half of that."""
BYTES_PER_S = 2.0 * 1024 * 1024
BURST_BYTES = 16.0 * 1024 * 1024
CONNECTION_LINES = 50.0
"""What a connection costs, in lines: it is accepted, looked up in /proc and greeted."""
MAX_CONNECTIONS = 1_024
MAX_CONNECTIONS_OF_ONE = 8
MAX_REFUSED = 100
"""Refused lines of one connection, after which it is closed."""
FORGET_AFTER_S = 60.0


@dataclass(slots=True)
class Share:
    """Tokens of one session of processes; below zero it waits. `connections` open now."""

    at_s: float
    lines: float = BURST_LINES
    bytes: float = BURST_BYTES
    connections: int = 0

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


class Gate:
    """The shares of everybody on one socket. Session 0: of whom the kernel tells nothing."""

    def __init__(self) -> None:
        self._shares: dict[int, Share] = {}
        self.open = 0

    def enter(self, session: int, now_s: float) -> Share | None:
        """A new connection. None: it is one too many, for its session or for all; close it."""
        self._forget(now_s)
        share = self._shares.setdefault(session, Share(at_s=now_s))
        if self.open >= MAX_CONNECTIONS or share.connections >= MAX_CONNECTIONS_OF_ONE or share.wait_s(now_s) > 0.0:
            return None
        share.spend(lines=CONNECTION_LINES)
        share.connections += 1
        self.open += 1
        return share

    def leave(self, share: Share) -> None:
        """One that was let in has closed."""
        share.connections -= 1
        self.open -= 1

    def _forget(self, now_s: float) -> None:
        """Shares that have long been whole again are nobody's."""
        if len(self._shares) > MAX_CONNECTIONS:
            kept = {
                session: share
                for session, share in self._shares.items()
                if share.connections or now_s - share.at_s < FORGET_AFTER_S
            }
            self._shares = kept
