"""What the driver tells of a device is scraped under its own name; what it does not tell is absent."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents import exporter
from agents.core.state import State
from agents.device_series import DeviceSeries
from agents.probes.simulated import SimulatedProbe
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent

TWO = tuple(
    DeviceInfo(index=index, uuid=f"GPU-{index}", model="Test", memory_bytes=1 << 34, driver="simulated")
    for index in range(2)
)
FULL = DeviceSample(
    index=0, temperature_c=61.5, memory_temperature_c=70.0, power_w=300.0, power_limit_w=700.0, utilization_ratio=0.9,
    memory_utilization_ratio=0.4, memory_used_bytes=1 << 30, sm_clock_mhz=1980.0, ecc_corrected_total=5,
    ecc_uncorrected_total=2, row_remap_pending=True, row_remap_failure=False, pcie_replay_total=7,
    nvlink_error_total=3, retired_pages_total=1,
)  # fmt: skip
OF_0 = (("gpu", "0"), ("uuid", "GPU-0"))


def told(series: DeviceSeries, now_s: float = 0.0) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in series.read(now_s)}


def test_each_reading_is_one_series_in_base_units() -> None:
    series = DeviceSeries()
    series.sampled(10.0, (FULL,), TWO[:1])
    found = told(series, 12.5)
    values = {name.removeprefix("holdfast_gpu_"): value for (name, labels), value in found.items() if labels == OF_0}
    assert values == {
        "temperature_celsius": 61.5, "memory_temperature_celsius": 70.0, "power_watts": 300.0,
        "power_limit_watts": 700.0, "utilization_ratio": 0.9, "memory_utilization_ratio": 0.4,
        "memory_used_bytes": 1 << 30, "sm_clock_hertz": 1.98e9, "row_remap_pending": 1.0, "row_remap_failure": 0.0,
        "pcie_replays": 7.0, "nvlink_errors": 3.0, "retired_pages": 1.0,
    }  # fmt: skip
    ecc = {dict(labels)["type"]: value for (name, labels), value in found.items() if name == "holdfast_gpu_ecc_errors"}
    assert ecc == {"corrected": 5.0, "uncorrected": 2.0}
    assert found["holdfast_gpus_sample_age_seconds", ()] == 2.5


def test_what_the_driver_does_not_tell_has_no_series() -> None:
    series = DeviceSeries()
    assert told(series) == {("holdfast_gpus_expected", ()): 0.0, ("holdfast_gpus_present", ()): 0.0}
    series.sampled(0.0, (DeviceSample(index=0, temperature_c=40.0),), TWO[:1])
    names = {name for name, labels in told(series) if labels}
    assert names == {"holdfast_gpu_temperature_celsius"}


def test_a_device_that_falls_off_the_bus_is_expected_and_not_present_and_shows_no_old_reading() -> None:
    series = DeviceSeries()
    series.sampled(0.0, (FULL, DeviceSample(index=1, temperature_c=50.0)), TWO)
    series.sampled(1.0, (DeviceSample(index=0, present=False), DeviceSample(index=1, temperature_c=50.0)), TWO)
    found = told(series)
    assert (found["holdfast_gpus_expected", ()], found["holdfast_gpus_present", ()]) == (2.0, 1.0)
    assert not any(labels == OF_0 for _, labels in found)


def test_an_xid_is_a_counter_that_outlives_its_device_and_grows_with_each_one() -> None:
    series = DeviceSeries()
    series.sampled(0.0, (FULL,), TWO[:1])
    for number in (94, 94, 79):
        series.xid(XidEvent(index=0, xid=number))
    series.sampled(1.0, (DeviceSample(index=0, present=False),), TWO[:1])
    counted = {
        dict(labels)["xid"]: value for (name, labels), value in told(series).items() if name.endswith("xid_errors")
    }
    assert counted == {"94": 2.0, "79": 1.0}


@pytest.mark.parametrize(("rounds", "seconds"), [((True, True, True), 4.0), ((True, False, True), 0.0)])
def test_throttled_time_is_between_two_readings_that_both_say_so(rounds: tuple[bool, ...], seconds: float) -> None:
    series = DeviceSeries()
    for number, throttled in enumerate(rounds):
        reasons = ("hw_thermal_slowdown",) if throttled else ()
        series.sampled(2.0 * number, (DeviceSample(index=0, throttle_reasons=reasons),), TWO[:1])
    found = {name: value for (name, _), value in told(series).items()}
    assert found.get("holdfast_gpu_clock_throttle_seconds", 0.0) == seconds


def test_a_scrape_of_a_simulated_node_is_what_its_driver_says() -> None:
    probe, series = SimulatedProbe(count=8, node_name="n1"), DeviceSeries()
    samples = probe.sample(60.0, frozenset({3}))
    series.sampled(60.0, samples, probe.devices())
    state = State(started_s=0.0, boot_id="boot", journal_id="journal")
    address = exporter.start(("127.0.0.1", 0), lambda: state, series)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
    powers = {each.labels["gpu"]: each.value for each in families["holdfast_gpu_power_watts"].samples}
    assert powers == {str(sample.index): sample.power_w for sample in samples}
    replays = families["holdfast_gpu_pcie_replays"]
    assert (replays.type, {each.name for each in replays.samples}) == ("counter", {"holdfast_gpu_pcie_replays_total"})
    assert {each.labels["uuid"] for each in replays.samples} == {device.uuid for device in probe.devices()}
    assert families["holdfast_gpus_expected"].samples[0].value == 8.0
