"""Whether the ranks of a collective, or the two ends of a transfer, asked for the same thing.
`policy.flight` calls it; it judges nobody's lateness.

Compared are operations, numbers of elements (a shape may differ where they agree) and types.
What nothing recorded is not compared: roots, reduce operations, the splits of an all_to_all.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from math import prod

import msgspec

from controlplane.policy.flight_calls import Call, Meeting
from controlplane.protocol.flight import FlightEntry

GATHERS = frozenset({"all_gather", "allgather", "_all_gather_base", "_allgather_base", "all_gather_single",
                     "all_gather_into_tensor", "all_gather_into_tensor_coalesced"})  # fmt: skip
SCATTERS = frozenset({"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor",
                      "reduce_scatter_tensor_coalesced"})  # fmt: skip
REDUCES = frozenset({"all_reduce", "allreduce", "allreduce_coalesced"})
ROOTED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop"})
ALIKE = GATHERS | SCATTERS | REDUCES
EXCHANGES = frozenset({"all_to_all", "all_to_all_single", "alltoall", "alltoall_base"})
ONE_TYPE = ALIKE | EXCHANGES
UNKNOWN = " As many asked for one as for another: which of them is wrong is not recorded."
SHOWN = 16
"""Ranks whose request a sentence quotes."""


class MatchState(StrEnum):
    """Whether the ranks of a group agree on a collective; torch's analyser has the same names."""

    FULLY_MATCHED = "FULLY_MATCHED"
    COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH"
    SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH"
    COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH"
    COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH"
    UNDECIDED = "UNDECIDED"


class Disagreement(msgspec.Struct, frozen=True):
    """`usual`: an entry as most asked for it; `culprits` empty: it cannot be told whose it is."""

    state: MatchState
    sentence: str
    usual: FlightEntry
    culprits: tuple[int, ...]


def disagreement(meeting: Meeting) -> Disagreement | None:
    """The first thing on which the ranks of a collective differ."""
    here = {rank: call for rank, call in meeting.here.items() if call.whole}
    if not here:
        return None
    counts = {rank: len(call.parts) for rank, call in here.items()}
    _, odd, tie = _minority(counts)
    if odd:
        theirs = "; ".join(f"rank {rank} put {_number(counts[rank])} into it" for rank in sorted(counts) if rank in odd)
        rest = "" if tie else f"; the others {counts[next(r for r in counts if r not in odd)]}"
        sentence = f"The ranks disagree on coalesced {where(meeting)}: {theirs}{rest}.{UNKNOWN if tie else ''}"
        usual = here[min(set(here) - set(odd) or here)].parts[0]
        return Disagreement(MatchState.SIZE_OR_SYNTAX_MISMATCH, sentence, usual, odd)
    for place in range(min(counts.values())):
        parts = {rank: call.parts[place] for rank, call in here.items()}
        between, tie = _between(meeting, parts)
        # Where as many asked for either, one of them may have asked for the impossible.
        found = (_within(meeting, parts) if tie else None) or between or _within(meeting, parts)
        found = found or _totals(meeting, parts)
        if found is not None:
            return found
    return None


def uncompared(meeting: Meeting) -> str:
    """What could not be compared in a collective; empty: everything that was recorded was."""
    partly = [rank for rank, call in meeting.here.items() if not call.whole]
    if partly:
        return f"the operations of coalesced {where(meeting)}, of which rank {', '.join(map(str, partly))} has a part"
    operations = {part.operation for call in meeting.here.values() for part in call.parts}
    if operations & EXCHANGES and (meeting.dark or meeting.absent):
        who = ", ".join(map(str, (*meeting.dark, *meeting.absent)))
        return f"the totals of all_to_all in {where(meeting)}, for which rank {who} is missing"
    return ""


