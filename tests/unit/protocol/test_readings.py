"""One table of readings: a place that a new reading was forgotten in is told here."""

import ast
import math
import re
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

from agents.device_series import PREFIX, DeviceSeries
from agents.probes.simulated import SimulatedProbe
from controlplane.policy.readings import READINGS as LIMITS
from controlplane.protocol import rest
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.readings import HISTORY, READINGS, RISK, Reading
from controlplane.protocol.revisions import ADDED
from controlplane.protocol.samples import DeviceSample
from controlplane.sentinel.columns import table
from controlplane.sentinel.history import values_of
from controlplane.telemetry.codec import METRICS, STEP_OF

ROOT = Path(__file__).resolve().parents[3]
SAMPLED = [reading for reading in READINGS if reading.sampled]
NVML = (ROOT / "agents" / "probes" / "nvml.py").read_text(encoding="ascii")


def simulated() -> DeviceSample:
    """Of a device that works and gives everything."""
    (sample,) = SimulatedProbe(count=1, node_name="n1").sample(0.0, frozenset({0}))
    return sample


def test_every_field_of_a_sample_has_its_row_and_every_row_its_field() -> None:
    assert {"index", "present", *(reading.name for reading in SAMPLED)} == set(DeviceSample.__struct_fields__)
    assert max(Counter(reading.name for reading in READINGS).values()) == 1


@pytest.mark.parametrize("reading", SAMPLED, ids=lambda reading: reading.name)
def test_the_probe_reads_it_by_the_call_that_the_table_names(reading: Reading) -> None:
    made = [
        {word.arg for word in call.keywords}
        for call in ast.walk(ast.parse(NVML))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "DeviceSample"
    ]
    assert any(reading.name in named for named in made)
    assert re.search(rf"pynvml\.{reading.nvml}\b", NVML)


@pytest.mark.parametrize("reading", SAMPLED, ids=lambda reading: reading.name)
def test_the_simulated_device_gives_it(reading: Reading) -> None:
    assert getattr(simulated(), reading.name) is not None


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.name)
def test_it_has_a_unit_words_and_somebody_who_uses_it(reading: Reading) -> None:
    assert reading.unit and reading.what
    made_into = [other.name for other in READINGS if reading.name in other.made_of]
    limits = [name for name, limit in LIMITS.items() if limit.reads == reading.name]
    assert reading.step or reading.exported or made_into or limits
    assert bool(reading.nvml) == reading.sampled
    assert reading.since <= PROTOCOL_MAX


def test_what_is_kept_is_in_the_api_and_on_the_page() -> None:
    kept = {reading.name for reading in HISTORY}
    assert kept == set(METRICS) == set(STEP_OF)
    assert {"index", "present", *(reading.name for reading in SAMPLED)} <= set(rest.DeviceLive.__struct_fields__)
    assert {"index", "t"} | kept == set(rest.DeviceSeries.__struct_fields__)
    assert {reading.name for reading in READINGS if reading.chart} == kept
    places = [reading.chart.place for reading in HISTORY if reading.chart]
    assert sorted(places) == list(range(1, len(places) + 1))


def test_history_has_a_number_for_each_reading_of_a_device_that_gives_all() -> None:
    (values,) = values_of(table([simulated()]), np.array([0.5]))
    assert [name for name, value in zip(METRICS, values, strict=True) if math.isnan(value)] == []
    assert values[METRICS.index(RISK.name)] == 0.5


def test_every_exported_reading_is_a_series_of_its_own() -> None:
    series = DeviceSeries()
    probe = SimulatedProbe(count=1, node_name="n1")
    series.sampled(0.0, probe.sample(0.0, frozenset()), probe.devices())
    found = {(each.name.removeprefix(PREFIX), each.labels.get("type", "")) for each in series.read(0.0)}
    told = [(r.exported.name, r.exported.labels.get("type", "")) for r in READINGS if r.exported]
    assert len(told) == len(set(told))
    assert set(told) <= found
    words = {reading.name for reading in SAMPLED if not reading.exported}
    assert words == {"throttle_reasons"}, "a number that Prometheus is not told"


def test_a_limit_reads_a_row_of_the_table() -> None:
    assert {limit.reads for limit in LIMITS.values()} <= {reading.name for reading in SAMPLED}


def test_fields_that_a_revision_brought_are_left_out_for_an_older_peer() -> None:
    assert "retired_pages_total" in ADDED[3]["DeviceSample"]
    brought = {name for added in ADDED.values() for name in added.get("DeviceSample", ())}
    assert brought == {reading.name for reading in READINGS if reading.since}


def test_a_reading_of_no_device_is_none_and_never_zero() -> None:
    nothing = DeviceSample(index=0)
    assert {reading.name: reading.read(nothing) for reading in READINGS if reading.name != "throttle_reasons"} == {
        reading.name: None for reading in READINGS if reading.name != "throttle_reasons"
    }
    assert msgspec.to_builtins(nothing)["temperature_c"] is None
