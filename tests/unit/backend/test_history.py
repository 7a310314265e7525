"""History is written forward, in few bytes, and each value that it keeps is as near to what was read as it says."""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.sensors import Sensors
from controlplane.policy.readings import MEMORY_HOT_C
from controlplane.protocol.frames import AgentFrame
from controlplane.protocol.readings import HISTORY, RISK
from controlplane.protocol.samples import DeviceSample
from controlplane.runtime import bus
from controlplane.sentinel import history
from controlplane.sentinel.columns import table
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.history import History, values_of
from controlplane.sentinel.live_state import LiveState
from controlplane.telemetry.codec import METRICS, MISSING, STEPS, Part, chunk_of, joined, pack_whole, unpack_part
from controlplane.telemetry.held import BAND, BAND_RATIO, Held, bound

DEVICES = 8
HOUR_S = 3600
GOAL_BYTES = 2500.0
TEMPERATURE, MEMORY, POWER = (METRICS.index(name) for name in ("temperature_c", "memory_temperature_c", "power_w"))
COUNTED = [reading.name for reading in HISTORY if reading.exported is not None and reading.exported.counts]


class Shown:
    """What Redis holds of unstored history. `lost`: names whose value is gone before the next write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: dict[str, list[bytes]] = {}
        self.stored: dict[str, Part] = {}
        self.away = False
        monkeypatch.setattr(bus, "write_parts", self.write)
        monkeypatch.setattr(bus, "drop_parts", lambda names: [self.parts.pop(name, None) for name in names])
        monkeypatch.setattr(history, "store_chunks", lambda wholes, unit: self.stored.update(wholes) or len(wholes))

    def write(self, changes: list[tuple[str, list[bytes], bool]]) -> dict[str, int]:
        """As Redis does."""
        if self.away:
            return {}
        for name, parts, anew in changes:
            self.parts[name] = [*([] if anew else self.parts.get(name, [])), *parts]
        return {name: bus.parts_bytes(self.parts[name]) for name, _, _ in changes}

    def of(self, node_id: str) -> Part:
        """As readers see it."""
        return joined([unpack_part(part) for part in self.parts[f"pending:{node_id}"]])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch)


def live(*nodes: str, devices: int = DEVICES) -> LiveState:
    state = LiveState()
    state.expect(set(nodes), {(node, index) for node in nodes for index in range(devices)}, {})
    return state


def frame_of(node_id: str, seq: int, samples: tuple[DeviceSample, ...]) -> Heard:
    frame = AgentFrame(seq=seq, uptime_s=float(seq), devices=samples)
    return Heard(node_id=node_id, session_id="s", at_s=float(seq), frame=frame)


def samples_of(sensors: Sensors, devices: int = DEVICES) -> tuple[DeviceSample, ...]:
    return tuple(sensors.samples())[:devices]


def test_an_hour_of_devices_that_train_takes_at_most_its_bytes_a_device_and_stays_in_its_bounds(shown: Shown) -> None:
    sensors, state, kept = Sensors(DEVICES, seed=11), live("n"), History(600.0, quiet_s=1e9)
    read = np.full((HOUR_S, DEVICES, len(METRICS)), np.nan)
    stored: list[Part] = []
    for second in range(HOUR_S):
        heard = state.take([frame_of("n", second + 1, samples_of(sensors))])
        kept.take(heard, state)
        assert heard[0].table is not None
        read[second] = values_of(heard[0].table, state.risk[heard[0].slots])
        if second % 2:
            kept.flush(float(second + 1), known={"n"})
            kept.publish()
            stored += [shown.stored.pop("n")] if shown.stored else []
    kept.force(known={"n"})
    stored.append(shown.stored.pop("n"))
    assert len(stored) == 6
    spent_bytes = sum(len(pack_whole(part)) for part in stored) / DEVICES
    assert spent_bytes <= GOAL_BYTES
    whole = chunk_of(joined(stored))
    assert whole.t_s.tolist() == [float(second + 1) for second in range(HOUR_S)], "no second is lost"
    values = whole.values.transpose(2, 1, 0)
    assert np.array_equal(np.isnan(values), np.isnan(read))
    assert np.nanmax(np.abs(values - read) / bound(read)) <= 1.0 + 1e-9
    assert np.nanmax(np.abs(values - read)[..., [METRICS.index(name) for name in COUNTED]]) == 0.0


def test_a_band_is_as_wide_as_the_table_of_readings_says_and_counters_and_states_have_none() -> None:
    assert bound(np.full(len(METRICS), 600.0))[POWER] == 30.0
    assert bound(np.full(len(METRICS), 10.0))[POWER] == 2.0
    assert bound(np.full(len(METRICS), 60.0))[TEMPERATURE] == 1.0
    exact = {"row_remap", "throttled", "power_limit_w", "memory_used_bytes", RISK.name, *COUNTED}
    assert {
        name for name, band, share in zip(METRICS, BAND, BAND_RATIO, strict=True) if not band and not share
    } == exact


def rows_of(**readings: float) -> Any:
    row = np.full((1, len(METRICS)), np.nan)
    for name, value in readings.items():
        row[0, METRICS.index(name)] = value
    return row


def test_a_value_is_held_within_its_band_and_then_is_what_was_read() -> None:
    held, slot = Held(), np.array([3])
    found = [
        held.take(slot, rows_of(temperature_c=read))[0, TEMPERATURE] * 0.25 for read in (60, 61, 59, 61.25, 61, 70)
    ]
    assert found == [60.0, 60.0, 60.0, 61.25, 61.25, 70.0]
    assert held.take(slot, rows_of())[0, TEMPERATURE] == MISSING
    assert held.take(slot, rows_of(temperature_c=69.5))[0, TEMPERATURE] * 0.25 == 70.0, "nothing read moves nothing"
    other = held.take(np.array([900]), rows_of(temperature_c=69.5))[0, TEMPERATURE] * 0.25
    assert other == 69.5, "each row has its own"


@pytest.mark.parametrize("read", [94.9, 94.99, 95.0, 95.01, 95.1])
@pytest.mark.parametrize("before", [94.5, 95.5])
def test_nothing_is_held_or_rounded_across_a_limit_by_which_it_is_judged(before: float, read: float) -> None:
    held, slot = Held(), np.array([0])
    held.take(slot, rows_of(memory_temperature_c=before))
    kept = held.take(slot, rows_of(memory_temperature_c=read))[0, MEMORY] * STEPS[MEMORY]
    assert (kept >= MEMORY_HOT_C) == (read >= MEMORY_HOT_C)
    assert abs(kept - read) <= 1.0


def test_the_numbers_of_a_wave_are_those_that_the_table_of_readings_makes_of_each_sample() -> None:
    random = np.random.default_rng(5)
    choices: dict[str, list[Any]] = {
        "present": [True, False],
        "throttle_reasons": [None, (), ("gpu_idle",), ("hw_slowdown",), ("sw_power_cap", "x")],
        "row_remap_pending": [None, False, True], "row_remap_failure": [None, False, True],
    }  # fmt: skip
    samples = []
    for _ in range(400):
        fields = {name: values[random.integers(len(values))] for name, values in choices.items()}
        for name in DeviceSample.__struct_fields__:
            if name not in {"index", *choices} and random.random() < 0.7:
                fields[name] = int(random.integers(0, 500))
        samples.append(DeviceSample(index=0, **fields))
    risk = random.random(len(samples))
    for sample, score, row in zip(samples, risk, values_of(table(samples), risk), strict=True):
        for reading, value in zip(HISTORY, row, strict=True):
            expected = score if reading is RISK else reading.read(sample)
            assert value == expected or (expected is None and math.isnan(value)), reading.name


def test_each_sample_is_packed_once_on_its_way_and_shown_at_once(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    pack = history.pack_part

    def counted(part: Part) -> bytes:
        packed.append(len(part.t_ms))
        return pack(part)

    monkeypatch.setattr(history, "pack_part", counted)
    sensors, state, kept = Sensors(DEVICES, seed=1), live("n"), History(600.0)
    for seq in range(1, 121):
        kept.take(state.take([frame_of("n", seq, samples_of(sensors))]), state)
        if seq % 4 == 0:
            kept.publish()
            assert shown.of("n").t_ms.tolist() == [1000 * each for each in range(1, seq + 1)]
    kept.publish()
    assert sum(packed) == 120
    assert kept.force(known={"n"}) == 1
    assert shown.parts == {}, "what is stored is shown from there"
    assert len(shown.stored["n"].t_ms) == 120


def test_what_redis_lost_or_could_not_take_is_shown_again(shown: Shown) -> None:
    sensors, state, kept = Sensors(1, seed=1), live("n", devices=1), History(600.0)

    def second(seq: int) -> None:
        kept.take(state.take([frame_of("n", seq, samples_of(sensors, 1))]), state)
        kept.publish()

    second(1)
    shown.parts.clear()
    second(2)
    second(3)
    assert shown.of("n").t_ms.tolist() == [1000, 2000, 3000]
    shown.away = True
    second(4)
    second(5)
    shown.away = False
    second(6)
    assert shown.of("n").t_ms.tolist() == [1000 * each for each in range(1, 7)]


def test_of_a_large_fleet_all_are_shown_within_a_few_turns(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SHOWN_AT_ONCE", 3)
    names = [f"n{number}" for number in range(8)]
    sensors, state, kept = Sensors(1, seed=1), live(*names, devices=1), History(600.0)
    for turn in range(3):
        kept.take(state.take([frame_of(name, turn + 1, samples_of(sensors, 1)) for name in names]), state)
        kept.publish()
    assert sorted(shown.parts) == [f"pending:{name}" for name in names]
    assert shown.of("n7").t_ms.tolist() == [1000, 2000, 3000]


def test_chunks_of_a_fleet_that_began_together_are_stored_some_at_a_time(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FULL_AT_ONCE", 3)
    names = [f"n{number}" for number in range(8)]
    sensors, state, kept = Sensors(1, seed=1), live(*names, devices=1), History(60.0, quiet_s=1e9)
    kept.take(state.take([frame_of(name, 1, samples_of(sensors, 1)) for name in names]), state)
    assert [kept.flush(70.0, known=set(names)) for _ in range(4)] == [3, 3, 2, 0]


def test_a_sentinel_that_does_not_lead_keeps_what_the_next_chunks_may_lack_and_no_more(shown: Shown) -> None:
    sensors, state, kept = Sensors(DEVICES, seed=1), live("n"), History(60.0)
    for seq in range(1, 1001):
        kept.take(state.take([frame_of("n", seq, samples_of(sensors))]), state)
        if seq % 2 == 0:
            kept.rest(float(seq), led=True)
    pending = kept.nodes["n"]
    assert pending.samples == len(pending.whole().t_ms)
    assert pending.readings == pending.samples * DEVICES
    assert 120 <= pending.samples <= 120 + 2 * history.REST_SAMPLES
    kept.publish()
    assert shown.of("n").t_ms.tolist()[-121:] == [1000 * seq for seq in range(880, 1001)]


def test_what_another_one_stored_is_left_out_and_of_hours_that_wait_one_part_alone_is_opened(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = Sensors(DEVICES, seed=1)
    samples = [frame_of("n", seq, samples_of(sensors)) for seq in range(1, 401)]
    for until_s in (0.0, 1.0, 30.0, 45.5, 123.0, 399.0, 400.0, 500.0):
        kept, state = History(60.0), live("n")
        for seq, sample in enumerate(samples, start=1):
            kept.take(state.take([sample]), state)
            if seq % 2 == 0:
                kept.rest(float(seq), led=False)
        opened: list[bytes] = []
        monkeypatch.setattr(
            history, "unpack_part", lambda part, opened=opened: opened.append(part) or unpack_part(part)
        )
        kept.lead({"n": until_s})
        monkeypatch.setattr(history, "unpack_part", unpack_part)
        pending, left = kept.nodes["n"], [1000 * seq for seq in range(1, 401) if seq > until_s]
        assert len(opened) <= 1
        assert pending.samples == len(left) and pending.readings == len(left) * DEVICES
        assert (pending.whole().t_ms.tolist() if left else []) == left
        assert pending.first_s == (left[0] / 1000.0 if left else 0.0)
        assert sum(samples for _, samples, _ in pending.spans) == len(left)


def test_what_waited_for_hours_is_stored_and_shown_in_turns_as_long_as_others(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "CHUNK_SAMPLES", 10)
    monkeypatch.setattr(history, "FULL_AT_ONCE", 4)
    monkeypatch.setattr(history, "FORCED_AT_ONCE", 4)
    monkeypatch.setattr(history, "SHOWN_AT_ONCE_BYTES", 400)
    monkeypatch.setattr(history, "SHOWN_OF_A_NODE_BYTES", 300)
    names = [f"n{number}" for number in range(8)]
    sensors, state, kept = Sensors(1, seed=1), live(*names, devices=1), History(60.0, quiet_s=1e9)
    for turn in range(40):
        kept.take(state.take([frame_of(name, turn + 1, samples_of(sensors, 1)) for name in names]), state)
        kept.rest(float(turn), led=False)
        for pending in kept.nodes.values():
            pending.pack()
    kept.lead({})
    kept.publish()
    assert 0 < len(shown.parts) < 8, "others are shown in the next turns"
    assert all(bus.parts_bytes(parts) <= 300 + 2 * 200 for parts in shown.parts.values())
    assert [len(shown.of(name.partition(":")[2]).t_ms) < 40 for name in shown.parts] == [True] * len(shown.parts)
    assert shown.of("n0").t_ms.tolist()[-1] == 40_000, "the newest"
    assert [kept.flush(100.0, known=set(names)) for _ in range(3)] == [1, 1, 1], "each is as much as four chunks"
    assert kept.force(known=set(names)) == 1
    assert sorted(len(whole.t_ms) for whole in shown.stored.values()) == [40] * 4


def test_in_an_outage_in_which_nobody_leads_all_is_kept_and_what_there_is_no_room_for_is_counted(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_SAMPLES", 300)
    sensors, state, kept = Sensors(1, seed=1), live("n", devices=1), History(60.0)
    for seq in range(1, 321):
        kept.take(state.take([frame_of("n", seq, samples_of(sensors, 1))]), state)
        kept.rest(float(seq), led=False)
    assert kept.nodes["n"].whole().t_ms.tolist() == [1000 * seq for seq in range(1, 301)], "five chunks"
    assert kept.lost == {"n": 20}
    kept.lead({"n": 10.0})
    assert kept.force(known={"n"}) == 1
    assert shown.stored["n"].t_ms.tolist() == [1000 * seq for seq in range(11, 301)]
    kept.take(state.take([frame_of("n", 321, samples_of(sensors, 1))]), state)
    assert kept.nodes["n"].samples == 1 and kept.lost == {"n": 20}


def test_a_device_that_comes_and_goes_is_missing_where_it_was_not(shown: Shown) -> None:
    sensors, state, kept = Sensors(DEVICES, seed=1), live("n"), History(600.0)
    for seq, devices in enumerate((2, 2, 3, 3, 1), start=1):
        kept.take(state.take([frame_of("n", seq, samples_of(sensors, devices))]), state)
    kept.publish()
    found = shown.of("n")
    assert found.devices == [0, 1, 2]
    there = (found.whole[TEMPERATURE] != MISSING).tolist()
    assert there == [[True] * 5, [True] * 4 + [False], [False, False, True, True, False]]
