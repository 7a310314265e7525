"""How many there are at each moment, and how much that is over a while. Pure arithmetic over sorted moments."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple


class Part(NamedTuple):
    """So many devices over a while."""

    from_s: float
    until_s: float
    devices: int


class Level:
    """A sum of parts as a function of time, with its integral. What one moment begins or ends counts from it on."""

    def __init__(self, parts: Iterable[Part]) -> None:
        """In any sequence; parts that have no length count for nothing."""
        changes = defaultdict[float, int](int)
        for part in parts:
            if part.until_s > part.from_s and part.devices:
                changes[part.from_s] += part.devices
                changes[part.until_s] -= part.devices
        self._at: list[float] = sorted(moment for moment, change in changes.items() if change)
        self._level: list[int] = []
        self._sum: list[float] = []
        level, total = 0, 0.0
        for place, moment in enumerate(self._at):
            if place:
                total += level * (moment - self._at[place - 1])
            level += changes[moment]
            self._level.append(level)
            self._sum.append(total)

    def between(self, from_s: float, until_s: float) -> float:
        """Its integral, devices x seconds."""
        return self._until(until_s) - self._until(from_s) if self._at and until_s > from_s else 0.0

    def pieces(self, from_s: float, until_s: float) -> Iterator[Part]:
        """What it is from one moment to another: parts of one level each, that follow one another."""
        place, at = bisect_right(self._at, from_s), from_s
        level = self._level[place - 1] if place else 0
        while place < len(self._at) and self._at[place] < until_s:
            yield Part(at, self._at[place], level)
            at, level = self._at[place], self._level[place]
            place += 1
        if until_s > at:
            yield Part(at, until_s, level)

    def parts(self) -> Iterator[Part]:
        """All of it."""
        for (from_s, until_s), level in zip(pairwise(self._at), self._level, strict=False):
            yield Part(from_s, until_s, level)

    def _until(self, moment: float) -> float:
        place = bisect_right(self._at, moment)
        if not place:
            return 0.0
        level = self._level[place - 1]
        # No level lasts for ever but 0.
        return self._sum[place - 1] + (level * (moment - self._at[place - 1]) if level else 0.0)
