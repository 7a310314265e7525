"""Telemetry on its way from a web process to the sentinel: sealed, numbered batches.

The web process authenticated the agents; a batch says which node and session each frame
came from, which process vouches for that, and the batch's number in it. So a batch that is
forged, altered, repeated or out of its order is found, and so is one that is missing:
frames that somebody took out of Redis must not look like a silent node. Holds no client.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from controlplane.runtime import bus
from controlplane.runtime.seal import Broken, seal, unseal

MAX_AGE_S = 60.0
MAX_ENTRY_BYTES = 8 << 20
SPLIT_BYTES = 4 << 20
STREAM_BYTES = 128 << 20
"""Of each web process: two seconds and more of all frames of 12,500 nodes, if it held them all."""
PURPOSE = "telemetry"

Item = tuple[str, str, float, bytes]
"""(node id, session id, Unix time of receipt, the frame's bytes)."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """`number` counts the batches of `process` from 1."""

    process: str
    number: int
    items: list[Item]


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Batch).decode


class BatchSealer:
    """One for each web process."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._number = 0

    def seal(self, items: list[Item]) -> Iterator[bytes]:
        """Entries for the stream, at least one."""
        part: list[Item] = []
        size = 0
        for item in items:
            if part and size + len(item[3]) > SPLIT_BYTES:
                yield self._entry(part)
                part, size = [], 0
            part.append(item)
            size += len(item[3])
        yield self._entry(part)

    def _entry(self, items: list[Item]) -> bytes:
        self._number += 1
        return seal(PURPOSE, bus.STREAM, _pack(Batch(process=self.process, number=self._number, items=items)))


Id = tuple[int, int]
"""Of an entry, by Redis: its clock in milliseconds, and a number. While its clock is behind, only the number rises."""


class Kept(NamedTuple):
    """An entry of ours. `noted_s`: when it was appended, by our own clock (monotonic)."""

    id: Id
    size_bytes: int
    noted_s: float


@dataclass(slots=True)
class Room:
    """How much of the stream stays, as one web process sees it: its own newest `most_bytes`, and what is younger than
    `most_s` both by Redis's clock, which is in each entry's id, and by ours, whichever is less. What other processes
    appended goes by the same id; of a stream that was made anew by a clock that is behind, the first entries may go
    with it. A reader that is further behind misses numbers and says so."""

    most_bytes: int = STREAM_BYTES
    most_s: float = MAX_AGE_S
    kept: deque[Kept] = field(default_factory=deque)
    kept_bytes: int = 0
    _first: Id = (0, 0)

    def note(self, entry_id: str, size_bytes: int, now_s: float) -> None:
        """An entry of ours was appended under this id, now (monotonic). Raises ValueError for what is none."""
        at_ms, _, number = entry_id.partition("-")
        entry = Kept((int(at_ms), int(number)), size_bytes, now_s)
        if entry.id < self._first or (self.kept and entry.id <= self.kept[-1].id):
            # The stream was made anew, by a clock that is behind the one before: no id that we know is in it.
            self.kept.clear()
            self.kept_bytes, self._first = 0, (0, 0)
        self.kept.append(entry)
        self.kept_bytes += size_bytes
        self._first = max(self._first, (entry.id[0] - int(self.most_s * 1000.0), 0))
        while len(self.kept) > 1 and (self.kept_bytes > self.most_bytes or now_s - self.kept[0].noted_s > self.most_s):
            self.kept_bytes -= self.kept.popleft().size_bytes
            self._first = max(self._first, self.kept[0].id)
        while self.kept[0].id < self._first:
            self.kept_bytes -= self.kept.popleft().size_bytes

    def oldest(self) -> str:
        """The first id that stays; everything before it goes with the next entry."""
        return f"{self._first[0]}-{self._first[1]}"


@dataclass(slots=True)
class _Last:
    """`at_s` by its own clock, `heard_s` by our monotonic one."""

    number: int
    at_s: float
    heard_s: float


class BatchReader:
    """`missing`: batches that were never seen though later ones of their process were."""

    def __init__(self) -> None:
        self.missing = 0
        self._last: dict[str, _Last] = {}

    def open(self, entry: object) -> Batch:
        """The batch, if a process of ours wrote it and it is the next. Raises seal.Broken."""
        if not isinstance(entry, bytes) or len(entry) > MAX_ENTRY_BYTES:
            raise Broken("unsealed")
        payload, at_s = unseal(PURPOSE, bus.STREAM, entry, max_age_s=MAX_AGE_S)
        batch = _unpack(payload)
        last = self._last.get(batch.process)
        if last is None:
            self._forget(at_s)
        elif batch.number <= last.number:
            raise Broken("repeated")
        else:
            self.missing += batch.number - last.number - 1
        self._last[batch.process] = _Last(batch.number, at_s, time.monotonic())
        return batch

    def unheard_s(self, process: str) -> float | None:
        """Seconds since its newest batch came; None: none did."""
        last = self._last.get(process)
        return None if last is None else time.monotonic() - last.heard_s

    def _forget(self, now_s: float) -> None:
        """Processes long gone: a repeat of theirs would be too old by its seal."""
        gone = [name for name, last in self._last.items() if now_s - last.at_s > 3 * MAX_AGE_S]
        for name in gone:
            del self._last[name]
