"""What each rank asked of each group, put side by side. `policy.flight` reads it; judges nothing.

A rank numbers its calls in a group, on each of the group's backends apart (a lane), and the n-th
of one rank must meet the n-th of every other.
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
    `coalesced`: it was one of several that ran at once; `whole`: none of them is missing."""

    number: int
    parts: tuple[FlightEntry, ...]
    state: str
    given_up: bool = False
    coalesced: bool = False
    whole: bool = True

    @property
    def over(self) -> bool:
        return self.state in (COMPLETED, ENDED)


class Meeting(msgspec.Struct, frozen=True):
    """One collective of one group. `here`: the call of each rank that has it; `absent` ranks
    have a dump without it, of which `faded` ones have forgotten all the group's; `dark` ranks have
    no dump; `newest`: those for which it is the last."""

    group: FlightGroup
    number: int
    here: dict[int, Call]
    absent: tuple[int, ...]
    dark: tuple[int, ...]
    newest: frozenset[int]
    faded: frozenset[int] = frozenset()

    @property
    def open(self) -> tuple[int, ...]:
        """Ranks that are still in it."""
        return tuple(sorted(rank for rank, call in self.here.items() if not call.over))

    @property
    def left_early(self) -> tuple[int, ...]:
        """Ranks that went out of it although, with a rank absent, it cannot have succeeded."""
        if not set(self.absent) - self.faded or not self.synchronised:
            return ()
        return tuple(sorted(r for r, call in self.here.items() if call.state == ENDED and r in self.newest))

    @property
    def synchronised(self) -> bool:
        """Nobody succeeds in it before all have come."""
        return not any(part.operation in UNSYNCHRONISED for call in self.here.values() for part in call.parts)

    @property
    def moved_on(self) -> tuple[int, ...]:
        """Absent ranks that must have come to it after their dump: others went on from it."""
        through = [
            r for r, call in self.here.items() if call.state == COMPLETED or (call.over and r not in self.newest)
        ]
        return tuple(sorted(set(self.absent) - self.faded)) if through and self.synchronised else ()


class Lane(msgspec.Struct, frozen=True):
    """A group's calls on one backend."""

    group: FlightGroup
    backend: str


class Pair(msgspec.Struct, frozen=True):
    """What `source` sent to `target` in a group and what that received, in order; from the
    start, if neither recorder has forgotten it (`whole`). None: that rank gave no dump."""

    group: FlightGroup
    source: int
    target: int
    sends: tuple[Call, ...] | None
    receives: tuple[Call, ...] | None
    whole: bool


def lanes_of(by_rank: Mapping[int, FlightDump]) -> tuple[Lane, ...]:
    """Groups by name and members: the same name may stand for different ranks elsewhere."""
    groups = {(group.name, group.ranks): group for dump in by_rank.values() for group in dump.groups}
    used: dict[str, set[str]] = {}
    for dump in by_rank.values():
        for entry in dump.entries:
            used.setdefault(entry.group, set()).add(_backend(entry, dump))
    found = [groups[key] for key in sorted(groups, key=lambda key: (len(key[0]), key))]
    return tuple(Lane(group, backend) for group in found for backend in sorted(used.get(group.name, ())))


def meetings(lane: Lane, by_rank: Mapping[int, FlightDump]) -> Iterator[Meeting]:
    """Every collective that all dumps still reach back to, by number."""
    group = lane.group
    seen = {rank: _collectives(lane, by_rank[rank]) for rank in group.ranks if rank in by_rank}
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
            faded=frozenset(rank for rank, calls in seen.items() if not calls and _forgot(by_rank[rank])),
        )


def outdated(lanes: tuple[Lane, ...], by_rank: Mapping[int, FlightDump]) -> tuple[int, ...]:
    """Ranks whose dump is older than what others' dumps prove that they did: the ranks moved between the dumps."""
    return tuple(sorted({r for lane in lanes for meeting in meetings(lane, by_rank) for r in meeting.moved_on}))


def pairs(lane: Lane, by_rank: Mapping[int, FlightDump]) -> Iterator[Pair]:
    """Every pair of ranks of which one has a point-to-point operation with the other."""
    group = lane.group
    sends: dict[tuple[int, int], list[Call]] = {}
    receives: dict[tuple[int, int], list[Call]] = {}
    forgetful: set[int] = set()
    for rank in group.ranks:
        calls = _calls(_own(lane, by_rank[rank], p2p=True), by_rank[rank]) if rank in by_rank else {}
        start = min(calls, default=0)
        if start > 1 or (start == 0 and rank in by_rank and _forgot(by_rank[rank])):
            forgetful.add(rank)
        for call in calls.values():
            if not call.whole:
                forgetful.add(rank)
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
            whole=not forgetful & {source, target},
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


def _own(lane: Lane, dump: FlightDump, *, p2p: bool) -> list[FlightEntry]:
    group = lane.group
    if not any(mine.name == group.name and mine.ranks == group.ranks for mine in dump.groups):
        return []
    return [e for e in dump.entries if e.group == group.name and e.p2p is p2p and _backend(e, dump) == lane.backend]


def _backend(entry: FlightEntry, dump: FlightDump) -> str:
    """Agents of an earlier version name only the dump's."""
    return entry.backend or (dump.backends[0] if len(dump.backends) == 1 else "")


def _forgot(dump: FlightDump) -> bool:
    """Whether there were older operations; agents of an earlier version do not say, numbers do."""
    first: dict[tuple[str, str, bool], int] = {}
    for entry in dump.entries:
        first.setdefault((entry.group, entry.backend, entry.p2p), entry.number)
    return dump.forgotten or any(number > 1 for number in first.values())


def _collectives(lane: Lane, dump: FlightDump) -> dict[int, Call]:
    """One group's collectives run in order: what stands before one that is over is over."""
    calls = _calls(_own(lane, dump, p2p=False), dump)
    newest_over = max((number for number, call in calls.items() if call.over), default=0)
    return {
        number: msgspec.structs.replace(call, state=COMPLETED, given_up=False)
        if number < newest_over and not call.over
        else call
        for number, call in calls.items()
    }


def _calls(entries: list[FlightEntry], dump: FlightDump) -> dict[int, Call]:
    by_number: dict[int, list[FlightEntry]] = {}
    for entry in entries:
        by_number.setdefault(entry.number, []).append(entry)
    calls = {number: _call(number, tuple(parts)) for number, parts in sorted(by_number.items())}
    if entries and _forgot(dump) and entries[0] is dump.entries[0]:
        oldest = calls[entries[0].number]
        if oldest.coalesced:  # its first operations may be what was forgotten
            calls[oldest.number] = msgspec.structs.replace(oldest, whole=False)
    return calls


def _call(number: int, entries: tuple[FlightEntry, ...]) -> Call:
    last = entries[-1]
    if _is_end(last):
        return Call(number, entries[:-1] or entries, last.state, last.given_up, coalesced=True, whole=len(entries) > 1)
    if len(entries) == 1:
        return Call(number, entries, last.state, last.given_up)
    # No end yet, so more may follow: as far as its least advanced part.
    order = (SCHEDULED, STARTED, ENDED, COMPLETED)
    states = {entry.state for entry in entries}
    state = next((state for state in order if state in states), SCHEDULED)
    return Call(number, entries, state, any(entry.given_up for entry in entries), coalesced=True, whole=False)


def _is_end(entry: FlightEntry) -> bool:
    """What torch writes after the operations of a coalesced call: it has no tensors."""
    return entry.operation.endswith("coalesced") and not entry.input_sizes and not entry.output_sizes
