"""Samples on their way to packed history: collected a node, stored when a chunk is full.

Written forward: what came since the last part of a node is packed once, as its next part, which stays in memory and is
appended to what Redis shows of the node. When the chunk is full its parts are read and packed once more, with the names
of their metrics, as the row that is stored. Readings are held as `telemetry.held` says, for a wave of nodes at once.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from controlplane.protocol.readings import HISTORY, RISK
from controlplane.runtime import bus, metrics
from controlplane.runtime.isolate import isolated
from controlplane.runtime.logs import get
from controlplane.sentinel.columns import COLUMN, HELD_BACK, REASONS, Floats
from controlplane.sentinel.heard import Heard, waves
from controlplane.sentinel.live_state import LiveState
from controlplane.telemetry.codec import METRICS, Part, Whole, joined, pack_part, storable, unpack_part
from controlplane.telemetry.held import Held
from controlplane.telemetry.selectors import pending_name
from controlplane.telemetry.services import Unit, store_chunks

MAX_SAMPLES = 7200
QUIET_S = bus.LIVE_EXPIRE_S / 2
FORCED_AT_ONCE = 100
"""What a process that ends has stored stays, also if it is killed before it has stored all; and the loop of one that
gives a shard away is late by so many at most."""
QUIET_SAMPLES = 3
QUIET_AT_ONCE = 50
"""A fleet that is silent at once holds nothing up."""
FULL_AT_ONCE = 50
STORE_SLACK = 1.5
"""So much more often than it has to be is a full chunk stored: chunks of a fleet that began together spread."""
CHUNK_SAMPLES = 600
"""Of a chunk, where a node sends one each second. The limits of a turn are in chunks of so many: after an outage a node
has more."""
SHOWN_AT_ONCE = 2500
SHOWN_AT_ONCE_BYTES, SHOWN_OF_A_NODE_BYTES = 16 << 20, 32 << 10
"""Nodes whose newest samples are shown in a turn, and bytes; of more nodes each waits for a few turns."""
REST_SAMPLES = 30
REST_CHUNKS = 2.0
"""A sentinel that does not lead packs so many samples of a node at once, and keeps so many chunks while another one
does."""
# Of one node: 7,200 samples of 8 devices.
MAX_READINGS = 57_600
FULL = "history_full"
_log = get(__name__)
_FROM = [COLUMN.get(reading.name, 0) for reading in HISTORY]
_OWN = METRICS.index(RISK.name)
_REMAP, _THROTTLED = METRICS.index("row_remap"), METRICS.index("throttled")


@dataclass(slots=True)
class Pending:
    """Samples of one node that are not stored. `t_s`, `rows` ([devices, METRICS] in steps) and `devices` of those that
    are in no part yet; `parts`: packed, oldest first; `spans`: of each its last moment, its samples and readings.
    `shown` of them are in Redis, in `shown_bytes`."""

    first_s: float = 0.0
    last_s: float = 0.0
    samples: int = 0
    readings: int = 0
    t_s: list[float] = field(default_factory=list)
    rows: list[Whole] = field(default_factory=list)
    devices: list[tuple[int, ...]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    spans: list[tuple[float, int, int]] = field(default_factory=list)
    shown: int = 0
    shown_bytes: int = 0

    def add(self, at_s: float, devices: tuple[int, ...], rows: Whole) -> None:
        """One more sample."""
        self.first_s = self.first_s if self.samples else at_s
        self.last_s = at_s
        self.samples += 1
        self.readings += len(devices)
        self.t_s.append(at_s)
        self.rows.append(rows)
        self.devices.append(devices)

    def pack(self) -> None:
        """What is in no part yet becomes one, for each row of samples of the same devices."""
        begin, packed, spans = 0, [], []
        for place in range(1, len(self.t_s) + 1):
            if place < len(self.t_s) and self.devices[place] == self.devices[begin]:
                continue
            t_ms = np.round(np.array(self.t_s[begin:place]) * 1000.0).astype(np.int64)
            whole = np.stack(self.rows[begin:place], axis=2).transpose(1, 0, 2)
            packed.append(pack_part(Part(t_ms=t_ms, devices=list(self.devices[begin]), whole=whole)))
            spans.append((self.t_s[place - 1], place - begin, (place - begin) * len(self.devices[begin])))
            begin = place
        self.parts += packed
        self.spans += spans
        self.t_s, self.rows, self.devices = [], [], []

    def drop_before(self, moment_s: float) -> None:
        """Parts that ended before it."""
        while self.parts and self.spans[0][0] < moment_s:
            del self.parts[0]
            self.first_s, samples, readings = self.spans.pop(0)
            self.samples, self.readings = self.samples - samples, self.readings - readings
        self.shown, self.shown_bytes = 0, 0

    def drop_stored(self, until_s: float) -> None:
        """What was stored by another one: samples up to that moment. One part alone is opened, in which it lies: of a
        fleet that waited for hours this is done at once."""
        self.shown, self.shown_bytes = 0, 0
        if not self.samples or self.first_s > until_s:
            return
        if not self.spans or self.spans[-1][0] <= until_s:
            self.pack()
        while self.parts and not self._later(until_s):
            _, samples, readings = self.spans[0]
            del self.parts[0], self.spans[0]
            self.samples, self.readings = self.samples - samples, self.readings - readings
        if not self.samples:
            self.first_s = 0.0

    def _later(self, until_s: float) -> bool:
        """Of the first part what is after that moment is left; False: nothing is."""
        last_s, samples, readings = self.spans[0]
        if last_s <= until_s:
            return False
        part = unpack_part(self.parts[0])
        later = part.t_ms > round(until_s * 1000.0)
        if not later.any():
            return False
        if not later.all():
            part = Part(t_ms=part.t_ms[later], devices=part.devices, whole=part.whole[:, :, later])
            left = len(part.t_ms), len(part.t_ms) * len(part.devices)
            self.parts[0], self.spans[0] = pack_part(part), (last_s, *left)
            self.samples, self.readings = self.samples - samples + left[0], self.readings - readings + left[1]
        self.first_s = float(part.t_ms[0]) / 1000.0
        return True

    @property
    def chunks(self) -> float:
        """How much work it is to store all of it: as that of so many nodes whose chunk is full."""
        return max(1.0, self.samples / CHUNK_SAMPLES)

    def unshown(self) -> list[bytes]:
        """Parts that Redis has not; the newest of them where it has none: what waits for hours is shown once it is
        stored."""
        if self.shown:
            return self.parts[self.shown :]
        begin, size = len(self.parts) - 1, len(self.parts[-1])
        while begin > 0 and size + len(self.parts[begin - 1]) <= SHOWN_OF_A_NODE_BYTES:
            begin -= 1
            size += len(self.parts[begin])
        return self.parts[begin:]

    def whole(self) -> Part:
        """All of it."""
        self.pack()
        return joined([unpack_part(part) for part in self.parts])


class History:
    """One `Pending` a node; `chunk_s` is a chunk's length. Of a node that sends nothing for `quiet_s` all is stored
    at once: what is only shown expires soon after, and its last readings are those that people ask for. `lost`: samples
    that it had no room for, by node, taken out by whoever reports them."""

    def __init__(self, chunk_s: float, *, quiet_s: float = QUIET_S) -> None:
        self.chunk_s, self.quiet_s = chunk_s, quiet_s
        self.nodes: dict[str, Pending] = {}
        self.lost: Counter[str] = Counter()
        self._full = False
        self._held = Held()
        self._unshown: dict[str, None] = {}

    def take(self, heard: Iterable[Heard], live_state: LiveState) -> None:
        """Note the samples of frames that the live state has taken, with the scores they led to."""
        for wave in waves(item for item in heard if item.table is not None and len(item.table)):
            kept = [item for item in wave if self._has_room(item)]
            if kept:
                self._note(kept, live_state)

    def _has_room(self, item: Heard) -> bool:
        pending = self.nodes.setdefault(item.node_id, Pending())
        if pending.samples and item.at_s <= pending.last_s:
            return False
        if pending.samples >= MAX_SAMPLES or pending.readings + len(item.frame.devices) > MAX_READINGS:
            self.lost[item.node_id] += 1
            if not self._full:
                self._full = True
                _log.warning("history is lost: it could not be stored for too long", node_id=item.node_id)
            return False
        return True

    def _note(self, wave: list[Heard], live_state: LiveState) -> None:
        slots = np.concatenate([item.slots for item in wave])
        table = np.concatenate([item.table for item in wave if item.table is not None])
        values = values_of(table, live_state.risk[slots])
        fits = storable(values)
        if not fits.all():
            metrics.FRAMES.labels(result="reading_too_large").inc(int((~fits).sum()))
            values[~fits] = np.nan
        rows, place = self._held.take(slots, values), 0
        for item in wave:
            devices = tuple([sample.index for sample in item.frame.devices])
            # A copy: a view would keep the rows of the whole wave.
            self.nodes[item.node_id].add(item.at_s, devices, rows[place : place + len(devices)].copy())
            self._unshown[item.node_id] = None
            place += len(devices)

    def waiting(self, *, until_s: float = math.inf) -> int:
        """Nodes of which something is not stored, of those that have samples of `until_s` or before."""
        return len(self._unstored(until_s))

    def _unstored(self, until_s: float) -> list[str]:
        return [node_id for node_id, each in self.nodes.items() if each.samples and each.first_s <= until_s]

    def flush(self, now_s: float, *, known: Collection[str], unit: Unit = nullcontext) -> int:
        """Store full chunks, those of nodes that have gone quiet, and what is left of nodes that are not `known` any
        more; returns how many. What cannot be stored of one node is dropped. `unit`: of the write
        (`sentinel.fence`)."""
        due, quiet = [], float(QUIET_AT_ONCE)
        full = max(FULL_AT_ONCE, STORE_SLACK * len(self.nodes) / max(self.chunk_s, 1.0))
        for node_id, pending in self.nodes.items():
            if not pending.samples:
                continue
            if node_id not in known:
                due.append(node_id)
            elif now_s - pending.last_s >= self.quiet_s:
                due += [node_id] if quiet > 0 else []
                quiet -= pending.chunks
            elif now_s - pending.first_s >= self.chunk_s:
                due += [node_id] if full > 0 else []
                full -= pending.chunks
        return self._store(due, known, unit)

    def force(self, *, known: Collection[str], until_s: float = math.inf, unit: Unit = nullcontext) -> int:
        """As `flush`, all there is of `FORCED_AT_ONCE` nodes of `waiting`, of fewer where each has much."""
        due, left = [], float(FORCED_AT_ONCE)
        for node_id in self._unstored(until_s):
            if left <= 0.0:
                break
            due.append(node_id)
            left -= self.nodes[node_id].chunks
        return self._store(due, known, unit)

    def _store(self, due: Collection[str], known: Collection[str], unit: Unit) -> int:
        wholes: dict[str, Part] = {}
        for node_id in due:
            isolated("history", node_id, partial(_put_whole, wholes, node_id, self.nodes[node_id]))
        if not due:
            return 0
        stored, self._full = store_chunks(wholes, unit), False
        for node_id in due:
            self._forget(node_id, gone=node_id not in known)
        bus.drop_parts([pending_name(node_id) for node_id in due])
        return stored

    def _forget(self, node_id: str, *, gone: bool) -> None:
        self._unshown.pop(node_id, None)
        if gone:
            del self.nodes[node_id]
        else:
            self.nodes[node_id] = Pending()

    def publish(self) -> None:
        """Show what is not stored yet, so that charts have no hole: of each node its newest part, behind those that
        are shown; all of them where Redis has not what it had."""
        changes: list[tuple[str, list[bytes], bool]] = []
        nodes = [node_id for node_id, _ in zip(list(self._unshown), range(SHOWN_AT_ONCE), strict=False)]
        size = 0
        for node_id in nodes:
            if size > SHOWN_AT_ONCE_BYTES:
                break
            del self._unshown[node_id]
            pending = self.nodes[node_id]
            if isolated("history", node_id, pending.pack) and pending.parts:
                changes.append((pending_name(node_id), pending.unshown(), pending.shown == 0))
                size += bus.parts_bytes(changes[-1][1])
        lengths = bus.write_parts(changes)
        for name, parts, _ in changes:
            pending = self.nodes[name.partition(":")[2]]
            expected = pending.shown_bytes + bus.parts_bytes(parts)
            if lengths.get(name) == expected:
                pending.shown, pending.shown_bytes = len(pending.parts), expected
            else:
                # Away, or not what we left there: all of it is written with the next sample.
                pending.shown, pending.shown_bytes = 0, 0

    def lead(self, stored_s: Mapping[str, float]) -> None:
        """Another one led until now, and has stored these nodes' samples up to these moments (Unix seconds). What it
        showed is written again: whose parts they are that Redis has is not known."""
        for node_id, pending in self.nodes.items():
            if node_id in stored_s:
                isolated("history", node_id, partial(pending.drop_stored, stored_s[node_id]))
            pending.shown, pending.shown_bytes = 0, 0

    def rest(self, now_s: float, *, led: bool) -> None:
        """While another one leads (`led`), it stores: kept is what its next chunks may lack. While nobody does, or
        nobody knows, as in an outage of the database, all is kept that there is room for."""
        if led:
            self.lost.clear()
        for node_id, pending in self.nodes.items():
            if len(pending.t_s) >= REST_SAMPLES:
                isolated("history", node_id, pending.pack)
            if led and pending.samples and now_s - pending.first_s > REST_CHUNKS * self.chunk_s:
                pending.drop_before(now_s - REST_CHUNKS * self.chunk_s)


def values_of(table: Floats, risk: Floats) -> Floats:
    """[samples, METRICS] of a table of readings and the scores, in the order of history; see `Reading.of`."""
    values = table[:, _FROM]
    failure, pending = table[:, COLUMN["row_remap_failure"]], table[:, COLUMN["row_remap_pending"]]
    remap = np.where(failure > 0, 2.0, np.where(pending > 0, 1.0, 0.0))
    values[:, _REMAP] = np.where(np.isnan(failure) & np.isnan(pending), np.nan, remap)
    # A device that gives no clock gives no reasons either.
    mute = np.isnan(table[:, COLUMN["sm_clock_mhz"]]) & (table[:, REASONS] == 0)
    values[:, _THROTTLED] = np.where(mute, np.nan, table[:, HELD_BACK])
    values[:, _OWN] = risk
    return values


def _put_whole(wholes: dict[str, Part], node_id: str, pending: Pending) -> None:
    wholes[node_id] = pending.whole()
