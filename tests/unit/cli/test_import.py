"""`holdfast import straggler-trace`: a file in, a verdict out, no server asked."""

import csv
import json
import sys
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

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


@pytest.mark.parametrize("name", ["AR", "ST"])
def test_a_trace_in_parquet_gets_the_verdict_that_it_gets_as_csv(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_csv, as_parquet = EXCERPTS / f"{name}.csv", tmp_path / f"trace-{name}.parquet"
    with as_csv.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    types = dict.fromkeys(("dp_rank", "stage", "rank", "step"), int) | {"duration": float}
    typed = [{key: types.get(key, str)(value) for key, value in row.items()} for row in rows]
    # The published files have columns that are not read.
    table = arrow.Table.from_pylist([row | {"start_ts": 0.0, "seq_id": 1} for row in typed])
    parquet.write_table(table, as_parquet)
    verdicts = []
    for path in (as_csv, as_parquet):
        assert main(["import", "straggler-trace", str(path), "-o", "json"]) == Exit.OK
        verdicts.append(json.loads(capsys.readouterr().out))
    assert verdicts[0] == verdicts[1]
    assert verdicts[1]["verdict"] == {"AR": "worker", "ST": "stage"}[name]


def test_without_a_reader_of_parquet_the_extra_that_brings_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(["import", "straggler-trace", str(tmp_path / "trace.parquet")]) != Exit.OK
    assert 'pip install "holdfast[cli,parquet]"' in capsys.readouterr().err


def test_a_file_that_only_has_the_name_of_parquet_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.parquet").write_text(HEAD)
    assert main(["import", "straggler-trace", str(tmp_path / "trace.parquet")]) == Exit.USAGE
    assert "trace.parquet" in capsys.readouterr().err


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
