"""Packed history gives back what was put in, and says when bytes are no chunk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.telemetry.codec import METRICS, STEPS, Chunk, pack, unpack


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
    values = np.tile(np.array([60.0, 400.0, 0.95, float(30 << 30), 1900.0, 0.1])[:, None, None], (1, 1, 3600))
    assert len(pack(Chunk(t_s=t_s, devices=[0], values=values))) < 3000
