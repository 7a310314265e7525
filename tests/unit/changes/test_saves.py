"""What a report makes of a save: the rungs that it climbs, and when it is spoiled."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.changes.saves import LOCAL, moves
from controlplane.policy.transitions import check
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.states import CheckpointState

WRITING, COMPLETE, CORRUPT = CheckpointState.WRITING, CheckpointState.COMPLETE, CheckpointState.CORRUPT
VERIFIED, REPLICATED = CheckpointState.VERIFIED, CheckpointState.REPLICATED


def report(state: Any = "complete", **fields: Any) -> CheckpointReport:
    return CheckpointReport(step=7, path="/checkpoints/7", state=state, kind="manual", epoch=2, **fields)


def climbs(said: CheckpointReport, kind: str = "manual", *, fenced: bool = False, copies: int = 1) -> list[str]:
    return [move.to for move in moves(WRITING, kind, said, fenced=fenced, copies=copies)]


def test_a_save_is_complete_when_its_rank_reports_so() -> None:
    assert climbs(report("writing")) == []
    assert climbs(report()) == [COMPLETE]
    (move,) = moves(WRITING, "manual", report("failed", error="no space left"), fenced=False, copies=1)
    assert (move.to, move.why) == (CORRUPT, "the save failed: no space left")


@pytest.mark.parametrize("state", ["writing", "complete", "failed"])
def test_of_who_is_out_nothing_is_trusted(state: str) -> None:
    (move,) = moves(WRITING, "manual", report(state), fenced=True, copies=1)
    assert (move.to, move.why) == (CORRUPT, "its writer was evicted before it was complete")


@pytest.mark.parametrize(
    ("holders", "wanted"),
    [
        ((), [COMPLETE, CORRUPT]),
        ((("a",), ()), [COMPLETE, CORRUPT]),
        ((("a",), ("b",)), [COMPLETE, VERIFIED]),
        ((("a", "a"), ("b", "c")), [COMPLETE, VERIFIED]),
        ((("a", "b"), ("b", "c")), [COMPLETE, VERIFIED, REPLICATED]),
    ],
)
def test_a_local_one_climbs_as_far_as_its_rarest_shard(holders: tuple[tuple[str, ...], ...], wanted: list[str]) -> None:
    assert climbs(report(holders=holders), LOCAL) == wanted
    assert climbs(report(holders=holders)) == [COMPLETE], "any other is read back first"


def test_it_is_replicated_when_it_has_the_copies_that_the_job_wants() -> None:
    two = report(holders=(("a", "b"),))
    assert climbs(two, LOCAL, copies=2) == [COMPLETE, VERIFIED]
    assert climbs(report(holders=(("a", "b", "c"),)), LOCAL, copies=2)[-1] == REPLICATED
    assert climbs(two, LOCAL, copies=0)[-1] == REPLICATED


@given(
    before=st.sampled_from(CheckpointState),
    kind=st.sampled_from(("manual", LOCAL)),
    state=st.sampled_from(("writing", "complete", "failed")),
    fenced=st.booleans(),
    holders=st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=3),
    copies=st.integers(0, 3),
)
def test_every_move_is_in_the_table_and_what_is_written_stays(
    before: CheckpointState, kind: str, state: str, fenced: bool, holders: list[list[str]], copies: int
) -> None:
    said = report(state, holders=tuple(map(tuple, holders)))
    found = moves(before, kind, said, fenced=fenced, copies=copies)
    assert before == WRITING or found == ()
    assert not fenced or all(move.to == CORRUPT for move in found)
    at: str = before
    for move in found:
        check("checkpoint", at, move.to)
        at = move.to
