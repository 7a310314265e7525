"""When jobs are expected to end, and what is free then: counted as far as somebody asks.

An end is expected by the pace of the newest steps or by the job's time limit, whichever comes first. Asked by
`policy.queue.schedule`, its explanation, and whoever assembles what they plan with. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from controlplane.policy.queue.room import Room, Tally
from controlplane.policy.queue.rows import Holder

FREED_S = 5.0
"""At its time limit a job's ranks are killed: so much later their devices are free."""


def limited_s(limit_s: float, begun_s: float | None, now_s: float) -> float | None:
    """In how many seconds at the latest a job's devices are free again by its time limit (0: it has none, and so has
    the answer). `begun_s`: when its first attempt was placed; None: it is placed now."""
    since_s = now_s - begun_s if begun_s is not None else 0.0
    return max(0.0, limit_s - since_s) + FREED_S if limit_s > 0.0 else None


def over_s(
    now_s: float, *, limit_s: float, begun_s: float | None, left: int | None, recent: Sequence[float]
) -> float | None:
    """Server seconds by which a job's devices are expected to be free: by its time limit (see `limited_s`), and at the
    pace of its `recent` steps, of which `left` are to come (None: not known); None: nobody knows."""
    by_pace_s = None if left is None or not recent else max(0, left) * float(median(recent))
    spans_s = (limited_s(limit_s, begun_s, now_s), by_pace_s)
    return min((now_s + span_s for span_s in spans_s if span_s is not None), default=None)


class Ending(NamedTuple):
    """At `ends_s` (server seconds) so many devices of the job on each node are expected to be free, of which
    `counted` have counted for its project's quota."""

    ends_s: float
    holder: Holder
    devices: tuple[tuple[str, int], ...]
    counted: int


def ending(holders: Iterable[Holder], now_s: float) -> list[Ending]:
    """Those whose end is expected, and when, the soonest first. What is late is expected now, and so are the devices of
    replicas that leave."""
    found = list[Ending]()
    for each in holders:
        if each.gives:
            found.append(Ending(now_s, each, each.gives, _number(each.gives)))
        counted = _number(each.devices) - each.uncounted
        if each.leaves:
            found.append(Ending(now_s, each, each.devices, counted))
        elif each.ends_s is not None:
            found.append(Ending(max(now_s, each.ends_s), each, each.devices, counted))
    return sorted(found, key=lambda end: (end.ends_s, end.holder.id))


class Timeline:
    """What of `room` and what comes back to it is free after each end, one after the other."""

    def __init__(self, room: Room, holders: Iterable[Holder], now_s: float) -> None:
        self._ends = ending(holders, now_s)
        self._room: Room | None = None
        self._first, self._tallies = room, list[Tally]()

    def __iter__(self) -> Iterator[tuple[Ending, Tally]]:
        for number, end in enumerate(self._ends):
            if number == len(self._tallies):
                self._room = self._room or self._first.copy()
                self._room.give_back(end.devices)
                self._tallies.append(self._room.tally())
            yield end, self._tallies[number]


def _number(devices: Iterable[tuple[str, int]]) -> int:
    return sum(number for _, number in devices)
