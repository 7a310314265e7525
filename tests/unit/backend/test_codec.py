"""Packed history gives back what was put in, and says when bytes are no chunk; what older
releases have stored stays readable."""

import base64
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.telemetry import codec
from controlplane.telemetry.codec import (
    METRICS,
    MISSING,
    STEPS,
    Chunk,
    Part,
    chunk_of,
    joined,
    pack,
    pack_part,
    pack_whole,
    storable,
    unpack,
    unpack_part,
)

FIXTURES = Path(__file__).parent / "chunks"


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_reading_survives_to_half_a_step_and_a_missing_one_stays_missing(
    samples: int, devices: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scale = STEPS * 200_000
    values = random.random((len(METRICS), devices, samples)) * scale[:, None, None]
    values[random.random(values.shape) < 0.2] = np.nan
    t_s = 1.7e9 + np.cumsum(random.random(samples) + 0.001)
    found = unpack(pack(Chunk(t_s=t_s, devices=list(range(devices)), values=values)))
    assert found.devices == list(range(devices))
    assert np.allclose(found.t_s, t_s, atol=0.00051)
    assert np.array_equal(np.isnan(found.values), np.isnan(values))
    error = np.abs(found.values - values) / STEPS[:, None, None]
    assert np.nanmax(error, initial=0.0) <= 0.5 + 1e-6


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_other_bytes_are_refused_as_such(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)


def test_an_hour_of_a_steady_device_takes_little_room() -> None:
    t_s = 1.7e9 + np.arange(3600.0)
    values = np.full((len(METRICS), 1, 3600), 0.5)
    assert len(pack(Chunk(t_s=t_s, devices=[0], values=values))) < 3000


@pytest.mark.parametrize("devices", [1, 2, 8, 72])
@pytest.mark.parametrize("samples", [1, 2, 600])
def test_a_node_of_any_size_is_packed_as_the_sentinel_lays_it_out(devices: int, samples: int) -> None:
    # The sentinel collects [sample][device][metric] and hands over the transposed view.
    table = np.arange(samples * devices * len(METRICS), dtype=np.float64).reshape(samples, devices, len(METRICS))
    values = np.transpose(table, (2, 1, 0)) * STEPS[:, None, None]
    chunk = Chunk(t_s=1.7e9 + np.arange(samples), devices=list(range(devices)), values=values)
    assert np.allclose(unpack(pack(chunk)).values, values)


def test_a_chunk_of_the_first_format_is_read_by_the_names_it_carries() -> None:
    chunk = unpack(base64.b64decode((FIXTURES / "q1.b64").read_text()))
    assert chunk.devices == [0, 3]
    assert chunk.t_s.tolist() == [1.7e9 + second for second in range(5)]
    of = {name: chunk.values[row] for row, name in enumerate(METRICS)}
    assert of["temperature_c"][0].tolist()[:3] == [60.0, 60.25, 61.0]
    assert np.isnan(of["temperature_c"][0][3])
    assert of["power_w"][1].tolist() == [75.0] * 5
    assert of["memory_used_bytes"][0].tolist() == [float(30 << 30)] * 5
    assert of["risk"][0].tolist() == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.25])
    assert all(np.isnan(of[name]).all() for name in METRICS if name.startswith("ecc_"))


def test_a_chunk_of_the_second_format_is_read() -> None:
    chunk = unpack(base64.b64decode((FIXTURES / "q2.b64").read_text()))
    of = {name: chunk.values[row] for row, name in enumerate(METRICS)}
    assert chunk.devices == [0]
    assert of["ecc_corrected_total"][0].tolist() == [0.0, 40.0, 41.0]
    assert of["temperature_c"][0].tolist() == [60.0, 61.0, 62.0]
    assert np.isnan(of["risk"]).all()


