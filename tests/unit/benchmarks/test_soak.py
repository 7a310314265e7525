"""The soak's slopes, of samples whose growth is known."""

import pytest

from benchmarks.soak import slope_a_day

MINUTES = range(121)


def test_a_slope_is_of_the_second_half_alone_once_the_fleet_has_settled() -> None:
    samples = [{"at_s": 60.0 * at, "memory web-1": 100.0 + (5.0 * at if at < 60 else 300.0)} for at in MINUTES]
    assert slope_a_day(samples, "memory web-1") == pytest.approx(0.0)


def test_what_grows_by_one_a_minute_grows_by_1440_a_day() -> None:
    samples = [{"at_s": 60.0 * at, "rows runtime_event": float(at)} for at in MINUTES]
    assert slope_a_day(samples, "rows runtime_event") == pytest.approx(1440.0)


def test_of_two_samples_there_is_no_slope() -> None:
    assert slope_a_day([{"at_s": 0.0, "files logs": 1.0}, {"at_s": 60.0, "files logs": 2.0}], "files logs") is None
