"""A repaired dump goes back into torch's form and gets the answer that the original gets."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.flight_cases import CASES, Case
from benchmarks.flight_verdicts import _repaired, count, ours, torchs
from trainer.second_opinion import Opinion, main, opinion, torch_form

AS_RECORDED = [case for case in CASES if not case.forgot and "scatter" not in case.name.partition("NCCL: ")[2]]
"""A scatter of NCCL is put right before it is sent, and of half a coalesced call torch makes this or that."""


@pytest.mark.parametrize("case", AS_RECORDED, ids=lambda case: case.name)
def test_what_the_agent_sends_loses_nothing_that_torch_needs(case: Case) -> None:
    sent = opinion({f"rank{rank}": torch_form(_repaired(case, rank)) for rank in case.calls})
    original = torchs(case)
    assert (sent.kind, sent.ranks) == (original.state, original.ranks)


def test_ours_answers_rightly_at_least_as_often_as_torchs() -> None:
    mine, theirs = count([(case, ours(case)) for case in CASES]), count([(case, torchs(case)) for case in CASES])
    assert mine.kind_and_ranks == mine.cases
    assert theirs.kind_and_ranks < mine.kind_and_ranks
    assert theirs.kind <= mine.kind


def test_the_program_reads_dumps_and_writes_an_opinion(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "a rank that never came")
    dumps = tmp_path / "dumps.json"
    dumps.write_bytes(msgspec.json.encode([_repaired(case, rank) for rank in case.calls]))
    assert main(["--dumps", str(dumps), "--out", str(tmp_path / "out.json")]) == 0
    told = msgspec.json.decode((tmp_path / "out.json").read_bytes(), type=Opinion)
    assert told == Opinion("COLLECTIVE_STATE_MISMATCH", (2,))
