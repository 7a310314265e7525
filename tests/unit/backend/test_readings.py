"""Readings against their limits: each fires at its limit, not below it, once; states end."""

from typing import Any

import numpy as np
import pytest

from controlplane.policy.readings import READINGS
from controlplane.protocol.revisions import encode_for
from controlplane.protocol.samples import DeviceSample
from controlplane.sentinel.columns import table
from controlplane.sentinel.history import values_of
from controlplane.sentinel.readings import COUNTERS, Watch
from controlplane.telemetry.codec import METRICS


def seen(*samples: dict[str, Any], every_s: float = 1.0) -> list[tuple[str, float, bool]]:
    """What a device with these samples, one after the other, is found to have."""
    watch = Watch()
    for number, fields in enumerate(samples):
        watch.take("n", DeviceSample(index=0, **fields), number * every_s)
    return [(found.reading, found.value, found.over) for found in watch.news()]


@pytest.mark.parametrize("name", sorted(COUNTERS))
def test_a_counter_fires_when_it_has_grown_by_its_limit_within_its_window(name: str) -> None:
    limit, field = READINGS[name], COUNTERS[name]
    assert seen({field: 7}, {field: 7 + int(limit.value)}) == [(name, limit.value, False)]
    assert seen({field: 7 + int(limit.value)}) == [], "what was counted before we listened is no news"
    if limit.value > 1:
        assert seen({field: 7}, {field: 6 + int(limit.value)}) == []
        slow = [{field: 7 + i} for i in range(int(limit.value) + 1)]
        assert seen(*slow, every_s=limit.window_s / 2) == [], "as much over many windows is not too much"


def test_corrected_and_uncorrectable_errors_are_two_findings_and_never_added() -> None:
    first = {"ecc_corrected_total": 0, "ecc_uncorrected_total": 0}
    assert seen(first, {"ecc_corrected_total": 40, "ecc_uncorrected_total": 0}) == []
    assert seen(first, {"ecc_corrected_total": 40, "ecc_uncorrected_total": 1}) == [("ecc_uncorrected", 1.0, False)]


def test_a_counter_that_began_anew_after_a_reset_is_no_error() -> None:
    assert seen({"ecc_uncorrected_total": 5}, {"ecc_uncorrected_total": 0}, {"ecc_uncorrected_total": 0}) == []


def test_a_counter_tells_again_when_it_has_grown_by_as_much_again() -> None:
    found = seen(*({"pcie_replay_total": 9 * i} for i in range(3)))
    assert found == [("pcie_replay", 9.0, False), ("pcie_replay", 9.0, False)]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("row_remap_failure", {"row_remap_failure": True}),
        ("row_remap_pending", {"row_remap_pending": True}),
        ("retired_pages", {"retired_pages_total": 60}),
    ],
)
def test_a_flag_is_told_once_while_it_stands(name: str, fields: dict[str, Any]) -> None:
    assert [reading for reading, _, _ in seen(fields, fields, fields)] == [name]


def test_fewer_retired_pages_than_qualify_for_a_replacement_are_no_finding() -> None:
    assert seen({"retired_pages_total": 59}) == []


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("throttled", {"throttle_reasons": ("hw_thermal_slowdown",)}, {"throttle_reasons": ("sw_power_cap",)}),
        ("memory_temperature", {"memory_temperature_c": 95.0}, {"memory_temperature_c": 94.9}),
        ("power_limit", {"power_limit_w": 620.0}, {"power_limit_w": 700.0}),
    ],
)
def test_a_state_is_a_finding_once_it_lasts_and_ends_with_it(
    name: str, bad: dict[str, Any], good: dict[str, Any]
) -> None:
    lasting = int(READINGS[name].value)
    assert seen(good, *[bad] * lasting, good) == []
    assert seen(good, *[bad] * (lasting + 5), good) == [(name, float(lasting), False), (name, 0.0, True)]


def test_a_device_that_gives_no_reading_is_found_to_have_nothing() -> None:
    assert seen({}, {}, {"present": False}) == []


def test_every_reading_that_is_sent_is_charted() -> None:
    sample = DeviceSample(
        index=0, temperature_c=61.0, memory_temperature_c=70.0, power_w=400.0, power_limit_w=700.0,
        utilization_ratio=0.9, memory_utilization_ratio=0.5, memory_used_bytes=1 << 30, sm_clock_mhz=1980.0,
        ecc_corrected_total=3, ecc_uncorrected_total=1, row_remap_pending=True, row_remap_failure=False,
        throttle_reasons=("hw_thermal_slowdown",), pcie_replay_total=2, nvlink_error_total=4, retired_pages_total=5,
    )  # fmt: skip
    (values,) = values_of(table([sample]), np.array([0.25]))
    of = dict(zip(METRICS, values, strict=True))
    charted = {"row_remap_pending": "row_remap", "row_remap_failure": "row_remap", "throttle_reasons": "throttled"}
    for name in sample.__struct_fields__:
        assert name in ("index", "present") or charted.get(name, name) in of
    assert (of["ecc_corrected_total"], of["ecc_uncorrected_total"], of["row_remap"], of["throttled"]) == (3, 1, 1, 1)
    assert (of["retired_pages_total"], of["risk"], of["power_limit_w"]) == (5, 0.25, 700.0)


