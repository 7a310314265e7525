"""Who waits for whom, among calls that fit each other. `policy.flight` follows it; accuses nobody."""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from controlplane.policy.flight_calls import Call, Meeting, Pair
from controlplane.policy.flight_match import call_name, group_name, shape
from controlplane.protocol.flight import SCHEDULED, STARTED, FlightEntry

SHOWN = 16
"""Ranks that a sentence names."""


class Kind(StrEnum):
    """Why a call does not end."""

    ABSENT = "absent"
    """Somebody never came to it."""
    QUEUED = "queued"
    """Somebody has queued it and is busy with something before it."""
    BEHIND = "behind"
    """`ranks` are still in it, and others have left it."""
    STANDSTILL = "standstill"
    """All are in it."""
    ORDER = "order"
    """Two ranks made their calls to each other in an order that cannot work."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """`ranks` do not get out of one call, because of those it waits `on`; `dark` ranks may be
    among these, they gave no dump. `passed`: those who left it; `gave_up`: whose wait ended
    in a timeout; `entry`: the operation as the lowest rank asked for it."""

    kind: Kind
    what: str
    group: str
    number: int
    entry: FlightEntry
    ranks: tuple[int, ...]
    on: tuple[int, ...] = ()
    dark: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()
    gave_up: tuple[int, ...] = ()

    @property
    def blamed(self) -> tuple[int, ...]:
        """Whom it speaks against."""
        return self.ranks if self.kind is Kind.BEHIND else self.on


def in_meetings(each: list[Meeting]) -> Iterator[Wait]:
    """The waits of one group's collectives. A rank waits in the first that it has not left;
    what it queued behind that does not hold it."""
    blocked: set[int] = set()
    for meeting in each:
        wait = _wait(meeting, blocked)
        if wait is not None:
            yield wait
        blocked.update(meeting.open)


def _wait(meeting: Meeting, blocked: set[int]) -> Wait | None:
    here = tuple(rank for rank in meeting.open if rank not in blocked)
    behind_it = tuple(rank for rank in meeting.open if rank in blocked)
    if meeting.absent or meeting.dark:
        waiting = tuple(sorted((*here, *meeting.left_early)))
        if not waiting:
            return None
        return _of(meeting, Kind.ABSENT, waiting, on=(*meeting.absent, *behind_it), dark=meeting.dark)
    if not here:
        return None
    started = tuple(rank for rank in here if meeting.here[rank].state == STARTED)
    queued = tuple(rank for rank in here if meeting.here[rank].state == SCHEDULED)
    if behind_it or (started and queued):
        waiting = here if not (started and queued) else started
        on = behind_it if not (started and queued) else tuple(sorted((*queued, *behind_it)))
        return _of(meeting, Kind.QUEUED, waiting, on=on)
    passed = tuple(sorted(rank for rank, call in meeting.here.items() if call.over))
    if passed:
        return _of(meeting, Kind.BEHIND, here, passed=passed)
    return _of(meeting, Kind.STANDSTILL, here)


def _of(
    meeting: Meeting,
    kind: Kind,
    ranks: tuple[int, ...],
    *,
    on: tuple[int, ...] = (),
    dark: tuple[int, ...] = (),
    passed: tuple[int, ...] = (),
) -> Wait:
    call = meeting.here[ranks[0]]
    early = meeting.left_early
    return Wait(
        kind=kind,
        what=f"{call_name(call)} {meeting.number} ({shape(call.parts[0])}) of group {group_name(meeting)}",
        group=group_name(meeting),
        number=meeting.number,
        entry=call.parts[0],
        ranks=ranks,
        on=on,
        dark=dark,
        passed=passed,
        gave_up=tuple(rank for rank in ranks if meeting.here[rank].given_up or rank in early),
    )


def in_pairs(each: list[Pair]) -> Iterator[Wait]:
    """The waits of one group's point-to-point operations."""
    for pair in each:
        yield from _in_pair(pair)
    by_ends = {(pair.source, pair.target): pair for pair in each}
    for source, target in sorted(by_ends):
        back = by_ends.get((target, source))
        if source < target and back is not None:
            yield from _crossed(by_ends[source, target], back)


def aligned(pair: Pair) -> tuple[list[tuple[Call, Call]], tuple[Call, ...], tuple[Call, ...]]:
    """Sends with the receives they meet, and what is left of each. Where a recorder has forgotten
    the start, those that are over are taken to have met."""
    sends, receives = pair.sends or (), pair.receives or ()
    if not pair.whole:
        sends = tuple(call for call in sends if not call.over)
        receives = tuple(call for call in receives if not call.over)
    both = min(len(sends), len(receives))
    return list(zip(sends, receives, strict=False)), sends[both:], receives[both:]


