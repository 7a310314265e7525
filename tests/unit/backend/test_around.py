"""What a device's readings say about the minutes around a fault: holes, limits, changes, bounds."""

from typing import Any

import numpy as np
import pytest

from controlplane.policy.readings import MEMORY_HOT_C, READINGS
from controlplane.protocol.readings import HISTORY, RISK, in_words
from controlplane.telemetry import around
from controlplane.telemetry.around import Span, broken, gaps, observed, thinned
from controlplane.telemetry.codec import METRICS
from controlplane.telemetry.selectors import Floats

SPAN = Span(since_s=0.0, fault_s=300.0, end_s=420.0, risk_limit=0.3)
SECONDS = np.arange(0.0, 421.0)


def device(t_s: Floats = SECONDS, **readings: Any) -> tuple[Floats, Floats]:
    """A device that gives these readings: a number, or one for each second."""
    values = np.full((len(METRICS), len(t_s)), np.nan)
    for name, given in readings.items():
        values[METRICS.index(name)] = given
    return t_s, values


def notable(**readings: Any) -> dict[str, tuple[str, str]]:
    """(level, sentence) of what is out of the ordinary, in the order in which it is named."""
    found, _ = around.reported(*device(**readings), SPAN)
    return {each["reading"]: (each["level"], each["sentence"]) for each in found if each["level"] != "steady"}


def rises(at_s: float, low: float, high: float) -> Floats:
    return np.where(at_s <= SECONDS, high, low)


def test_a_hole_is_told_by_its_ends_and_no_line_crosses_it() -> None:
    kept = SECONDS[(SECONDS <= 120) | (SECONDS >= 169)]
    t_s, values = device(kept, temperature_c=60.0)
    holes = gaps(observed(t_s, values), SPAN)
    assert holes == [(120.0, 169.0)]
    moments, table = broken(t_s, values, holes, SPAN)
    inside = [bool(np.isnan(table[:, i]).all()) for i, at_s in enumerate(moments) if 120.0 < at_s < 169.0]
    assert inside == [True]
    assert moments.tolist() == sorted(moments.tolist())


def test_what_was_not_observed_before_and_after_is_a_hole_too_and_the_axis_shows_it() -> None:
    t_s, values = device(np.arange(100.0, 301.0), temperature_c=60.0)
    holes = gaps(observed(t_s, values), SPAN)
    assert holes == [(0.0, 100.0), (300.0, 420.0)]
    moments, _ = broken(t_s, values, holes, SPAN)
    assert (moments[0], moments[-1]) == (0.0, 420.0)


def test_the_axis_reaches_a_fault_that_was_only_a_moment_ago() -> None:
    span = Span(since_s=0.0, fault_s=302.0, end_s=304.0, risk_limit=0.3)
    t_s, values = device(np.arange(1.0, 302.0), temperature_c=60.0)
    assert gaps(observed(t_s, values), span) == []
    moments, _ = broken(t_s, values, [], span)
    assert (moments[0], moments[-1]) == (0.0, 304.0)


def test_a_device_that_is_gone_while_its_node_sends_on_is_not_observed() -> None:
    gone = np.where(SECONDS > 200, np.nan, 60.0)
    t_s, values = device(temperature_c=gone, risk=0.1)
    assert gaps(observed(t_s, values), SPAN) == [(200.0, 420.0)]


def test_nothing_at_all_is_one_hole() -> None:
    assert gaps(np.empty(0), SPAN) == [(0.0, 420.0)]


@pytest.mark.parametrize("every_s", [1.0, 10.0])
def test_a_late_sample_is_no_hole(every_s: float) -> None:
    t_s = np.delete(np.arange(0.0, 421.0, every_s), 5)
    assert gaps(t_s, SPAN) == []


@pytest.mark.parametrize("samples", [10, 500, 7_200])
def test_a_chart_has_a_bounded_number_of_points_and_keeps_each_hole(samples: int) -> None:
    t_s = np.linspace(0.0, 420.0, samples)
    values = np.full((len(METRICS), samples), 1.0)
    values[:, 7] = np.nan
    moments, table = thinned(t_s, values, 100)
    assert 0 < len(moments) <= 100
    assert np.isnan(table).all(axis=0).sum() == 1


def test_the_last_value_before_the_fault_and_what_came_after_are_those_of_the_samples() -> None:
    wave = 60.0 + np.sin(SECONDS)
    found, absent = around.reported(*device(temperature_c=wave), SPAN)
    (row,) = found
    assert (row["before"], row["after"]) == (round(float(wave[300]), 4), round(float(wave[420]), 4))
    assert (row["low"], row["high"]) == (round(float(wave.min()), 4), round(float(wave.max()), 4))
    assert row["change"] == pytest.approx(row["after"] - row["before"], abs=2e-4)
    assert (row["level"], row["sentence"], row["at"]) == ("steady", "", None)
    assert len(absent) == len(HISTORY) - 1
    assert "Power" in absent