def test_ten_thousand_devices_are_watched_without_findings_of_the_healthy() -> None:
    watch = Watch()
    sample = DeviceSample(index=0, ecc_corrected_total=0, ecc_uncorrected_total=0, pcie_replay_total=3)
    for second in range(3):
        for node in range(1_000):
            for _ in range(8):
                watch.take(f"n{node}", sample, float(second))
    assert watch.news() == []


def test_a_power_limit_that_was_lowered_before_the_watch_began_has_not_ended_until_it_is_raised() -> None:
    """A sentinel that starts anew sees the lowered one as the highest there ever was."""
    watch = Watch()
    watch.take("n", DeviceSample(index=0, power_limit_w=300.0), 0.0)
    watch.take("n", DeviceSample(index=0, power_limit_w=300.0), 90.0)
    assert "power_limit" not in watch.ended("n", 0) and "throttled" in watch.ended("n", 0)
    assert watch.news() == []
    watch.take("n", DeviceSample(index=0, power_limit_w=700.0), 91.0)
    assert [(found.reading, found.over) for found in watch.news()] == [("power_limit", True)]


def first_after(was: int, total: int, *, field: str = "ecc_uncorrected_total", away_s: float = 600.0) -> list[Any]:
    """What is found when a watch begins at `total`, and `was` is what was stored `away_s` before."""
    watch = Watch()
    sample = DeviceSample(index=0, **{field: total})
    watch.take("n", sample, 1_000.0)
    watch.take("n", sample, 1_001.0)
    watch.seed("n", sample, {field: (was, 1_000.0 - away_s)})
    watch.seed("n", sample, {field: (was, 1_000.0 - away_s)})
    return [(found.reading, found.value) for found in watch.news()]


def test_an_error_that_came_while_nobody_watched_is_found_once_when_somebody_does_again() -> None:
    assert first_after(0, 3) == [("ecc_uncorrected", 3.0)]
    assert first_after(3, 3) == []


def test_a_driver_that_was_loaded_anew_counts_from_nothing_and_that_is_no_growth() -> None:
    assert first_after(5, 0) == [] and first_after(5, 2) == []


@pytest.mark.parametrize(
    ("field", "name"),
    [("ecc_corrected_total", "ecc_corrected"), ("pcie_replay_total", "pcie_replay"),
     ("nvlink_error_total", "nvlink_error")],
)  # fmt: skip
def test_of_what_is_too_much_in_a_window_a_long_absence_counts_by_its_rate(field: str, name: str) -> None:
    limit = READINGS[name]
    windows = 10
    over = int(limit.value) * windows
    assert first_after(0, over, field=field, away_s=limit.window_s * windows) == [(name, limit.value)]
    assert first_after(0, over - windows, field=field, away_s=limit.window_s * windows) == []


def test_a_node_that_is_cut_off_for_long_is_not_blamed_for_a_minute_of_replays() -> None:
    assert seen({"pcie_replay_total": 0}, {"pcie_replay_total": 9}, every_s=600.0) == []
    assert seen({"ecc_uncorrected_total": 0}, {"ecc_uncorrected_total": 1}, every_s=600.0) != []


def test_another_device_in_the_place_counts_from_its_own_beginning() -> None:
    watch = Watch()
    watch.take("n", DeviceSample(index=0, ecc_uncorrected_total=0), 0.0)
    watch.name("n", 0, "GPU-a")
    watch.name("n", 0, "GPU-b")
    watch.take("n", DeviceSample(index=0, ecc_uncorrected_total=7), 1.0)
    assert watch.news() == []


HOT = {"throttle_reasons": ("hw_thermal_slowdown",)}
MUTE = {"throttle_reasons": None}


def test_two_readings_far_apart_are_no_state_that_lasted_between() -> None:
    lasting = READINGS["throttled"].value
    assert seen(HOT, HOT, every_s=lasting + 10.0) == []
    watch = Watch()
    moments = [0.0, 1.0, *(70.0 + second for second in range(int(lasting) + 1))]
    for at_s in moments:
        watch.take("n", DeviceSample(index=0, **HOT), at_s)
    assert [(found.reading, found.value) for found in watch.news()] == [("throttled", lasting)], "from 70 s on"


def test_no_answer_about_throttling_neither_ends_it_nor_begins_it() -> None:
    lasting = int(READINGS["throttled"].value)
    half = [HOT] * (lasting // 2)
    assert seen(*half, MUTE, *half, HOT) == [("throttled", float(lasting), False)]
    assert seen(*[HOT] * (lasting + 1), MUTE, {"present": False}) == [("throttled", float(lasting), False)]
    watch = Watch()
    watch.take("n", DeviceSample(index=0, **MUTE), 0.0)
    assert "throttled" not in watch.ended("n", 0), "nobody said so"


def test_an_older_server_is_sent_no_reasons_where_the_device_did_not_answer() -> None:
    sample = DeviceSample(index=0, **MUTE)
    assert "throttle_reasons" not in encode_for(sample, 2)
    assert encode_for(sample, 3)["throttle_reasons"] is None
    assert "throttle_reasons" in encode_for(DeviceSample(index=0, **HOT), 2)
