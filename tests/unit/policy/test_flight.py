"""Who holds a collective up. The traces are dumps of real gloo ranks, made by small programs
that went wrong on purpose, and repaired as an agent does: `type`, `size`, `dtype` (rank 1
asks for something else), `absent` (rank 2 never comes), `deadlock` (ranks 0 and 1 wait in
different groups for each other, rank 2 is free), `matched`, and `pair` (two ranks)."""

from pathlib import Path

import msgspec
import pytest

from controlplane.policy.flight import FlightFinding, MatchState, analyse
from controlplane.protocol.flight import COMPLETED, SCHEDULED, STARTED, FlightDump, FlightEntry, FlightGroup

TRACES = Path(__file__).parent / "traces"
ALL = (0, 1, 2)
replace = msgspec.structs.replace


def trace(case: str) -> tuple[FlightDump, ...]:
    return msgspec.json.decode((TRACES / f"{case}.json").read_bytes(), type=tuple[FlightDump, ...])


def without(dumps: tuple[FlightDump, ...], *ranks: int) -> tuple[FlightDump, ...]:
    return tuple(dump for dump in dumps if dump.rank not in ranks)


def last(dump: FlightDump, **changes: object) -> FlightDump:
    """The dump with its newest entry changed."""
    return replace(dump, entries=(*dump.entries[:-1], replace(dump.entries[-1], **changes)))


def test_ranks_that_agree_are_fully_matched() -> None:
    finding = analyse(trace("matched"), ALL)
    assert (finding.state, finding.culprits, finding.missing_dumps) == (MatchState.FULLY_MATCHED, (), ())
    assert "No rank waits in a collective" in finding.sentence


@pytest.mark.parametrize(
    ("case", "state", "words"),
    [
        ("type", MatchState.COLLECTIVE_TYPE_MISMATCH,
         "disagree on the operation of collective 5 of group 0 (default_pg): rank 1 asked for broadcast of 8 Float; "
         "the others asked for all_reduce of 8 Float"),
        ("size", MatchState.SIZE_OR_SYNTAX_MISMATCH, "rank 1 asked for all_reduce of 16 Float; the others asked for "
         "all_reduce of 8 Float"),
        ("dtype", MatchState.COLLECTIVE_DTYPE_MISMATCH, "rank 1 asked for all_reduce of 8 Double; the others asked "
         "for all_reduce of 8 Float"),
    ],
)  # fmt: skip
def test_a_rank_that_asks_for_something_else_is_the_culprit(case: str, state: MatchState, words: str) -> None:
    finding = analyse(trace(case), ALL)
    assert (finding.state, finding.culprits) == (state, (1,))
    assert words in finding.sentence
    assert (finding.group, finding.number, finding.operation) == ("0 (default_pg)", 5, "all_reduce")
    assert (finding.sizes, finding.dtypes) == (((8,),), ("Float",))


def test_a_rank_that_never_comes_is_the_culprit_and_the_others_wait() -> None:
    finding = analyse(trace("absent"), ALL)
    assert (finding.state, finding.culprits, finding.waiting) == (MatchState.COLLECTIVE_STATE_MISMATCH, (2,), (0, 1))
    assert finding.sentence == (
        "rank 2 never joined all_reduce 5 (2x50 Float) of group 0 (default_pg); ranks 0, 1 wait there."
    )


def test_whoever_waits_elsewhere_is_no_culprit_while_another_is_free() -> None:
    finding = analyse(trace("deadlock"), ALL)
    assert (finding.culprits, finding.waiting) == ((2,), (0,))


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    pair = replace(trace("deadlock")[0].groups[0], ranks=(0, 1))
    dumps = tuple(replace(dump, groups=(pair, dump.groups[1])) for dump in without(trace("deadlock"), 2))
    finding = analyse(dumps, (0, 1))
    assert (finding.state, finding.culprits) == (MatchState.COLLECTIVE_STATE_MISMATCH, (0, 1))
    assert finding.sentence.startswith("Deadlock: ranks 0, 1 wait for each other")


