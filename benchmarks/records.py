"""What a training process writes down, and the reader of it.

One file a process, one JSON line a record, flushed at once. Times are CLOCK_MONOTONIC,
which all processes of one machine share. Written by the peers' ranks, read by the runner.
"""

import os
import time
from pathlib import Path

import msgspec

from benchmarks.processes import start_ticks


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`kind`: start (the process exists), ready (built, about to train), step (committed)
    or discard (a step thrown away). `step` counts committed steps, so the first commit is
    1; `batch` is the share of the global batch that it was made of. `ticks` is the start
    time of `pid`; both together are an identity."""

    kind: str
    at_s: float
    replica: int
    rank: int
    pid: int
    ticks: int
    step: int = 0
    contributors: int = 0
    batch: float = 1.0
    loss: float | None = None


class Recorder:
    """Writes the records of this process."""

    def __init__(self, directory: Path, *, replica: int, rank: int) -> None:
        self._pid = os.getpid()
        self._ticks = start_ticks(self._pid) or 0
        self._replica, self._rank = replica, rank
        self._file = (directory / f"{replica}-{rank}-{self._pid}.jsonl").open("ab", buffering=0)

    def write(
        self, kind: str, *, step: int = 0, contributors: int = 0, batch: float = 1.0, loss: float | None = None
    ) -> None:
        """Append one record, stamped now."""
        record = Record(
            kind=kind, at_s=time.monotonic(), replica=self._replica, rank=self._rank,
            pid=self._pid, ticks=self._ticks, step=step, contributors=contributors, batch=batch, loss=loss,
        )  # fmt: skip
        self._file.write(msgspec.json.encode(record) + b"\n")


class Reader:
    """Follows all record files of a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._offsets: dict[Path, int] = {}
        self.records: list[Record] = []

    def poll(self) -> list[Record]:
        """Whole lines that are new since the last call; also kept in `records`."""
        fresh: list[Record] = []
        for path in sorted(self.directory.glob("*.jsonl")):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._offsets[path] = offset + end
            fresh += [msgspec.json.decode(line, type=Record) for line in data[:end].splitlines()]
        self.records += fresh
        return fresh
