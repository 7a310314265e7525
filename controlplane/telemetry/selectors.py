"""Device histories: stored chunks, then what the sentinel has not stored yet.

A span of time is asked by its two ends, in Unix seconds of the server. A chunk that cannot be read is left
out and logged.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from django.db.models import OuterRef, QuerySet, Subquery

from controlplane.fleet.models import Node
from controlplane.runtime import bus
from controlplane.runtime.clock import from_s
from controlplane.runtime.logs import get
from controlplane.telemetry.codec import METRICS, Chunk, Part, chunk_of, joined, unpack, unpack_part
from controlplane.telemetry.models import TelemetryChunk

_log = get(__name__)
ROWS_AT_ONCE = 16
MOMENT_S = 0.002
"""History keeps moments to the millisecond."""
Floats = npt.NDArray[np.float64]


def pending_name(node_id: str) -> str:
    """Where the sentinel keeps its unstored samples (`bus.read_parts`)."""
    return f"pending:{node_id}"


def pending_chunk(node_id: str) -> Chunk | None:
    """Samples that are not stored yet; None where there are none. A part that cannot be read, or that is no later
    than the one before, is left out."""
    parts: list[Part] = []
    for raw in bus.read_parts(pending_name(node_id)):
        try:
            part = unpack_part(raw)
        except ValueError as error:
            _log.warning("a part of unstored history left out", node=node_id, error=str(error))
            continue
        if not parts or part.t_ms[0] > parts[-1].t_ms[-1]:
            parts.append(part)
    return chunk_of(joined(parts)) if parts else None


def node_series(node_id: str, *, since_s: float, until_s: float, max_points: int = 300) -> dict[str, Any]:
    """{"devices": [{"index", "t": [unix s], <metric>: [value or None]}]}, thinned to at most `max_points`
    by taking every n-th sample. However long the span, only what is thinned already is held at once."""
    stride = _stride(node_id, since_s, until_s, max_points)
    chunks = node_chunks([node_id], since_s, until_s, stride=stride)[node_id]
    return {"devices": [series(index, *of_device(chunks, index), max_points) for index in indexes(chunks)]}


def node_chunks(node_ids: Sequence[str], since_s: float, until_s: float, *, stride: int = 1) -> dict[str, list[Chunk]]:
    """Of each node its samples between the two moments, in order of time, of stored ones every `stride`-th: one
    query for all nodes, and one read of Redis for each."""
    rows = _rows(node_ids, since_s, until_s).order_by("node_id", "t0").iterator(chunk_size=ROWS_AT_ONCE)
    found: dict[str, list[Chunk]] = {node_id: [] for node_id in node_ids}
    for node_id, stored in groupby(rows, lambda row: row.node_id):
        found[node_id] = [_thinned(chunk, stride) for chunk in _stored(stored, since_s, until_s)]
    for node_id, chunks in found.items():
        pending = pending_chunk(node_id)
        if pending is not None:
            # It may lie a little behind a chunk that was stored meanwhile.
            chunks.append(_cut(pending, max(since_s, *(float(c.t_s[-1]) + 0.001 for c in chunks), 0.0), until_s))
        found[node_id] = [chunk for chunk in chunks if len(chunk.t_s)]
    return found


def stored_until() -> dict[str, float]:
    """Of each node the last moment of its newest chunk, however long that is."""
    newest = TelemetryChunk.objects.filter(node=OuterRef("pk")).order_by("-t0").values("t1")[:1]
    rows = Node.objects.annotate(until=Subquery(newest)).exclude(until=None).order_by()
    return {node_id: until.timestamp() for node_id, until in rows.values_list("pk", "until")}


def newest_totals(node_id: str, names: Sequence[str], *, before_s: float) -> dict[int, dict[str, tuple[int, float]]]:
    """Of each device of a node the last value of these counters before a moment, and when it was read."""
    newest = TelemetryChunk.objects.filter(node_id=node_id, t0__lt=from_s(before_s)).order_by("-t0").first()
    chunks = [] if newest is None else list(_stored([newest], 0.0, before_s - MOMENT_S))
    pending = pending_chunk(node_id)
    if pending is not None:
        chunks.append(_cut(pending, 0.0, before_s - MOMENT_S))
    found: dict[int, dict[str, tuple[int, float]]] = {}
    for chunk in sorted((chunk for chunk in chunks if len(chunk.t_s)), key=lambda chunk: float(chunk.t_s[-1])):
        for row, index in enumerate(chunk.devices):
            for name in names:
                values = chunk.values[METRICS.index(name), row]
                there = np.flatnonzero(~np.isnan(values))
                if len(there):
                    last = int(there[-1])
                    found.setdefault(index, {})[name] = (round(float(values[last])), float(chunk.t_s[last]))
    return found


def indexes(chunks: Iterable[Chunk]) -> list[int]:
    """Devices that have a place in any of them."""
    return sorted({index for chunk in chunks for index in chunk.devices})


def of_device(chunks: Sequence[Chunk], index: int) -> tuple[Floats, Floats]:
    """Moments, and [METRICS, moments], of one device; empty where none of the chunks has it."""
    mine = [chunk for chunk in chunks if index in chunk.devices]
    if not mine:
        return np.empty(0), np.empty((len(METRICS), 0))
    values = [chunk.values[:, chunk.devices.index(index), :] for chunk in mine]
    return np.concatenate([chunk.t_s for chunk in mine]), np.concatenate(values, axis=1)


def series(index: int, t_s: Floats, values: Floats, max_points: int) -> dict[str, Any]:
    """One device as the API shows it."""
    stride = max(1, -(-len(t_s) // max_points))
    found: dict[str, Any] = {"index": index, "t": [round(float(t), 3) for t in t_s[::stride]]}
    for row, name in enumerate(METRICS):
        found[name] = [None if np.isnan(v) else round(float(v), 4) for v in values[row][::stride]]
    return found


def _rows(node_ids: Sequence[str], since_s: float, until_s: float) -> QuerySet[TelemetryChunk]:
    return TelemetryChunk.objects.filter(node_id__in=node_ids, t1__gte=from_s(since_s), t0__lte=from_s(until_s))


def _stride(node_id: str, since_s: float, until_s: float, max_points: int) -> int:
    """Every n-th stored sample leaves `max_points` at least, by what the chunks say of themselves."""
    total = 0.0
    for t0, t1, samples in _rows([node_id], since_s, until_s).values_list("t0", "t1", "samples"):
        begin_s, end_s = t0.timestamp(), t1.timestamp()
        inside_s = min(end_s, until_s) - max(begin_s, since_s)
        total += samples * (inside_s / (end_s - begin_s) if end_s > begin_s else 1.0)
    return max(1, int(total / max_points))


def _thinned(chunk: Chunk, stride: int) -> Chunk:
    return Chunk(t_s=chunk.t_s[::stride], devices=chunk.devices, values=chunk.values[:, :, ::stride].copy())


def _stored(rows: Iterable[TelemetryChunk], since_s: float, until_s: float) -> Iterator[Chunk]:
    for row in rows:
        try:
            chunk = _cut(unpack(bytes(row.payload)), since_s, until_s)
        except ValueError as error:
            _log.warning("stored history left out", node=row.node_id, chunk=row.pk, error=str(error))
            continue
        if len(chunk.t_s):
            yield chunk


def _cut(chunk: Chunk, since_s: float, until_s: float) -> Chunk:
    keep = (chunk.t_s >= since_s) & (chunk.t_s <= until_s)
    return Chunk(t_s=chunk.t_s[keep], devices=chunk.devices, values=chunk.values[:, :, keep])
