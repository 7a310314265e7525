"""Packed history: written by the sentinel, forgotten by retention."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from controlplane.fleet.models import Node
from controlplane.runtime.clock import ago, from_s
from controlplane.runtime.isolate import isolated
from controlplane.telemetry.codec import CODEC, Part, pack_whole
from controlplane.telemetry.models import TelemetryChunk

Unit = Callable[[], AbstractContextManager[None]]


def store_chunks(wholes: Mapping[str, Part], unit: Unit = nullcontext) -> int:
    """Keep finished chunks of these nodes, in one statement; the same one twice (a leader that took over) is kept
    once. Of a node of which one cannot be kept, or that is in no table any more, it is dropped, and the others are
    kept. `unit`: the transaction of the write, which begins when all is packed. Returns how many."""
    rows: list[TelemetryChunk] = []
    for node_id, part in wholes.items():
        isolated("history", node_id, partial(_add, rows, node_id, part))
    if not rows:
        return 0
    with unit():
        there = set(Node.objects.filter(pk__in=[row.node_id for row in rows]).values_list("pk", flat=True))
        kept = [row for row in rows if row.node_id in there]
        TelemetryChunk.objects.bulk_create(kept, ignore_conflicts=True)
    return len(kept)


def _add(rows: list[TelemetryChunk], node_id: str, part: Part) -> None:
    t0, t1 = from_s(int(part.t_ms[0]) / 1000.0), from_s(int(part.t_ms[-1]) / 1000.0)
    payload = pack_whole(part)
    rows.append(TelemetryChunk(node_id=node_id, t0=t0, t1=t1, codec=CODEC, samples=len(part.t_ms), payload=payload))


def forget_chunks(older_than_s: float) -> int:
    """Delete history; returns how many chunks."""
    return TelemetryChunk.objects.filter(t1__lt=ago(older_than_s)).delete()[0]
