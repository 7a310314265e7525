"""holdfast ledger: its window, and the files that it writes."""

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from controlplane.cli.commands.ledger import FIELDS, failures, gpu_time, lines, write
from controlplane.cli.exits import CliError
from controlplane.cli.spans import since

UNTIL = datetime(2026, 3, 8, tzinfo=UTC)


def answer(**changes: Any) -> dict[str, Any]:
    rows = [
        {
            "id": "inc_1",
            "kind": "incident",
            "label": "=cmd|' /C calc'!A0",
            "classes": {"stall": 3600.0, "recovery": 1.5},
        },
        {"id": "job_1", "kind": "job", "label": "first-light", "classes": {"degraded": -7.0}},
    ]
    return {
        "since": "2026-03-01T00:00:00Z", "until": "2026-03-08T00:00:00Z", "by": "cause", "price": 2.0,
        "currency": "EUR", "rows": rows,
    } | changes  # fmt: skip


@pytest.mark.parametrize(("text", "days"), [("7d", 7.0), ("12h", 0.5), ("90m", 0.0625), ("2w", 14.0)])
def test_a_window_is_so_long_before_its_end(text: str, days: float) -> None:
    assert since(text, UNTIL) == UNTIL - timedelta(days=days)
    assert since("2026-03-01T00:00:00+00:00", UNTIL) == UNTIL - timedelta(days=7)


@pytest.mark.parametrize("text", ["", "7", "d7", "7y", "-7d", "yesterday"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(CliError, match="is no instant"):
        since(text, UNTIL)


def test_both_files_hold_every_second_once_with_money(tmp_path: Path) -> None:
    for name in ("out.csv", "out.parquet"):
        write(tmp_path / name, answer())
    written = list(lines(answer()))
    assert sum(line["gpu_s"] for line in written) == 3594.5
    packed = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert packed == written
    with (tmp_path / "out.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert tuple(read[0]) == FIELDS
    assert [float(line["gpu_s"]) for line in read] == [3600.0, 1.5, -7.0]
    assert [float(line["money"]) for line in read] == pytest.approx([2.0, 2.0 * 1.5 / 3600.0, -14.0 / 3600.0])


def test_a_title_is_no_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    write(tmp_path / "out.csv", answer())
    with (tmp_path / "out.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["label"].startswith("'=cmd")


def test_without_a_price_there_is_no_money(tmp_path: Path) -> None:
    assert {line["money"] for line in lines(answer(price=None, currency=None))} == {None}
    with pytest.raises(CliError, match="cannot be written"):
        write(tmp_path / "nowhere" / "out.csv", answer())


@pytest.mark.parametrize(
    ("gpu_s", "said"),
    [
        (0.0, "0.0 GPU-s"),
        (1.25, "1.2 GPU-s"),
        (-7.0, "-7.0 GPU-s"),
        (120.4, "120 GPU-s"),
        (3599.0, "3599 GPU-s"),
        (3600.0, "1.0 GPU-h"),
        (-44_280.0, "-12.3 GPU-h"),
        (4_442_400.0, "1,234 GPU-h"),
    ],
)
def test_a_small_amount_is_written_in_seconds_and_never_as_nothing(gpu_s: float, said: str) -> None:
    assert gpu_time(gpu_s) == said


def test_failures_are_said_with_their_means_and_what_was_not_observed() -> None:
    found = {"failures": 2, "up_s": 7200.0, "mttf_s": 3600.0, "mttd_s": 2.0, "mttr_s": None}
    assert failures(found) == (
        "2 failures in 2h0m of training; mean time to failure (MTTF) 1h0m, to detection (MTTD) 2.0s,"
        " to recovery (MTTR) not observed."
    )
    assert failures(found | {"failures": 1}).startswith("1 failure in 2h0m of training;")
