"""A node's history comes out of its packed chunks with the names it went in with."""

from typing import Any

import msgspec
import numpy as np
import pytest

from controlplane.protocol import rest
from controlplane.runtime.clock import now_s
from controlplane.telemetry.codec import METRICS, Chunk
from controlplane.telemetry.services import store_chunk

pytestmark = pytest.mark.django_db


def test_a_stored_chunk_is_answered_thinned_and_typed(caller: Any, node: Any) -> None:
    seconds = now_s() - np.arange(100, 0, -1, dtype=np.float64)
    values = np.full((len(METRICS), 2, 100), np.nan, dtype=np.float32)
    values[METRICS.index("temperature_c"), 0, :] = 61.0
    store_chunk(node.id, Chunk(t_s=seconds, devices=(0, 1), values=values))
    answer = caller("read").get(f"/nodes/{node.id}/series?window_s=600&max_points=50")
    series = msgspec.json.decode(answer.content, type=rest.Series)
    first, second = series.devices
    assert 25 <= len(first.t) <= 50
    assert first.temperature_c[0] == pytest.approx(61.0, abs=0.1)
    assert set(second.temperature_c) == {None}
    assert set(first.risk) == {None}