def transfer(send: FlightEntry, receive: FlightEntry) -> tuple[MatchState, str] | None:
    """How the two ends of one transfer differ: (what it is, in words)."""
    sent, got = _numel(send.input_sizes), _numel(receive.output_sizes)
    if sent is not None and got is not None and sent != got:
        return MatchState.SIZE_OR_SYNTAX_MISMATCH, f"{sent} elements sent, {got} expected"
    ours, theirs = set(send.input_dtypes), set(receive.output_dtypes)
    if ours and theirs and ours != theirs:
        return MatchState.COLLECTIVE_DTYPE_MISMATCH, f"{_plain(ours)} sent, {_plain(theirs)} expected"
    return None


def where(meeting: Meeting) -> str:
    return f"collective {meeting.number} of group {group_name(meeting)}"


def group_name(meeting: Meeting) -> str:
    group = meeting.group
    return f"{group.name} ({group.desc})" if group.desc else group.name


def shape(entry: FlightEntry) -> str:
    """ "2x50 Float"; what it was given, or what it is to fill where it was given nothing."""
    sizes = entry.input_sizes or entry.output_sizes
    shapes = ", ".join("x".join(map(str, size)) or "a scalar" for size in sizes) or "nothing"
    return f"{shapes} {'/'.join(entry.input_dtypes or entry.output_dtypes)}".strip()


def call_name(call: Call) -> str:
    """Its operation, or "coalesced all_gather (3 operations)"."""
    if len(call.parts) == 1:
        return call.parts[0].operation
    return f"coalesced {call.parts[0].operation} ({len(call.parts)} operations)"


def _between(meeting: Meeting, parts: dict[int, FlightEntry]) -> tuple[Disagreement | None, bool]:
    """Operation, then what goes in, then what comes out, then types, rank against rank; and whether as many
    asked for one as for another, so that it cannot be told who is wrong."""
    tests: tuple[tuple[MatchState, str, Callable[[FlightEntry], Hashable]], ...] = (
        (MatchState.COLLECTIVE_TYPE_MISMATCH, "operation", lambda e: e.operation),
        (MatchState.SIZE_OR_SYNTAX_MISMATCH, "sizes", _given),
        (MatchState.SIZE_OR_SYNTAX_MISMATCH, "output sizes", _made),
        (MatchState.COLLECTIVE_DTYPE_MISMATCH, "types", _dtypes),
    )
    for state, what, key in tests:
        usual, odd, tie = _minority({rank: key(parts[rank]) for rank in sorted(parts)})
        if odd:
            tell = _made_of if what == "output sizes" else _asked
            theirs = "; ".join(f"rank {rank} {tell(parts[rank])}" for rank in odd[:SHOWN])
            more = f"; {len(odd) - SHOWN} more differ" if len(odd) > SHOWN else ""
            rest = "" if tie else f"; the others {tell(parts[usual])}"
            sentence = f"The ranks disagree on the {what} of {where(meeting)}: {theirs}{more}{rest}."
            return Disagreement(state, sentence + (UNKNOWN if tie else ""), parts[usual], odd), tie
    return None, False


def _within(meeting: Meeting, parts: dict[int, FlightEntry]) -> Disagreement | None:
    """A rank whose own output cannot hold what the operation makes of its own input."""
    size = len(meeting.group.ranks)
    for rank, entry in sorted(parts.items()):
        given, made = _numel(entry.input_sizes), _numel(entry.output_sizes)
        rule = ""
        if given is not None and made is not None:
            if entry.operation in REDUCES and made != given:
                rule = "as much comes out as goes in"
            elif entry.operation in GATHERS and _listed(entry) and made != given * size:
                rule = f"{size} times as much comes out as goes in"
            elif entry.operation in SCATTERS and given != made * size:
                rule = f"{size} times as much goes in as comes out"
        if rule:
            culprits = tuple(r for r, e in sorted(parts.items()) if _sizes(e) == _sizes(entry))
            sentence = (
                f"Rank {', '.join(map(str, culprits))} asked for the impossible in {where(meeting)}: {entry.operation}"
                f" of {given} elements into {made}, but of {size} ranks {rule}."
            )
            return Disagreement(MatchState.SIZE_OR_SYNTAX_MISMATCH, sentence, entry, culprits)
        ins, outs = set(entry.input_dtypes), set(entry.output_dtypes)
        if entry.operation in ONE_TYPE and ins and outs and ins != outs:
            both = tuple(r for r, e in sorted(parts.items()) if set(e.input_dtypes) != set(e.output_dtypes))
            sentence = f"Rank {rank} gives {_plain(ins)} and takes {_plain(outs)} in {where(meeting)}."
            return Disagreement(MatchState.COLLECTIVE_DTYPE_MISMATCH, sentence, entry, both)
    return None


