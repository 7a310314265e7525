"""Who holds a collective up, from the Flight Recorders of one replica's ranks (S3.1, S3.2).

Theory of operation. `policy.flight_calls` puts the ranks' calls side by side and
`policy.flight_match` compares them; the first that does not fit is the finding. Where all fit,
`policy.flight_waits` says who waits for whom, and that is followed:
1. a rank that is waited for and waits for nobody is the culprit: it never came, it is still in
   a call that the others have left, or it queued what the others have started;
2. ranks that wait for each other in a circle are a deadlock, and only those of the circle;
3. a rank without a dump may be any of these: nobody is accused, it is named;
4. a dump that is older than what others' dumps prove is as none;
5. all are in it and nothing moves: the ranks agree, so the network or a device does not.
What could not be compared is said (`not_compared`), and undecided is an answer.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from controlplane.policy.flight_calls import Lane, Meeting, Pair, lanes_of, meetings, outdated, pairs
from controlplane.policy.flight_match import MatchState, disagreement, group_name, transfer, uncompared
from controlplane.policy.flight_waits import Kind, Wait, aligned, circle, in_meetings, in_pairs, names
from controlplane.protocol.flight import STATELESS, FlightDump, FlightEntry

__all__ = ["FlightFinding", "MatchState", "analyse"]

MAX_NOTES = 5
_ROOTED = ("broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter")


class FlightFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the dumps say. `culprits`: ranks inside the replica, empty when nobody is
    accused; `waiting` those held up; `gave_up` those whose wait ended in a timeout;
    `missing_dumps` ranks that gave none. `group`, `operation`, `number`, `sizes`, `dtypes`: of
    the collective, as most ranks asked for it. `not_compared`: what nothing recorded."""

    state: MatchState
    sentence: str
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    gave_up: tuple[int, ...] = ()
    missing_dumps: tuple[int, ...] = ()
    group: str = ""
    operation: str = ""
    number: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()


def analyse(dumps: tuple[FlightDump, ...], ranks: tuple[int, ...]) -> FlightFinding:
    """`ranks`: every rank of the replica, those without a dump too."""
    by_rank = {dump.rank: dump for dump in dumps}
    missing = tuple(rank for rank in sorted(ranks) if rank not in by_rank)
    lanes = lanes_of(by_rank)
    met = [list(meetings(lane, by_rank)) for lane in lanes]
    transfers = [list(pairs(lane, by_rank)) for lane in lanes]
    notes = _notes(by_rank, met, transfers)
    found = _disagreement(met, transfers)
    if found is None:
        old = outdated(lanes, by_rank)
        waits = list(_waits(lanes, {rank: dump for rank, dump in by_rank.items() if rank not in old}))
        found = _culprit(waits) or _deadlock(waits) or _blind_spot(waits, old) or _standstill(waits)
        found = found or (_moving(old) if old else _nothing(missing))
    if not found.culprits and notes:
        found = msgspec.structs.replace(found, sentence=f"{found.sentence} Not compared: {'; '.join(notes)}.")
    return msgspec.structs.replace(found, missing_dumps=missing, not_compared=notes)


def _waits(lanes: tuple[Lane, ...], by_rank: Mapping[int, FlightDump]) -> Iterator[Wait]:
    for lane in lanes:
        yield from in_meetings(list(meetings(lane, by_rank)))
    for lane in lanes:
        yield from in_pairs(list(pairs(lane, by_rank)))


def _disagreement(met: list[list[Meeting]], transfers: list[list[Pair]]) -> FlightFinding | None:
    """The first that does not fit, of the groups in which somebody waits before others."""
    for meeting in (
        meeting for each in sorted(met, key=lambda each: not any(m.open for m in each)) for meeting in each
    ):
        found = disagreement(meeting)
        if found is not None:
            said = _of_entry(found.state, found.sentence, found.usual, group_name(meeting), meeting.number)
            waiting = tuple(rank for rank in meeting.open if rank not in found.culprits)
            return msgspec.structs.replace(said, culprits=found.culprits, waiting=waiting)
    for pair in (pair for each in transfers for pair in each):
        for send, receive in aligned(pair)[0]:
            odd = transfer(send.parts[0], receive.parts[0])
            if odd is not None:
                sentence = (
                    f"Ranks {pair.source} and {pair.target} disagree on {send.parts[0].operation}, number"
                    f" {send.number} of group {pair.group.name}: {odd[1]}. Which of them is wrong is not recorded."
                )
                said = _of_entry(odd[0], sentence, send.parts[0], pair.group.name, send.number)
                return msgspec.structs.replace(said, culprits=(pair.source, pair.target))
    return None


def _culprit(waits: list[Wait]) -> FlightFinding | None:
    """Whoever is waited for and waits for nobody."""
    held = {rank for wait in waits if wait.on or wait.dark or wait.kind is Kind.STANDSTILL for rank in wait.ranks}
    blamed = [(wait, tuple(rank for rank in wait.blamed if rank not in held)) for wait in waits]
    blamed = [(wait, free) for wait, free in blamed if free]
    if not blamed:
        return None
    first, free = blamed[0]
    sentences, told = [_blame(first, free)], set(free)
    for wait, others in blamed[1:]:
        new = tuple(rank for rank in others if rank not in told)
        if new:
            sentences.append(_blame(wait, new))
            told.update(new)
    shown = " ".join(sentences[:3]) + (f" {len(sentences) - 3} more like these." if len(sentences) > 3 else "")
    waiting = tuple(sorted(rank for rank in {*first.ranks, *first.passed} if rank not in told))
    return _finding(first, shown, culprits=tuple(sorted(told)), waiting=waiting)


