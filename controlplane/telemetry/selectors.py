"""Device histories: stored chunks, then what the sentinel has not stored yet."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from controlplane.runtime import bus
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.logs import get
from controlplane.telemetry.codec import METRICS, Chunk, unpack
from controlplane.telemetry.models import TelemetryChunk

_log = get(__name__)


def pending_name(node_id: str) -> str:
    """Where the sentinel keeps its unstored samples (`bus.read_blob`)."""
    return f"pending:{node_id}"


def node_series(node_id: str, *, window_s: float = 600.0, max_points: int = 300) -> dict[str, Any]:
    """{"devices": [{"index", "t": [unix s], <metric>: [value or None]}]}, thinned to about
    `max_points` by taking every n-th sample. A chunk that cannot be read is left out and logged."""
    chunks = [_cut(chunk, now_s() - window_s) for chunk in _chunks(node_id, window_s)]
    chunks = [chunk for chunk in chunks if len(chunk.t_s)]
    total = sum(len(chunk.t_s) for chunk in chunks)
    stride = max(1, -(-total // max_points))
    devices = sorted({index for chunk in chunks for index in chunk.devices})
    return {"devices": [_device(chunks, index, stride) for index in devices]}


def _chunks(node_id: str, window_s: float) -> Iterator[Chunk]:
    rows = TelemetryChunk.objects.filter(node_id=node_id, t1__gte=ago(window_s)).order_by("t0")
    last_s = 0.0
    for row in rows:
        try:
            chunk = unpack(bytes(row.payload))
        except ValueError as error:
            _log.warning("stored history left out", node=node_id, chunk=row.pk, error=str(error))
            continue
        last_s = float(chunk.t_s[-1])
        yield chunk
    blob = bus.read_blob(pending_name(node_id))
    if blob is not None:
        # The blob may lie a little behind a chunk that was stored meanwhile.
        yield _cut(unpack(blob), last_s + 0.001)


def _cut(chunk: Chunk, since_s: float) -> Chunk:
    keep = chunk.t_s >= since_s
    return Chunk(t_s=chunk.t_s[keep], devices=chunk.devices, values=chunk.values[:, :, keep])


def _device(chunks: list[Chunk], index: int, stride: int) -> dict[str, Any]:
    mine = [chunk for chunk in chunks if index in chunk.devices]
    t_s = np.concatenate([chunk.t_s for chunk in mine])[::stride]
    values = np.concatenate([chunk.values[:, chunk.devices.index(index), :] for chunk in mine], axis=1)[:, ::stride]
    series: dict[str, Any] = {"index": index, "t": [round(float(t), 3) for t in t_s]}
    for row, name in enumerate(METRICS):
        series[name] = [None if np.isnan(v) else round(float(v), 4) for v in values[row]]
    return series
