"""Who holds a collective up, from the Flight Recorders of one replica's ranks (S3.1, S3.2).

Theory of operation. In each group a rank numbers its collectives, and the n-th of one rank
must meet the n-th of every other: same operation, same sizes, same types. Groups are gone
through by name, collectives by number, and the first that does not fit is the finding:
1. operations, sizes or types differ: the ranks that differ from most of the others (from
   the lowest rank, when they are as many) are the culprits;
2. some started it and some only queued it: those that queued it are;
3. some are in it and others never came: those that never came are, unless they themselves
   wait in another group, which is then followed to whoever waits for nobody;
4. a rank whose dump is missing may be any of these: nothing is accused, it is named;
5. all are in it and nothing moves: the ranks agree, so the network or a device does not.
Point-to-point operations are not judged (gloo does not record them).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from enum import StrEnum

import msgspec

from controlplane.protocol.flight import COMPLETED, SCHEDULED, STARTED, FlightDump, FlightEntry, FlightGroup

# Every rank's input has the same shape in these; in the others (gather, scatter,
# all_to_all, ...) it may rightly differ.
SAME_SHAPE = frozenset(
    {"all_reduce", "allreduce", "reduce", "broadcast", "all_gather", "allgather", "_allgather_base",
     "all_gather_into_tensor", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor", "barrier"}
)  # fmt: skip


class MatchState(StrEnum):
    """Whether the ranks of a group agree on a collective; torch's analyser has the same names."""

    FULLY_MATCHED = "FULLY_MATCHED"
    COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH"
    SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH"
    COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH"
    COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH"
    UNDECIDED = "UNDECIDED"


class FlightFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the dumps say. `culprits`: ranks inside the replica, empty when nobody is
    accused; `waiting` those held up; `missing_dumps` ranks that gave none. `group`,
    `operation`, `number`, `sizes`, `dtypes`: of the collective, as most ranks asked for it."""

    state: MatchState
    sentence: str
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    missing_dumps: tuple[int, ...] = ()
    group: str = ""
    operation: str = ""
    number: int = 0
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()


class _Case(msgspec.Struct, frozen=True):
    """One collective of one group. `here`: its entry at each rank that has it; `absent`
    ranks have a dump without it; `dark` ranks have no dump."""

    group: FlightGroup
    number: int
    here: dict[int, FlightEntry]
    absent: tuple[int, ...]
    dark: tuple[int, ...]

    @property
    def open(self) -> tuple[int, ...]:
        """Ranks that are still in it."""
        return tuple(sorted(rank for rank, entry in self.here.items() if entry.state != COMPLETED))


def analyse(dumps: tuple[FlightDump, ...], ranks: tuple[int, ...]) -> FlightFinding:
    """`ranks`: every rank of the replica, those without a dump too."""
    by_rank = {dump.rank: dump for dump in dumps}
    missing = tuple(rank for rank in sorted(ranks) if rank not in by_rank)
    cases = tuple(_cases(by_rank))
    for case in cases:
        found = _disagreement(case)
        if found is not None:
            return msgspec.structs.replace(found, missing_dumps=missing)
    held_up = tuple(case for case in cases if case.open)
    found = _absence(held_up) or _blind_spot(held_up) or _standstill(held_up)
    if found is not None:
        return msgspec.structs.replace(found, missing_dumps=missing)
    if missing:
        names = _names(missing)
        sentence = f"It cannot be told: {names} gave no Flight Recorder dump, and the others wait in no collective."
        return FlightFinding(state=MatchState.UNDECIDED, sentence=sentence, missing_dumps=missing)
    sentence = "No rank waits in a collective: every one that was begun is over, so the ranks stand outside of them."
    return FlightFinding(state=MatchState.FULLY_MATCHED, sentence=sentence)


def _cases(by_rank: Mapping[int, FlightDump]) -> Iterator[_Case]:
    """Every collective that all dumps still reach back to, by group and number."""
    groups = {group.name: group for dump in by_rank.values() for group in dump.groups}
    for name in sorted(groups, key=lambda name: (len(name), name)):
        group = groups[name]
        seen = {
            rank: {e.number: e for e in by_rank[rank].entries if e.group == name and not e.p2p}
            for rank in group.ranks
            if rank in by_rank
        }
        # A recorder is a ring: what lies before some rank's oldest entry is nobody's absence.
        first = max((min(entries) for entries in seen.values() if entries), default=1)
        for number in sorted({number for entries in seen.values() for number in entries if number >= first}):
            yield _Case(
                group=group,
                number=number,
                here={rank: entries[number] for rank, entries in seen.items() if number in entries},
                absent=tuple(rank for rank, entries in seen.items() if number not in entries),
                dark=tuple(rank for rank in group.ranks if rank not in by_rank),
            )


def _disagreement(case: _Case) -> FlightFinding | None:
    """Steps 1 and 2."""
    tests: tuple[tuple[MatchState, str, Callable[[FlightEntry], Hashable]], ...] = (
        (MatchState.COLLECTIVE_TYPE_MISMATCH, "operation", lambda e: e.operation),
        (MatchState.SIZE_OR_SYNTAX_MISMATCH, "sizes", lambda e: e.input_sizes if e.operation in SAME_SHAPE else ()),
        (MatchState.COLLECTIVE_DTYPE_MISMATCH, "types", _dtypes),
    )
    for state, what, key in tests:
        usual, odd = _minority(case.here, key)
        if odd:
            theirs = "; ".join(f"rank {rank} {_asked(case.here[rank])}" for rank in odd)
            sentence = (
                f"The ranks disagree on the {what} of collective {case.number} of group {_group(case)}: "
                f"{theirs}; the others {_asked(usual)}."
            )
            return _finding(case, state, sentence, usual, culprits=odd)
    behind = tuple(sorted(rank for rank, entry in case.here.items() if entry.state == SCHEDULED))
    usual = case.here[min(case.here)]
    if behind and any(entry.state == STARTED for entry in case.here.values()):
        sentence = (
            f"{_names(behind)} queued {_what(case, usual)} but did not start it; the others have: "
            "the device there is busy or stuck before it."
        )
        return _finding(case, MatchState.COLLECTIVE_STATE_MISMATCH, sentence, usual, culprits=behind)
    return None


def _absence(cases: tuple[_Case, ...]) -> FlightFinding | None:
    """Step 3: the rank that is waited for and waits for nobody."""
    waits = {rank for case in cases for rank in case.open}
    late = tuple(case for case in cases if case.absent)
    if not late:
        return None
    case = next((c for c in late if any(rank not in waits for rank in c.absent)), late[0])
    usual = case.here[min(case.open)]
    free = tuple(rank for rank in case.absent if rank not in waits)
    if not free:
        if any(other.dark for other in cases):
            return None
        culprits = tuple(sorted(waits))
        sentence = f"Deadlock: {_names(culprits)} wait for each other in different collectives, first in " + (
            f"{_what(case, usual)}."
        )
        return _finding(case, MatchState.COLLECTIVE_STATE_MISMATCH, sentence, usual, culprits=culprits)
    sentence = f"{_names(free)} never joined {_what(case, usual)}; {_names(case.open)} wait there."
    return _finding(case, MatchState.COLLECTIVE_STATE_MISMATCH, sentence, usual, culprits=free)


def _blind_spot(cases: tuple[_Case, ...]) -> FlightFinding | None:
    """Step 4."""
    case = next((case for case in cases if case.dark), None)
    if case is None:
        return None
    usual = case.here[min(case.open)]
    sentence = (
        f"It cannot be told: {_names(case.open)} wait in {_what(case, usual)}, and {_names(case.dark)}, "
        "which may or may not have joined it, gave no Flight Recorder dump."
    )
    return _finding(case, MatchState.UNDECIDED, sentence, usual)


def _standstill(cases: tuple[_Case, ...]) -> FlightFinding | None:
    """Step 5."""
    if not cases:
        return None
    case = cases[0]
    usual = case.here[min(case.open)]
    sentence = (
        f"All ranks joined {_what(case, usual)} and agree on it, but {_names(case.open)} do not get out: "
        "the network or a device, not a rank."
    )
    return _finding(case, MatchState.UNDECIDED, sentence, usual)


def _finding(
    case: _Case, state: MatchState, sentence: str, usual: FlightEntry, *, culprits: tuple[int, ...] = ()
) -> FlightFinding:
    return FlightFinding(
        state=state,
        sentence=sentence,
        culprits=culprits,
        waiting=tuple(rank for rank in case.open if rank not in culprits),
        group=_group(case),
        operation=usual.operation,
        number=case.number,
        sizes=usual.input_sizes,
        dtypes=usual.input_dtypes,
    )


def _minority(
    here: Mapping[int, FlightEntry], key: Callable[[FlightEntry], Hashable]
) -> tuple[FlightEntry, tuple[int, ...]]:
    """What most ranks asked for, and the ranks that did not; the lowest rank breaks a tie."""
    ranks = sorted(here)
    counts = Counter(key(here[rank]) for rank in ranks)
    usual = max(ranks, key=lambda rank: (counts[key(here[rank])], -rank))
    return here[usual], tuple(rank for rank in ranks if key(here[rank]) != key(here[usual]))


def _asked(entry: FlightEntry) -> str:
    return f"asked for {entry.operation} of {_shape(entry)}"


def _dtypes(entry: FlightEntry) -> frozenset[str]:
    """Of whichever side it has: only the root of a gather has outputs, of a scatter inputs."""
    return frozenset((*entry.input_dtypes, *entry.output_dtypes))


def _shape(entry: FlightEntry) -> str:
    shapes = ", ".join("x".join(map(str, size)) or "a scalar" for size in entry.input_sizes) or "nothing"
    return f"{shapes} {'/'.join(entry.input_dtypes)}".strip()


def _what(case: _Case, entry: FlightEntry) -> str:
    return f"{entry.operation} {case.number} ({_shape(entry)}) of group {_group(case)}"


def _group(case: _Case) -> str:
    return f"{case.group.name} ({case.group.desc})" if case.group.desc else case.group.name


def _names(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
