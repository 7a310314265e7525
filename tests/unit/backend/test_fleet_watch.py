"""The watch over the whole fleet finds what the watch of one device finds, of the same samples, and nothing else."""

import random
from typing import Any

import numpy as np
import pytest

from controlplane.protocol.frames import AgentFrame
from controlplane.protocol.samples import DeviceSample
from controlplane.sentinel.columns import COLUMN, FIELDS, HELD_BACK, SLOWED, table
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.readings import Watch
from controlplane.sentinel.watching import EXACT, FleetWatch

NODES, DEVICES = ("a", "b"), (0, 1, 2)
KEYS = [(node, index) for node in NODES for index in DEVICES]


def reading(chance: random.Random, before: DeviceSample) -> DeviceSample:
    """Mostly what it was; sometimes another value, none, or a device that is off the bus."""
    fields: dict[str, Any] = {name: getattr(before, name) for name in DeviceSample.__struct_fields__}
    for name, values in (
        ("present", (True, True, False)),
        ("ecc_corrected_total", (None, 0, 3, 600, 1200, 5000)),
        ("ecc_uncorrected_total", (None, 0, 1, 2, int(EXACT), int(EXACT) + 1)),
        ("pcie_replay_total", (None, 0, 5, 9, 14)),
        ("nvlink_error_total", (None, 0, 60, 120)),
        ("retired_pages_total", (None, 0, 59, 60, 61)),
        ("row_remap_failure", (None, False, True)),
        ("row_remap_pending", (None, False, True)),
        ("throttle_reasons", (None, (), ("sw_power_cap",), ("hw_slowdown", "gpu_idle"))),
        ("memory_temperature_c", (None, 80.0, 94.9, 95.0)),
        ("power_limit_w", (None, 700.0, 640.0, 620.0)),
    ):
        if chance.random() < 0.06:
            fields[name] = chance.choice(values)
    return DeviceSample(**fields)


@pytest.mark.parametrize("seed", range(12))
def test_the_fleets_watch_finds_what_each_devices_own_watch_finds(seed: int) -> None:
    chance = random.Random(seed)
    one, fleet, at_s = Watch(), FleetWatch(), 1000.0
    newest = {key: DeviceSample(index=key[1]) for key in KEYS}
    found = 0
    for _ in range(600):
        at_s += chance.choice((1.0, 1.0, 1.0, 1.0, 16.0, 70.0))
        keys = [key for key in KEYS if chance.random() < 0.9]
        for key in keys:
            newest[key] = reading(chance, newest[key])
            one.take(key[0], newest[key], at_s)
        samples = [newest[key] for key in keys]
        slots = np.array([KEYS.index(key) for key in keys], dtype=np.intp)
        assert fleet.take_all(slots, KEYS, samples, table(samples), np.full(len(keys), at_s)) == []
        key = chance.choice(KEYS)
        for watch in (one, fleet):
            watch.name(*key, "uuid-1" if at_s < 5000.0 else "uuid-2")
        if chance.random() < 0.05:
            before = {"ecc_corrected_total": (0, at_s - 40.0), "ecc_uncorrected_total": (0, at_s - 40.0)}
            for watch in (one, fleet):
                watch.seed(key[0], newest[key], before)
        if chance.random() < 0.02:
            for watch in (one, fleet):
                watch.forget(*key)
        assert [one.ended(*each) for each in KEYS] == [fleet.ended(*each) for each in KEYS]
        news = one.news()
        assert fleet.news() == news
        found += len(news)
    assert found > 50
    assert fleet.begun == one.begun


def test_of_a_fleet_where_nothing_happens_no_devices_watch_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    take = Watch.take

    def counted(self: Watch, node_id: str, sample: DeviceSample, at_s: float) -> None:
        asked.append((node_id, sample.index))
        take(self, node_id, sample, at_s)

    monkeypatch.setattr(Watch, "take", counted)
    live_state = LiveState()
    live_state.expect({"n"}, {("n", index) for index in DEVICES}, {})
    for seq in range(1, 30):
        devices = tuple(
            DeviceSample(index=index, temperature_c=60.0 + seq % 3, power_w=500.0 + seq, ecc_corrected_total=4)
            for index in DEVICES
        )
        frame = AgentFrame(seq=seq, uptime_s=float(seq), devices=devices)
        live_state.take([Heard(node_id="n", session_id="s", at_s=float(seq), frame=frame)])
    assert asked == [("n", index) for index in DEVICES], "their first samples, and none after them"


def test_a_table_has_each_reading_as_a_number_and_what_is_missing_as_none() -> None:
    samples = [
        DeviceSample(index=3, temperature_c=61.5, row_remap_pending=True, throttle_reasons=("hw_slowdown",)),
        DeviceSample(index=4, present=False, throttle_reasons=None),
        DeviceSample(index=5, memory_used_bytes=80 << 30, throttle_reasons=("gpu_idle",)),
        DeviceSample(index=6, throttle_reasons=("sw_power_cap", "gpu_idle")),
    ]
    found = table(samples)
    for row, sample in enumerate(samples):
        for name in FIELDS:
            value = getattr(sample, name)
            assert found[row, COLUMN[name]] == value or (value is None and np.isnan(found[row, COLUMN[name]]))
    assert found[:, [SLOWED, HELD_BACK]].tolist()[0] == [1.0, 1.0]
    assert np.isnan(found[1, [SLOWED, HELD_BACK]]).all()
    assert found[2:, [SLOWED, HELD_BACK]].tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert table([]).shape == (0, found.shape[1])