def _in_pair(pair: Pair) -> Iterator[Wait]:
    source, target = pair.source, pair.target
    met, sends, receives = aligned(pair)
    open_sends = tuple(call for call in sends if not call.over)
    open_receives = tuple(call for call in receives if not call.over)
    if open_sends:
        known, dark = ((target,), ()) if pair.receives is not None else ((), (target,))
        yield _transfer(pair, Kind.ABSENT, open_sends[0], ranks=(source,), on=known, dark=dark)
    if open_receives:
        known, dark = ((source,), ()) if pair.sends is not None else ((), (source,))
        yield _transfer(pair, Kind.ABSENT, open_receives[0], ranks=(target,), on=known, dark=dark)
    stuck = next(((s, r) for s, r in met if not (s.over and r.over)), None)
    if stuck is None:
        return
    send, receive = stuck
    if send.over:
        yield _transfer(pair, Kind.BEHIND, receive, ranks=(target,), passed=(source,))
    elif receive.over:
        yield _transfer(pair, Kind.BEHIND, send, ranks=(source,), passed=(target,))
    elif send.state == STARTED and receive.state == SCHEDULED:
        yield _transfer(pair, Kind.QUEUED, send, ranks=(source,), on=(target,))
    elif send.state == SCHEDULED and receive.state == STARTED:
        yield _transfer(pair, Kind.QUEUED, receive, ranks=(target,), on=(source,))
    else:
        yield _transfer(pair, Kind.STANDSTILL, send, ranks=tuple(sorted((source, target))))


def _crossed(there: Pair, back: Pair) -> Iterator[Wait]:
    """Two ranks whose next call to each other is a send at both, or a receive at both, and which
    run one after the other: neither is ever answered."""
    mine = _next(there.sends, back.receives)
    theirs = _next(back.sends, there.receives)
    if mine is None or theirs is None or mine.coalesced or theirs.coalesced:
        return
    if mine.parts[0].operation.split(" ")[0] == theirs.parts[0].operation.split(" ")[0]:
        yield _transfer(there, Kind.ORDER, mine, ranks=(there.source,), on=(there.target,))
        yield _transfer(back, Kind.ORDER, theirs, ranks=(there.target,), on=(there.source,))


def _next(sends: tuple[Call, ...] | None, receives: tuple[Call, ...] | None) -> Call | None:
    waiting = [call for call in (*(sends or ()), *(receives or ())) if not call.over]
    return min(waiting, key=lambda call: call.number, default=None)


def _transfer(
    pair: Pair,
    kind: Kind,
    call: Call,
    *,
    ranks: tuple[int, ...],
    on: tuple[int, ...] = (),
    dark: tuple[int, ...] = (),
    passed: tuple[int, ...] = (),
) -> Wait:
    entry = call.parts[0]
    verb = "send" if entry.operation.startswith("send") else "receive"
    return Wait(
        kind=kind,
        what=f"{verb} {call.number} from rank {pair.source} to rank {pair.target} ({shape(entry)})"
        f" of group {pair.group.name}",
        group=pair.group.name,
        number=call.number,
        entry=entry,
        ranks=ranks,
        on=on,
        dark=dark,
        passed=passed,
        gave_up=ranks if call.given_up else (),
    )


def circle(waits: list[Wait]) -> tuple[int, ...]:
    """Ranks that wait for each other in a circle, in rank order; empty: there is none."""
    mine: dict[int, list[int]] = {}
    for place, wait in enumerate(waits):
        for rank in wait.ranks:
            mine.setdefault(rank, []).append(place)
    done: set[tuple[str, int]] = set()
    for start in sorted(mine):
        path: list[tuple[str, int]] = [("rank", start)]
        turns = [iter([("wait", place) for place in mine[start]])]
        on_path = {path[0]}
        while path:
            node = next((node for node in turns[-1] if node not in done), None)
            if node is None:
                left = path.pop()
                done.add(left)
                on_path.discard(left)
                turns.pop()
            elif node in on_path:
                return tuple(sorted(number for kind, number in path[path.index(node) :] if kind == "rank"))
            else:
                path.append(node)
                on_path.add(node)
                kind, number = node
                turns.append(iter(_after(kind, number, waits, mine)))
    return ()


def _after(kind: str, number: int, waits: list[Wait], mine: dict[int, list[int]]) -> list[tuple[str, int]]:
    if kind == "wait":
        return [("rank", rank) for rank in waits[number].on]
    return [("wait", place) for place in mine.get(number, ())]


def names(ranks: tuple[int, ...]) -> str:
    """ "rank 3" or "ranks 1, 2"; of many the first, and how many more."""
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return ("rank " if len(ranks) == 1 else "ranks ") + shown
