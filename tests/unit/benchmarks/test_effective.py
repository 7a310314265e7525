"""Effective training time, from records."""

import pytest

from benchmarks.effective import ettr
from benchmarks.records import Record


def step(number: int, at_s: float, *, batch: float = 1.0) -> Record:
    return Record(kind="step", at_s=at_s, replica=0, rank=0, pid=1, ticks=1, step=number, contributors=3, batch=batch)


CALM = [step(number, float(number)) for number in range(1, 11)]


def test_an_undisturbed_run_is_fully_effective() -> None:
    on = [step(number, float(number)) for number in range(11, 21)]
    assert ettr([*CALM, *on], replicas=3, calm_until_s=10.0, end_s=20.0).ratio == 1.0


def test_a_stop_costs_its_share() -> None:
    on = [step(number, float(number) + 5.0) for number in range(11, 16)]
    assert ettr([*CALM, *on], replicas=3, calm_until_s=10.0, end_s=20.0).ratio == pytest.approx(0.5)


def test_a_step_trained_again_counts_once() -> None:
    again = [step(number, 5.0 + number) for number in range(6, 16)]
    found = ettr([*CALM, *again], replicas=3, calm_until_s=10.0, end_s=20.0)
    assert found.batches == 5


def test_part_of_a_batch_counts_for_that_part() -> None:
    on = [step(number, float(number), batch=0.5) for number in range(11, 21)]
    assert ettr([*CALM, *on], replicas=3, calm_until_s=10.0, end_s=20.0).ratio == pytest.approx(0.5)


def test_a_ratio_above_one_is_not_cut() -> None:
    on = [step(number, 10.0 + (number - 10) / 2) for number in range(11, 31)]
    assert ettr([*CALM, *on], replicas=3, calm_until_s=10.0, end_s=20.0).ratio == pytest.approx(2.0)


def test_an_undisturbed_part_with_fewer_replicas_than_were_asked_for_is_none() -> None:
    on = [step(number, float(number)) for number in range(11, 21)]
    with pytest.raises(AssertionError, match="fewer than 4 replicas"):
        ettr([*CALM, *on], replicas=4, calm_until_s=10.0, end_s=20.0)
