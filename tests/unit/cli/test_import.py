"""`holdfast import straggler-trace`: a file in, a verdict out, no server asked."""

import json
from pathlib import Path

import pytest

from controlplane.cli.exits import Exit
from controlplane.cli.main import main

EXCERPTS = Path(__file__).parents[1] / "policy" / "traces" / "bytedance"
HEAD = "dp_rank,stage,rank,step,optype,duration\n"


def test_the_slow_worker_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "straggler-trace", str(EXCERPTS / "AR.csv"), "--window", "4"]) == Exit.OK
    said = capsys.readouterr().out
    assert "worker: Rank 0 (replica 0, stage 0) works at 4" in said


def test_a_program_reads_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "straggler-trace", str(EXCERPTS / "ST.csv"), "-o", "json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["slow"]) == ("stage", [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("step,rank\n1,2\n", "row 1 has no dp_rank, stage, optype, duration"),
        (HEAD + "0,0,0,1,forward-compute,-1\n", "a duration of -1 s cannot be"),
        (HEAD + "0,0,x,1,forward-compute,1\n", "row 1 makes no sense"),
        (HEAD + "0,0,0,1,forward-compute,1\n", "hold no two windows"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_reason(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_text(text)
    assert main(["import", "straggler-trace", str(tmp_path / "bad.csv")]) == Exit.USAGE
    assert why in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "straggler-trace", str(tmp_path / "none.csv")]) != Exit.OK
    assert "cannot be read" in capsys.readouterr().err
