"""When running jobs are expected to end, and what is free then: counted as far as somebody asks.

An end is expected by the pace of the newest steps or by the job's time limit, whichever comes first
(`changes.assembly.queue`). Asked by `policy.queue.schedule` and its explanation. Pure.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from controlplane.policy.queue.room import Room, Tally
from controlplane.policy.queue.rows import Holder


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
