"""holdfast project bill: its file sums to the bill, and names are no formulas."""

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.commands.bill import FIELDS, last_month, rows, sums, write


def answer(**changes: Any) -> dict[str, Any]:
    jobs = [
        {"id": "job_1", "name": "=cmd|' /C calc'!A0", "charged_gpu_s": 7200.0, "money": 6.0, "not_charged_gpu_s": 60.0},
        {"id": "job_2", "name": "first-light", "charged_gpu_s": 3600.0, "money": 3.0, "not_charged_gpu_s": 0.0},
    ]
    return {
        "project": "vision", "month": "2026-10", "state": "closed", "closed_at": "2026-11-04T00:00:01Z", "price": 3.0,
        "currency": "EUR", "charged_gpu_s": 14400.0, "charged_money": 12.0, "not_charged_gpu_s": 100.0, "lines": [],
        "jobs": jobs, "jobs_left_out": 2, "left_out_gpu_s": 3600.0, "restated": None, "judged_until": None,
    } | changes  # fmt: skip


def test_its_file_has_a_row_a_job_and_sums_to_the_bill(tmp_path: Path) -> None:
    file = tmp_path / "bill.csv"
    write(file, answer())
    found = list(csv.DictReader(file.open(encoding="utf-8")))
    assert tuple(found[0]) == FIELDS
    assert sum(float(row["charged_gpu_s"]) for row in found) == pytest.approx(14400.0)
    assert sum(float(row["money"]) for row in found) == pytest.approx(12.0)
    assert sum(float(row["not_charged_gpu_s"]) for row in found) == pytest.approx(100.0)
    assert found[0]["name"].startswith("'="), "what people wrote is no formula of a spreadsheet"


def test_a_restatement_is_a_row_of_its_own_and_without_a_price_there_is_no_money() -> None:
    more = answer(restated={"gpu_s": -60.0, "money": -0.05})
    assert [row["kind"] for row in rows(more)] == ["job", "job", "more", "restated"]
    assert "Restated since it was closed: -60 GPU-s, -0.05 EUR." in list(sums(more))
    free = answer(price=None, currency=None, charged_money=None, jobs=[])
    assert {row["money"] for row in rows(free)} == {None}
    assert next(iter(sums(free))) == "Charged: 4.0 GPU-h."


def test_the_month_that_is_shown_unless_another_is_named_is_the_last_one_that_is_over() -> None:
    assert last_month(datetime(2026, 3, 31, tzinfo=UTC)) == "2026-02"
    assert last_month(datetime(2026, 1, 1, tzinfo=UTC)) == "2025-12"