def test_a_rank_that_only_queued_what_others_started_is_the_culprit() -> None:
    dumps = [last(dump, state=STARTED) for dump in trace("absent")[:2]]
    late = replace(trace("absent")[2], entries=(*trace("absent")[2].entries, replace(dumps[0].entries[-1])))
    finding = analyse((*dumps, last(late, state=SCHEDULED)), ALL)
    assert (finding.state, finding.culprits) == (MatchState.COLLECTIVE_STATE_MISMATCH, (2,))
    assert "rank 2 queued all_reduce 5" in finding.sentence


def test_all_inside_and_nothing_moves_is_nobodys_fault() -> None:
    dumps = trace("absent")
    joined = replace(dumps[2], entries=(*dumps[2].entries, dumps[0].entries[-1]))
    finding = analyse((*dumps[:2], joined), ALL)
    assert (finding.state, finding.culprits) == (MatchState.UNDECIDED, ())
    assert "All ranks joined all_reduce 5" in finding.sentence


@pytest.mark.parametrize("case", ["absent", "matched"])
def test_without_the_dump_that_matters_nobody_is_accused(case: str) -> None:
    finding = analyse(without(trace(case), 2), ALL)
    assert (finding.state, finding.culprits, finding.missing_dumps) == (MatchState.UNDECIDED, (), (2,))
    assert "rank 2" in finding.sentence
    assert "gave no Flight Recorder dump" in finding.sentence


def test_a_mismatch_is_decided_though_another_dump_is_missing() -> None:
    finding = analyse(without(trace("size"), 2), ALL)
    assert (finding.state, finding.missing_dumps) == (MatchState.SIZE_OR_SYNTAX_MISMATCH, (2,))


def test_no_dump_at_all_is_undecided() -> None:
    finding = analyse((), ALL)
    assert (finding.state, finding.missing_dumps) == (MatchState.UNDECIDED, ALL)


def test_of_two_that_differ_either_may_be_wrong() -> None:
    finding = analyse(without(trace("type"), 2), (0, 1))
    assert finding.culprits == (0, 1)
    assert "rank 0 asked for all_reduce of 8 Float; rank 1 asked for broadcast of 8 Float." in finding.sentence
    assert finding.sentence.endswith("which of them is wrong is not recorded.")


def test_of_two_that_differ_the_one_that_asks_for_the_impossible_is_wrong() -> None:
    gathers = {"operation": "all_gather", "input_sizes": ((4,),)}
    dumps = tuple(
        replace(last(dump, **gathers, output_sizes=((size,),)), groups=(replace(dump.groups[0], ranks=(0, 1)),))
        for dump, size in zip(trace("matched")[:2], (9, 8), strict=True)
    )
    finding = analyse(dumps, (0, 1))
    assert (finding.state, finding.culprits) == (MatchState.SIZE_OR_SYNTAX_MISMATCH, (0,))


def test_what_a_full_recorder_has_forgotten_is_nobodys_absence() -> None:
    dumps = trace("matched")
    forgetful = replace(dumps[1], entries=dumps[1].entries[-2:])
    first = replace(dumps[0].entries[0], state=SCHEDULED)  # never marked as over, as old ones may be
    stale = replace(dumps[0], entries=(first, *dumps[0].entries[1:]))
    assert analyse((stale, forgetful, dumps[2]), ALL).state is MatchState.FULLY_MATCHED


def test_an_exchange_may_rightly_differ_in_size() -> None:
    def exchanged(dump: FlightDump) -> FlightDump:
        entries = tuple(replace(entry, operation="all_to_all") for entry in dump.entries)
        sized = (replace(e, input_sizes=((dump.rank,),), output_sizes=((dump.rank,),)) for e in entries)
        return replace(dump, entries=tuple(sized))

    dumps = tuple(exchanged(dump) for dump in trace("matched"))
    assert analyse(dumps, ALL).state is MatchState.FULLY_MATCHED


@pytest.mark.parametrize(("operation", "root_only"), [("gather", "output_dtypes"), ("scatter", "input_dtypes")])
def test_what_only_the_root_has_is_no_difference_of_types(operation: str, root_only: str) -> None:
    alike = {"operation": operation, "input_sizes": ((8,),), "input_dtypes": ("Byte",), "output_dtypes": ("Byte",)}
    root, *others = (last(dump, **alike) for dump in trace("matched"))
    dumps = (root, *(last(dump, **{root_only: ()}) for dump in others))
    assert analyse(dumps, ALL).state is MatchState.FULLY_MATCHED
    wrong = last(dumps[1], **{"input_dtypes": ("Float",), "output_dtypes": ("Float",), root_only: ()})
    assert analyse((root, wrong, dumps[2]), ALL).state is MatchState.COLLECTIVE_DTYPE_MISMATCH


