"""How many sessions this process lets in at a time: as many as it was seen to open.

After an outage of ours a whole fleet comes at once, each with work that costs the same. What waits longer than agents
do is work for nobody: so only so many wait as are opened soon, and everybody else is refused at once, before he proves
anything, with the moment to come again. These moments are spread over the time that the rest of the fleet takes, by the
same rate. `spread_s` and `Rate` decide; the process says what time it is.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from controlplane.protocol.frames import SESSIONS_START_PER_S, reconnect_within_s

LEAST_PER_S = 2.0
WAIT_S = 3.0
"""Who is let in is welcome within about so long: less than agents wait for it (`OPEN_TIMEOUT_S`)."""
LEAST_WAITING, START_WAITING = 32, 256
BACKLOG = 8
"""Where fewer wait, how many were opened says how many came, and not how many there could be."""
WINDOW_S, FEW_WINDOW_S, LONGEST_WINDOW_S = 1.0, 4.0, 5.0
"""Of a few sessions alone a rate is taken after longer."""
SHARE_OF_NEW = 0.5
SOONEST_S = 0.5
LATEST_S = 30.0
"""Of a fleet that takes longer the rest asks again, when more is known."""


@dataclass(slots=True)
class Rate:
    """Sessions opened a second, of windows in which others waited all the time."""

    per_s: float = SESSIONS_START_PER_S
    measured: bool = False
    _since_s: float | None = None
    _number: int = 0
    _late_s: float | None = None

    def opened(self, now_s: float, *, waiting: int) -> None:
        """One more was opened at this moment (monotonic seconds), and so many still wait."""
        if self._since_s is None or waiting < BACKLOG:
            self._since_s, self._number = (now_s if waiting >= BACKLOG else None), 0
            return
        self._number += 1
        passed_s = now_s - self._since_s
        if passed_s < (WINDOW_S if self._number >= BACKLOG else FEW_WINDOW_S):
            return
        if passed_s <= LONGEST_WINDOW_S:
            # In a longer one the database was away, or we were.
            seen = self._number / passed_s
            mixed = SHARE_OF_NEW * seen + (1.0 - SHARE_OF_NEW) * self.per_s
            self.per_s = max(LEAST_PER_S, mixed if self.measured else seen)
            self.measured = True
        self._since_s, self._number = now_s, 0

    def late(self, now_s: float) -> None:
        """One was not opened in time: more were let in than can be. Once in a window."""
        if self._late_s is None or now_s - self._late_s >= WINDOW_S:
            self.per_s, self.measured = max(LEAST_PER_S, self.per_s / 2.0), True
            self._late_s = now_s


def room(rate: Rate) -> int:
    """How many may wait at a time."""
    return max(LEAST_WAITING, int(rate.per_s * WAIT_S)) if rate.measured else START_WAITING


def spread_s(waiting: int, missing: int, per_s: float, share: float) -> float:
    """When who is refused is to come again, in seconds from now: behind those that wait, and of the others that are
    still `missing` at the place that `share` (0 to 1, evenly drawn) gives him."""
    behind_s = min(LATEST_S, waiting / per_s)
    return max(SOONEST_S, behind_s + share * min(LATEST_S - behind_s, max(0, missing) / per_s))


@dataclass(slots=True)
class Intake:
    """Of one process, from its loop alone. `webs`: how many processes share the fleet, `fleet_nodes` are all of it."""

    rate: Rate = field(default_factory=Rate)
    waiting: int = 0
    refused: int = 0
    webs: int = 1
    fleet_nodes: int = 0
    draw: Callable[[], float] = random.random

    @property
    def full(self) -> bool:
        """Nobody more is let in now."""
        return self.waiting >= room(self.rate)

    def come_again_s(self, connected: int) -> float:
        """For one who is refused, where so many are connected here. Counts him."""
        self.refused += 1
        missing = self.fleet_nodes // max(1, self.webs) - connected - self.waiting
        return spread_s(self.waiting, missing, self.rate.per_s, self.draw())

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Somebody waits to be welcomed."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Of one who is inside it is we that wait for a word: that is no sign of how much this process has to do."""
        self.waiting -= 1
        try:
            yield
        finally:
            self.waiting += 1

    def opened(self, now_s: float) -> None:
        """Who is inside is welcome since this moment (monotonic seconds)."""
        self.rate.opened(now_s, waiting=self.waiting - 1)

    def return_s(self) -> float:
        """Over how many seconds the fleet spreads its return; all processes are taken to be alike."""
        return reconnect_within_s(self.fleet_nodes, self.rate.per_s * max(1, self.webs))