def _blame(wait: Wait, free: tuple[int, ...]) -> str:
    others = tuple(rank for rank in wait.ranks if rank not in free)
    if wait.kind is Kind.BEHIND:
        return f"{names(free)} {_be(free)} still in {wait.what}, which {names(wait.passed)} left."
    if wait.kind is Kind.QUEUED:
        return (
            f"{names(free)} queued {wait.what} but did not start it; {names(others)} did: "
            "the device there is busy or stuck before it."
        )
    gave_up = tuple(rank for rank in wait.gave_up if rank in others)
    end = f"; {names(gave_up)} gave up waiting" if gave_up else f"; {names(others)} {_wait_verb(others)} there"
    return f"{names(free)} never joined {wait.what}{end}."


def _deadlock(waits: list[Wait]) -> FlightFinding | None:
    ring = circle(waits)
    if not ring:
        return None
    mine = [wait for wait in waits if set(wait.ranks) & set(ring) and set(wait.on) & set(ring)]
    where = "; ".join(
        f"{names(tuple(r for r in wait.ranks if r in ring))} in {wait.what}" for wait in mine[: MAX_NOTES - 2]
    )
    why = " The order of their calls differs." if any(wait.kind is Kind.ORDER for wait in mine) else ""
    sentence = f"Deadlock: {names(ring)} wait for each other in different calls: {where}.{why}"
    return _finding(mine[0], sentence, culprits=ring, waiting=())


def _blind_spot(waits: list[Wait], old: tuple[int, ...]) -> FlightFinding | None:
    wait = next((wait for wait in waits if wait.dark), None)
    if wait is None:
        return None
    silent, before = (tuple(r for r in wait.dark if (r in old) is known) for known in (False, True))
    why = [f"{names(silent)}, which may or may not have joined it, gave no Flight Recorder dump"] if silent else []
    if before:
        why.append(f"the dump of {names(before)} is older than what the others have done with it since")
    sentence = f"Inconclusive: {names(wait.ranks)} {_wait_verb(wait.ranks)} in {wait.what}, and {', and '.join(why)}."
    return _finding(wait, sentence, state=MatchState.UNDECIDED, waiting=wait.ranks)


def _standstill(waits: list[Wait]) -> FlightFinding | None:
    wait = next((wait for wait in waits if wait.kind is Kind.STANDSTILL), None)
    if wait is None:
        return None
    sentence = (
        f"All ranks joined {wait.what} and agree on it, but {names(wait.ranks)} do not get out"
        f"{' and gave up' if wait.gave_up else ''}: the network or a device, not a rank."
    )
    return _finding(wait, sentence, state=MatchState.UNDECIDED, waiting=wait.ranks)


def _moving(old: tuple[int, ...]) -> FlightFinding:
    sentence = f"Inconclusive: the ranks moved between the dumps; that of {names(old)} is older than the others'."
    return FlightFinding(state=MatchState.UNDECIDED, sentence=sentence)


def _nothing(missing: tuple[int, ...]) -> FlightFinding:
    if missing:
        sentence = f"Inconclusive: {names(missing)} gave no Flight Recorder dump, and the others wait in no collective."
        return FlightFinding(state=MatchState.UNDECIDED, sentence=sentence)
    sentence = "No rank waits in a collective: every one that was begun is over, so the ranks stand outside of them."
    return FlightFinding(state=MatchState.FULLY_MATCHED, sentence=sentence)


def _notes(by_rank: Mapping[int, FlightDump], met: list[list[Meeting]], transfers: list[list[Pair]]) -> tuple[str, ...]:
    """What the recorders do not hold, each thing once."""
    notes = [note for each in met for meeting in each if (note := uncompared(meeting))]
    used = {e.operation for dump in by_rank.values() for e in dump.entries}
    notes += [f"the roots of {name}" for name in _ROOTED if name in used]
    if any(STATELESS & set(dump.backends) for dump in by_rank.values()):
        notes.append("point-to-point operations on gloo, which records none")
    if any(not pair.whole for each in transfers for pair in each):
        notes.append("transfers older than the oldest in the recorders")
    kept = list(dict.fromkeys(notes))
    return (*kept[:MAX_NOTES], *([f"{len(kept) - MAX_NOTES} more"] if len(kept) > MAX_NOTES else []))


def _finding(
    wait: Wait,
    sentence: str,
    *,
    state: MatchState = MatchState.COLLECTIVE_STATE_MISMATCH,
    culprits: tuple[int, ...] = (),
    waiting: Iterable[int] = (),
) -> FlightFinding:
    said = _of_entry(state, sentence, wait.entry, wait.group, wait.number)
    return msgspec.structs.replace(said, culprits=culprits, waiting=tuple(waiting), gave_up=wait.gave_up)


def _of_entry(state: MatchState, sentence: str, entry: FlightEntry, group: str, number: int) -> FlightFinding:
    return FlightFinding(
        state=state,
        sentence=sentence,
        group=group,
        operation=entry.operation,
        number=number,
        sizes=entry.input_sizes or entry.output_sizes,
        dtypes=entry.input_dtypes or entry.output_dtypes,
    )


def _wait_verb(ranks: tuple[int, ...]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _be(ranks: tuple[int, ...]) -> str:
    return "is" if len(ranks) == 1 else "are"