def test_what_was_not_recorded_is_said_and_not_called_agreed() -> None:
    dumps = tuple(replace(dump, backends=("gloo",)) for dump in trace("matched"))
    rooted = tuple(last(dump, operation="broadcast") for dump in dumps)
    finding = analyse(rooted, ALL)
    notes = ("the roots of broadcast", "point-to-point operations on gloo, which records none")
    assert finding.not_compared == notes
    assert finding.sentence.endswith(f"Not compared: {'; '.join(notes)}.")
    exchange = analyse(tuple(last(dump, operation="all_to_all") for dump in without(dumps, 2)), ALL)
    assert "the totals of all_to_all in collective 5 of group 0 (default_pg), for which rank 2 is missing" in (
        exchange.not_compared
    )


def test_ranks_that_gave_up_after_a_timeout_still_count_as_waiting() -> None:
    dumps = trace("absent")
    timed_out = [last(dump, state=STARTED, given_up=True) for dump in dumps[:2]]
    finding = analyse((*timed_out, dumps[2]), ALL)
    assert (finding.culprits, finding.waiting, finding.gave_up) == ((2,), (0, 1), (0, 1))
    assert finding.sentence.endswith("ranks 0, 1 gave up waiting.")


@pytest.mark.parametrize("size", [1_000, 4_000])
def test_one_of_thousands_is_named_and_the_sentence_stays_short(size: int) -> None:
    group = FlightGroup("0", "default_pg", tuple(range(size)))
    done = FlightEntry("0", 1, "all_reduce", ((8,),), ((8,),), ("Float",), ("Float",), COMPLETED)
    waiting = replace(done, number=2, state=STARTED)
    dumps = tuple(FlightDump(r, (group,), (done,) if r == 7 else (done, waiting)) for r in range(size))
    finding = analyse(dumps, tuple(range(size)))
    assert (finding.culprits, len(finding.waiting)) == ((7,), size - 1)
    assert len(finding.sentence) < 300


def test_a_dump_that_is_older_than_what_others_have_done_with_its_rank_accuses_nobody() -> None:
    """Ranks that train are looked at one after the other; the third is the first here."""
    old = replace(trace("absent")[2], entries=trace("absent")[2].entries[:2])
    finding = analyse((*trace("absent")[:2], old), ALL)
    assert (finding.state, finding.culprits, finding.waiting) == (MatchState.UNDECIDED, (), (0, 1))
    assert finding.sentence == (
        "Inconclusive: ranks 0, 1 wait in all_reduce 5 (2x50 Float) of group 0 (default_pg), and the dump of rank 2 is "
        "older than what the others have done with it since."
    )


def test_dumps_of_agents_that_do_not_name_the_backend_of_an_entry_are_read_beside_those_that_do() -> None:
    named = [replace(d, entries=tuple(replace(e, backend="gloo") for e in d.entries)) for d in trace("absent")[:2]]
    dumps = tuple(replace(dump, backends=("gloo",)) for dump in (*named, trace("absent")[2]))
    assert analyse(dumps, ALL).culprits == (2,)


def test_gloos_coalesced_all_gather_records_of_the_outputs_only_the_first() -> None:
    coalesced = {"operation": "all_gather", "input_sizes": ((2,), (3,)), "output_sizes": ((2, 2),)}
    dumps = tuple(last(dump, **coalesced) for dump in trace("matched"))
    assert analyse(dumps, ALL).state is MatchState.FULLY_MATCHED


def test_a_finding_does_not_depend_on_the_order_of_the_dumps() -> None:
    for case in ("type", "size", "dtype", "absent", "deadlock", "matched"):
        found: set[FlightFinding] = {analyse(dumps, ALL) for dumps in (trace(case), trace(case)[::-1])}
        assert len(found) == 1, case


def test_the_traces_hold_both_finished_and_waiting_operations() -> None:
    states = {entry.state for dump in trace("absent") for entry in dump.entries}
    assert states == {COMPLETED, SCHEDULED}
