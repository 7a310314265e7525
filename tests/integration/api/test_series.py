"""A node's history comes out of its packed chunks with the names it went in with."""

from typing import Any

import msgspec
import numpy as np
import pytest

from controlplane.protocol import rest
from controlplane.runtime.clock import from_s, iso, now_s
from controlplane.telemetry.codec import METRICS, Chunk, quantised
from controlplane.telemetry.services import store_chunks

pytestmark = pytest.mark.django_db


def test_a_stored_chunk_is_answered_thinned_and_typed(caller: Any, node: Any) -> None:
    seconds = now_s() - np.arange(100, 0, -1, dtype=np.float64)
    values = np.full((len(METRICS), 2, 100), np.nan, dtype=np.float32)
    values[METRICS.index("temperature_c"), 0, :] = 61.0
    store_chunks({node.id: quantised(Chunk(t_s=seconds, devices=(0, 1), values=values))})
    answer = caller("read").get(f"/nodes/{node.id}/series?window_s=600&max_points=50")
    series = msgspec.json.decode(answer.content, type=rest.Series)
    first, second = series.devices
    assert 25 <= len(first.t) <= 50
    assert first.temperature_c[0] == pytest.approx(61.0, abs=0.1)
    assert set(second.temperature_c) == {None}
    assert set(first.risk) == {None}


def steady(node: Any, seconds: np.ndarray[Any, Any]) -> None:
    values = np.full((len(METRICS), 1, len(seconds)), np.nan)
    values[METRICS.index("power_w"), 0] = np.arange(len(seconds), dtype=np.float64)
    store_chunks({node.id: quantised(Chunk(t_s=seconds, devices=[0], values=values))})


def test_a_span_between_two_instants_is_answered_and_nothing_beside_it(caller: Any, node: Any) -> None:
    begin_s = round(now_s()) - 5000.0
    for part in range(4):
        steady(node, begin_s + 600.0 * part + np.arange(600.0))
    since, until = iso(from_s(begin_s + 500)), iso(from_s(begin_s + 1300))
    answer = caller("read").get(f"/nodes/{node.id}/series?since={since}&until={until}&max_points=2000")
    (device,) = msgspec.json.decode(answer.content, type=rest.Series).devices
    assert device.t == [begin_s + i for i in range(500, 1301)]
    assert device.power_w == [float(i % 600) for i in range(500, 1301)]
    answer = caller("read").get(f"/nodes/{node.id}/series?until={until}&window_s=60&max_points=2000")
    (device,) = msgspec.json.decode(answer.content, type=rest.Series).devices
    assert (device.t[0], device.t[-1]) == (begin_s + 1240, begin_s + 1300)


@pytest.mark.parametrize("points", [2, 7, 100, 2000])
def test_a_long_span_has_a_bounded_number_of_points_and_not_many_fewer(caller: Any, node: Any, points: int) -> None:
    begin_s = round(now_s()) - 7000.0
    for part in range(10):
        steady(node, begin_s + 600.0 * part + np.arange(600.0))
    answer = caller("read").get(f"/nodes/{node.id}/series?window_s=86400&max_points={points}")
    (device,) = msgspec.json.decode(answer.content, type=rest.Series).devices
    assert points / 2 <= len(device.t) <= points


OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        (f"since={NEW}&until={OLD}", "/query/since"),
        (f"since={OLD}&until={OLD}", "/query/since"),
        (f"since=2025-12-01T00:00:00Z&until={NEW}", "/query/since"),
        (f"since={OLD}&until={NEW}&window_s=60", "/query/window_s"),
        ("since=yesterday", "/query/since"),
        ("since=2026-01-01T00:00:00", "/query/since"),
        ("until=x", "/query/until"),
        ("window_s=0", "/query/window_s"),
        ("window_s=604801", "/query/window_s"),
        ("max_points=1", "/query/max_points"),
    ],
)
def test_a_span_that_is_none_or_too_long_is_pointed_at(caller: Any, node: Any, query: str, pointer: str) -> None:
    answer = caller("read").get(f"/nodes/{node.id}/series?{query}")
    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    "query", ["since=9999-12-31T23:59:59Z", "until=0001-01-01T00:00:00Z", "until=9999-12-31T23:59:59Z"]
)
def test_the_ends_of_the_calendar_are_no_server_error(caller: Any, node: Any, query: str) -> None:
    assert caller("read").get(f"/nodes/{node.id}/series?{query}").status_code in (200, 422)