def _totals(meeting: Meeting, parts: dict[int, FlightEntry]) -> Disagreement | None:
    """All that an all_to_all takes in comes out somewhere; whose fault a difference is, no size tells."""
    entry = parts[min(parts)]
    if entry.operation not in EXCHANGES or len(parts) < len(meeting.group.ranks):
        return None
    given = [_numel(e.input_sizes) for e in parts.values()]
    made = [_numel(e.output_sizes) for e in parts.values()]
    if None in given or None in made:
        return None
    total_in, total_out = sum(n or 0 for n in given), sum(n or 0 for n in made)
    if total_in == total_out:
        return None
    sentence = (
        f"The ranks give {total_in} elements to {entry.operation} in {where(meeting)} and expect {total_out}: "
        "the recorders do not show whose split is wrong."
    )
    return Disagreement(MatchState.SIZE_OR_SYNTAX_MISMATCH, sentence, entry, ())


def _minority(says: Mapping[int, Hashable]) -> tuple[int, tuple[int, ...], bool]:
    """A rank of the most that say the same, the ranks that say something else, and whether as many say that: then
    all are among them. A rank without a say (None) is on neither side."""
    given = {rank: said for rank, said in says.items() if said is not None}
    if not given:
        return min(says), (), False
    counts = Counter(given.values())
    usual = max(given, key=lambda rank: (counts[given[rank]], -rank))
    odd = tuple(rank for rank in sorted(given) if given[rank] != given[usual])
    tie = bool(odd) and max(counts[given[r]] for r in odd) == counts[given[usual]]
    return usual, tuple(sorted(given)) if tie else odd, tie


def _given(entry: FlightEntry) -> Hashable:
    """Elements of each input, where every rank must give the same."""
    if entry.operation in ALIKE | ROOTED | {"gather", "barrier"}:
        return tuple(map(prod, entry.input_sizes))
    return None


def _made(entry: FlightEntry) -> Hashable:
    """Elements of each output, where every rank must get the same; only a root has a gather's."""
    if entry.operation in ALIKE | {"broadcast", "_broadcast_oop", "scatter"} and entry.output_sizes:
        return tuple(map(prod, entry.output_sizes))
    return None


def _dtypes(entry: FlightEntry) -> Hashable:
    """Of whichever side it has: only the root of a gather has outputs, of a scatter inputs."""
    said = frozenset((*entry.input_dtypes, *entry.output_dtypes))
    return said or None


def _numel(sizes: tuple[tuple[int, ...], ...]) -> int | None:
    """None: nothing was recorded."""
    return sum(map(prod, sizes)) if sizes else None


def _listed(entry: FlightEntry) -> bool:
    """Gloo's coalesced all_gather records of the outputs only the first."""
    return len(entry.input_sizes) == 1 or len(entry.output_sizes) >= len(entry.input_sizes)


def _sizes(entry: FlightEntry) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    return entry.input_sizes, entry.output_sizes


def _number(count: int) -> str:
    return "1 operation" if count == 1 else f"{count} operations"


def _asked(entry: FlightEntry) -> str:
    return f"asked for {entry.operation} of {shape(entry)}"


def _made_of(entry: FlightEntry) -> str:
    shapes = ", ".join("x".join(map(str, size)) or "a scalar" for size in entry.output_sizes)
    return f"{_asked(entry)} into {shapes}"


def _plain(names: set[str]) -> str:
    return "/".join(sorted(names))
