"""Samples on their way to packed history: collected a node, stored when a chunk is full."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from controlplane.runtime import bus, metrics
from controlplane.runtime.isolate import isolated
from controlplane.sentinel.live_state import Heard, LiveState
from controlplane.telemetry.codec import METRICS, Chunk, pack
from controlplane.telemetry.readings import NAN, values_of
from controlplane.telemetry.selectors import pending_name
from controlplane.telemetry.services import store_chunk

MAX_SAMPLES = 7200
QUIET_S = bus.LIVE_EXPIRE_S / 2
QUIET_SAMPLES = 3
QUIET_AT_ONCE = 50
"""A fleet that is silent at once holds nothing up."""
# Of one node: 7,200 samples of 8 devices.
MAX_READINGS = 57_600


@dataclass(slots=True)
class Pending:
    """Rows of one node: [device][metric] by time; `readings` in all of them."""

    t_s: list[float] = field(default_factory=list)
    rows: list[dict[int, list[float]]] = field(default_factory=list)
    changed: bool = False
    readings: int = 0

    def chunk(self) -> Chunk:
        """What is collected so far, as a chunk."""
        devices = sorted({index for row in self.rows for index in row})
        empty = [NAN] * len(METRICS)
        table = np.array([[row.get(index, empty) for index in devices] for row in self.rows])
        return Chunk(t_s=np.array(self.t_s), devices=devices, values=np.transpose(table, (2, 1, 0)))


class History:
    """One `Pending` a node; `chunk_s` is a chunk's length. Of a node that sends nothing for `quiet_s` all is stored
    at once: what is only shown expires soon after, and its last readings are those that people ask for."""

    def __init__(self, chunk_s: float, *, quiet_s: float = QUIET_S) -> None:
        self.chunk_s, self.quiet_s = chunk_s, quiet_s
        self.nodes: dict[str, Pending] = {}

    def take(self, heard: list[Heard], live_state: LiveState) -> None:
        """Note the samples of frames that the live state has taken, with the scores they led to."""
        for item in heard:
            if not item.frame.devices:
                continue
            pending = self.nodes.setdefault(item.node_id, Pending())
            if len(pending.t_s) >= MAX_SAMPLES or (pending.t_s and item.at_s <= pending.t_s[-1]):
                continue
            if pending.readings + len(item.frame.devices) > MAX_READINGS:
                metrics.FRAMES.labels(result="history_full").inc()
                continue
            isolated("history", item.node_id, partial(_note, pending, item, live_state))

    def flush(self, now_s: float, *, known: Collection[str], force: bool = False) -> int:
        """Store full chunks (all of them when `force`), those of nodes that have gone quiet, and what is left of
        nodes that are not `known` any more; returns how many. What cannot be stored of one node is dropped."""
        stored, room = 0, QUIET_AT_ONCE
        for node_id, pending in list(self.nodes.items()):
            gone = node_id not in known
            if not pending.t_s:
                continue
            if not (force or gone or now_s - pending.t_s[0] >= self.chunk_s):
                if room == 0 or now_s - pending.t_s[-1] < self.quiet_s:
                    continue
                room -= 1
            stored += isolated("history", node_id, partial(_store, node_id, pending))
            if gone:
                del self.nodes[node_id]
            else:
                self.nodes[node_id] = Pending()
        return stored

    def publish(self) -> None:
        """Show what is not stored yet, so that charts have no hole."""
        for node_id, pending in self.nodes.items():
            if pending.changed:
                pending.changed = False
                isolated("history", node_id, partial(_show, node_id, pending))


def _note(pending: Pending, item: Heard, live_state: LiveState) -> None:
    row = _row(item, live_state)
    pending.readings += len(item.frame.devices)
    pending.t_s.append(item.at_s)
    pending.rows.append(row)
    pending.changed = True


def _store(node_id: str, pending: Pending) -> None:
    store_chunk(node_id, pending.chunk())


def _show(node_id: str, pending: Pending) -> None:
    bus.write_blob(pending_name(node_id), pack(pending.chunk()))


def _row(item: Heard, live_state: LiveState) -> dict[int, list[float]]:
    row = {}
    for sample in item.frame.devices:
        row[sample.index], refused = values_of(sample, live_state.risk_of(item.node_id, sample.index))
        if refused:
            metrics.FRAMES.labels(result="reading_too_large").inc(refused)
    return row