def test_a_chunk_of_the_third_format_is_read() -> None:
    chunk = unpack(base64.b64decode((FIXTURES / "q3.b64").read_text()))
    of = {name: chunk.values[row] for row, name in enumerate(METRICS)}
    assert chunk.devices == [0, 2]
    assert chunk.t_s.tolist() == [1.7e9, 1.7e9 + 1, 1.7e9 + 2]
    assert of["power_w"][1].tolist() == [640.0, 612.0, 640.0]
    assert of["temperature_c"][0].tolist() == [60.0, 61.0, 59.75]
    assert np.isnan(of["risk"]).all()


def test_a_release_that_does_not_know_the_layout_refuses_the_chunk() -> None:
    data = base64.b64decode((FIXTURES / "q3.b64").read_text())
    size = int.from_bytes(data[:4], "big")
    head = zstandard.decompress(data[4 : 4 + size], max_output_size=codec.MAX_HEAD_BYTES)
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(data[4 : 4 + size], type=codec.Header)
    header = msgspec.msgpack.decode(head, type=codec.Header)
    old = msgspec.msgpack.encode(msgspec.structs.replace(header, layout=0))
    with pytest.raises(ValueError):
        unpack(len(old).to_bytes(4, "big") + old + data[4 + size :])


def test_parts_one_after_the_other_are_what_they_were_made_of() -> None:
    random = np.random.default_rng(3)
    whole = random.integers(-1000, 1000, (len(METRICS), 3, 10)).astype(np.int32)
    t_ms = 1_700_000_000_000 + np.arange(10) * 1000
    first = Part(t_ms=t_ms[:4], devices=[0, 2], whole=whole[:, [0, 2], :4])
    last = Part(t_ms=t_ms[4:], devices=[0, 1, 2], whole=whole[:, :, 4:])
    found = joined([unpack_part(pack_part(part)) for part in (first, last)])
    assert (found.devices, found.t_ms.tolist()) == ([0, 1, 2], t_ms.tolist())
    assert np.array_equal(found.whole[:, [0, 2]], whole[:, [0, 2]])
    assert np.array_equal(found.whole[:, 1, 4:], whole[:, 1, 4:])
    assert (found.whole[:, 1, :4] == MISSING).all(), "it was not there yet"
    assert np.array_equal(unpack(pack_whole(found)).values, chunk_of(found).values, equal_nan=True)
    for other in (pack_whole(found), b"", b"\0" * 40):
        with pytest.raises(ValueError):
            unpack_part(other)
    with pytest.raises(ValueError):
        unpack(pack_part(found))


def test_each_format_has_a_fixture() -> None:
    assert (FIXTURES / f"{codec.CODEC}.b64").exists(), "store a chunk of the new format beside the older ones"


def test_what_another_release_stores_is_read_by_name_and_its_own_steps() -> None:
    header = codec.Header(t0_ms=0, samples=2, devices=[5], metrics=["fan_rpm", "power_w"], steps=[1.0, 2.0])
    rows = np.array([[0, 1000], [7, 7], [100, 101]], dtype=np.int32)
    delta = np.ascontiguousarray(np.diff(rows, axis=1, prepend=np.int32(0)), dtype=np.int32)
    head = msgspec.msgpack.encode(header)
    body = zstandard.compress(delta.view(np.uint8).reshape(-1, 4).T.tobytes())
    chunk = unpack(len(head).to_bytes(4, "big") + head + body)
    assert chunk.values[METRICS.index("power_w")].tolist() == [[200.0, 202.0]]
    assert np.isnan(np.delete(chunk.values, METRICS.index("power_w"), axis=0)).all()


def test_a_reading_too_large_is_refused_and_not_bent() -> None:
    row = np.full(len(METRICS), np.nan)
    assert storable(row).all(), "what was not read fits"
    row[METRICS.index("ecc_corrected_total")] = 2**31 - 2
    assert storable(row).all()
    row[METRICS.index("ecc_corrected_total")] = 2**31
    assert [name for name, fits in zip(METRICS, storable(row), strict=True) if not fits] == ["ecc_corrected_total"]
    values = np.full((len(METRICS), 1, 1), 1e15)
    with pytest.raises(ValueError, match="too large"):
        pack(Chunk(t_s=np.array([1.0]), devices=[0], values=values))
