"""Samples on their way to packed history: collected a node, stored when a chunk is full."""

from dataclasses import dataclass, field

import numpy as np

from controlplane.runtime import bus
from controlplane.sentinel.picture import Heard, Picture
from controlplane.telemetry.codec import METRICS, Chunk, pack
from controlplane.telemetry.selectors import pending_name
from controlplane.telemetry.services import store_chunk

MAX_SAMPLES = 7200
NAN = float("nan")


@dataclass(slots=True)
class Pending:
    """Rows of one node: [device][metric] by time."""

    t_s: list[float] = field(default_factory=list)
    rows: list[dict[int, list[float]]] = field(default_factory=list)
    changed: bool = False

    def chunk(self) -> Chunk:
        """What is collected so far, as a chunk."""
        devices = sorted({index for row in self.rows for index in row})
        empty = [NAN] * len(METRICS)
        table = np.array([[row.get(index, empty) for index in devices] for row in self.rows])
        return Chunk(t_s=np.array(self.t_s), devices=devices, values=np.transpose(table, (2, 1, 0)))


class History:
    """One `Pending` a node; `chunk_s` is a chunk's length."""

    def __init__(self, chunk_s: float) -> None:
        self.chunk_s = chunk_s
        self.nodes: dict[str, Pending] = {}

    def take(self, heard: list[Heard], picture: Picture) -> None:
        """Note the samples of these frames with the scores they led to."""
        for item in heard:
            if not item.frame.devices:
                continue
            pending = self.nodes.setdefault(item.node_id, Pending())
            if len(pending.t_s) >= MAX_SAMPLES or (pending.t_s and item.at_s <= pending.t_s[-1]):
                continue
            pending.t_s.append(item.at_s)
            pending.rows.append(_row(item, picture))
            pending.changed = True

    def flush(self, now_s: float, *, force: bool = False) -> int:
        """Store full chunks (all of them when `force`); returns how many."""
        stored = 0
        for node_id, pending in self.nodes.items():
            if not pending.t_s or not (force or now_s - pending.t_s[0] >= self.chunk_s):
                continue
            store_chunk(node_id, pending.chunk())
            self.nodes[node_id] = Pending()
            stored += 1
        return stored

    def publish(self) -> None:
        """Show what is not stored yet, so that charts have no hole."""
        for node_id, pending in self.nodes.items():
            if pending.changed:
                pending.changed = False
                bus.write_blob(pending_name(node_id), pack(pending.chunk()))


def _row(item: Heard, picture: Picture) -> dict[int, list[float]]:
    row = {}
    for sample in item.frame.devices:
        risk = picture.risk_of(item.node_id, sample.index)
        values = [getattr(sample, name, None) for name in METRICS[:-1]] + [risk]
        row[sample.index] = [NAN if value is None else float(value) for value in values]
    return row
