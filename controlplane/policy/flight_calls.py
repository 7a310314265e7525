"""What each rank asked of each group, put side by side. `policy.flight` reads it; judges nothing.

A rank numbers its calls in a group, and the n-th of one rank must meet the n-th of every other.
The operations of one coalesced call share its number, and only the entry that ends it (torch
calls it "coalesced") has a state. Point-to-point operations are numbered apart at each end, so
they meet in order, by pair of ranks.
"""

from collections.abc import Iterator, Mapping

import msgspec

from controlplane.protocol.flight import COMPLETED, ENDED, SCHEDULED, STARTED, FlightDump, FlightEntry, FlightGroup

UNSYNCHRONISED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
"""A rank may be through although another has not come: the root, or a leaf."""


class Call(msgspec.Struct, frozen=True):
    """One call of one rank: its operation, or those of a coalesced one in order (`parts`);
    `coalesced`: it was one of several that ran at once."""

    number: int
    parts: tuple[FlightEntry, ...]
    state: str
    given_up: bool = False
    coalesced: bool = False

    @property
    def over(self) -> bool:
        return self.state in (COMPLETED, ENDED)


class Meeting(msgspec.Struct, frozen=True):
    """One collective of one group. `here`: the call of each rank that has it; `absent` ranks
    have a dump without it; `dark` ranks have no dump; `newest`: those for which it is the last."""

    group: FlightGroup
    number: int
    here: dict[int, Call]
    absent: tuple[int, ...]
    dark: tuple[int, ...]
    newest: frozenset[int]

    @property
    def open(self) -> tuple[int, ...]:
        """Ranks that are still in it."""
        return tuple(sorted(rank for rank, call in self.here.items() if not call.over))

    @property
    def left_early(self) -> tuple[int, ...]:
        """Ranks that went out of it although, with a rank absent, it cannot have succeeded."""
        if not self.absent or any(part.operation in UNSYNCHRONISED for c in self.here.values() for part in c.parts):
            return ()
        return tuple(sorted(r for r, call in self.here.items() if call.state == ENDED and r in self.newest))


class Pair(msgspec.Struct, frozen=True):
    """What `source` sent to `target` in a group and what that received, in order; from the
    start, if neither recorder has forgotten it (`whole`). None: that rank gave no dump."""

    group: FlightGroup
    source: int
    target: int
    sends: tuple[Call, ...] | None
    receives: tuple[Call, ...] | None
    whole: bool


def groups_of(by_rank: Mapping[int, FlightDump]) -> tuple[FlightGroup, ...]:
    """Groups by name and members: the same name may stand for different ranks elsewhere."""
    found = {(group.name, group.ranks): group for dump in by_rank.values() for group in dump.groups}
    return tuple(found[key] for key in sorted(found, key=lambda key: (len(key[0]), key)))


def meetings(group: FlightGroup, by_rank: Mapping[int, FlightDump]) -> Iterator[Meeting]:
    """Every collective that all dumps still reach back to, by number."""
    seen = {rank: _collectives(group, by_rank[rank]) for rank in group.ranks if rank in by_rank}
    # A recorder is a ring: what lies before some rank's oldest entry is nobody's absence.
    first = max((min(calls) for calls in seen.values() if calls), default=1)
    for number in sorted({number for calls in seen.values() for number in calls if number >= first}):
        yield Meeting(
            group=group,
            number=number,
            here={rank: calls[number] for rank, calls in seen.items() if number in calls},
            absent=tuple(rank for rank, calls in seen.items() if number not in calls),
            dark=tuple(rank for rank in group.ranks if rank not in by_rank),
            newest=frozenset(rank for rank, calls in seen.items() if calls and max(calls) == number),
        )


def pairs(group: FlightGroup, by_rank: Mapping[int, FlightDump]) -> Iterator[Pair]:
    """Every pair of ranks of which one has a point-to-point operation with the other."""
    sends: dict[tuple[int, int], list[Call]] = {}
    receives: dict[tuple[int, int], list[Call]] = {}
    first: dict[int, int] = {}
    for rank in group.ranks:
        calls = _calls(_own(group, by_rank[rank], p2p=True)) if rank in by_rank else {}
        first[rank] = min(calls, default=1)
        for call in calls.values():
            for part in call.parts:
                ends = ends_of(part, group)
                if ends is not None:
                    side = sends if part.operation.startswith("send") else receives
                    side.setdefault(ends, []).append(msgspec.structs.replace(call, parts=(part,)))
    for source, target in sorted({*sends, *receives}):
        yield Pair(
            group=group,
            source=source,
            target=target,
            sends=tuple(sends.get((source, target), ())) if source in by_rank else None,
            receives=tuple(receives.get((source, target), ())) if target in by_rank else None,
            whole=first[source] <= 1 and first[target] <= 1,
        )


def ends_of(entry: FlightEntry, group: FlightGroup) -> tuple[int, int] | None:
    """(sender, receiver) of "send 0->1" or "recv 1<-0", whose numbers count the group's ranks."""
    kind, _, route = entry.operation.partition(" ")
    left, arrow, right = route.partition("->" if kind == "send" else "<-")
    if kind not in ("send", "recv") or not arrow or not (left.isdecimal() and right.isdecimal()):
        return None
    ranks = sorted(group.ranks)
    here, there = int(left), int(right)
    if max(here, there) >= len(ranks):
        return None
    return (ranks[here], ranks[there]) if kind == "send" else (ranks[there], ranks[here])


def _own(group: FlightGroup, dump: FlightDump, *, p2p: bool) -> list[FlightEntry]:
    if not any(mine.name == group.name and mine.ranks == group.ranks for mine in dump.groups):
        return []
    return [entry for entry in dump.entries if entry.group == group.name and entry.p2p is p2p]


def _collectives(group: FlightGroup, dump: FlightDump) -> dict[int, Call]:
    """One group's collectives run in order: what stands before one that is over is over."""
    calls = _calls(_own(group, dump, p2p=False))
    newest_over = max((number for number, call in calls.items() if call.over), default=0)
    return {
        number: msgspec.structs.replace(call, state=COMPLETED, given_up=False)
        if number < newest_over and not call.over
        else call
        for number, call in calls.items()
    }


def _calls(entries: list[FlightEntry]) -> dict[int, Call]:
    by_number: dict[int, list[FlightEntry]] = {}
    for entry in entries:
        by_number.setdefault(entry.number, []).append(entry)
    return {number: _call(number, tuple(parts)) for number, parts in sorted(by_number.items())}


def _call(number: int, entries: tuple[FlightEntry, ...]) -> Call:
    last = entries[-1]
    if len(entries) == 1:
        return Call(number, entries, last.state, last.given_up)
    if last.operation.endswith("coalesced"):
        return Call(number, entries[:-1], last.state, last.given_up, coalesced=True)
    # No end yet: as far as its least advanced part.
    order = (SCHEDULED, STARTED, ENDED, COMPLETED)
    states = {entry.state for entry in entries}
    state = next((state for state in order if state in states), SCHEDULED)
    return Call(number, entries, state, any(entry.given_up for entry in entries), coalesced=True)