def test_a_fault_after_which_nothing_came_has_no_value_after_it_and_no_change() -> None:
    found, _ = around.reported(*device(np.arange(0.0, 301.0), power_w=400.0), SPAN)
    assert (found[0]["before"], found[0]["after"], found[0]["change"]) == (400.0, None, None)


def test_what_passed_a_limit_of_the_rules_comes_first_then_what_changed_then_what_left_its_range() -> None:
    found = notable(
        utilization_ratio=rises(301, 0.97, 0.0),
        pcie_replay_total=rises(100, 3, 4),
        ecc_uncorrected_total=rises(299, 0, 2),
        temperature_c=61.0,
    )
    assert found == {
        "ecc_uncorrected_total": (
            "limit", "Uncorrectable memory errors rose by 2, to 2 (limit: 1 in 60 s).",
        ),
        "pcie_replay_total": ("changed", "PCIe replays rose by 1, to 4."),
        "utilization_ratio": ("left_range", "Utilisation fell to 0 %; 97 % before the fault."),
    }  # fmt: skip
    assert list(found) == ["ecc_uncorrected_total", "pcie_replay_total", "utilization_ratio"]


@pytest.mark.parametrize(
    ("name", "limit"), [("pcie_replay_total", "pcie_replay"), ("nvlink_error_total", "nvlink_error")]
)
def test_a_counter_is_past_its_limit_only_by_growth_within_the_limits_own_time(name: str, limit: str) -> None:
    growth = READINGS[limit].value
    at_once = rises(200, 0.0, growth)
    slowly = np.floor(SECONDS / 420.0 * (growth + 0.5))
    assert notable(**{name: at_once})[name][0] == "limit"
    assert notable(**{name: slowly})[name][0] == "changed"
    assert notable(**{name: 10 * growth}) == {}, "it was so before"


def test_a_counter_that_begins_again_has_not_grown() -> None:
    assert notable(ecc_corrected_total=rises(200, 40, 0)) == {}


@pytest.mark.parametrize(("lasts_s", "level"), [(30, "changed"), (90, "limit")])
def test_hot_memory_and_a_lowered_power_limit_say_how_long(lasts_s: int, level: str) -> None:
    held = np.isin(SECONDS, np.arange(200.0, 200.0 + lasts_s))
    found = notable(memory_temperature_c=np.where(held, MEMORY_HOT_C, 80.0), power_limit_w=np.where(held, 400.0, 700.0))
    assert {name: each[0] for name, each in found.items()} == {"memory_temperature_c": level, "power_limit_w": level}
    assert f"95 C or more for {lasts_s} s" in found["memory_temperature_c"][1]
    assert f"400 W for {lasts_s} s, 700 W at most" in found["power_limit_w"][1]


def test_a_device_that_is_always_at_its_power_limit_has_not_changed() -> None:
    assert notable(throttled=1.0) == {}
    assert notable(throttled=np.where((SECONDS > 100) & (SECONDS <= 112), 1.0, 0.0)) == {
        "throttled": ("changed", "Clock held back for 12 s.")
    }


def test_risk_rows_and_pages_are_held_against_what_the_rules_use() -> None:
    assert notable(risk=0.29) == {}
    found = notable(risk=rises(250, 0.1, 0.42), row_remap=2.0, retired_pages_total=60.0)
    assert found == {
        "retired_pages_total": ("limit", "Retired pages: 60 (limit: 60)."),
        "row_remap": ("limit", "Row remap: failed."),
        RISK.name: ("limit", "Risk reached 0.42 (limit: 0.30)."),
    }


def test_a_value_that_moves_as_it_did_before_is_not_named() -> None:
    assert notable(power_w=420.0 + 9.0 * np.cos(SECONDS)) == {}
    assert notable(temperature_c=rises(301, 61.0, 61.5)) == {}, "within a few steps of what history keeps"
    assert "rose to 80 C" in notable(temperature_c=rises(310, 61.0, 80.0))["temperature_c"][1]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_used_bytes", 85_899_345_920.0, "80.0 GiB"), ("memory_used_bytes", 512.0, "512 B"),
        ("sm_clock_mhz", 1980.0, "1980 MHz"), ("row_remap", 1.0, "waits for a reset"), ("throttled", 0.0, "free"),
        ("ecc_corrected_total", 1200.0, "1,200"), ("risk", None, "-"), ("memory_utilization_ratio", 0.5, "50 %"),
    ],
)  # fmt: skip
def test_a_value_is_written_with_its_unit(name: str, value: float | None, text: str) -> None:
    assert in_words(HISTORY[METRICS.index(name)], value) == text


def test_every_reading_that_is_kept_can_be_written() -> None:
    assert [reading.name for reading in HISTORY if in_words(reading, 1.0) == "1"] == [
        reading.name for reading in HISTORY if reading.chart and reading.chart.shown == "count"
    ]
