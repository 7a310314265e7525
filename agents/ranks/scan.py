"""Reads what ranks append to their logs, in a thread, for lines with markers.

Called by the runtime: once a second for all ranks, and once more for a rank that is gone,
before its end is told, so that its last words come first. A rank that writes faster than
this reads loses lines here, not in its log. It never changes a file.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agents.core.events import Event, LogRead
from agents.core.state import Finding, Rank
from agents.ranks.logs import LogFiles, printable
from controlplane.protocol.launch import RankRef
from controlplane.protocol.markers import marker_of, may_hold_any

SCAN_S = 1.0
MAX_PASS_BYTES = 256 * 1024
MAX_LINE_CHARS = 300


class LogTail:
    """One log, read from `position` on. Its methods are called from several threads."""

    def __init__(self, path: Path, own: dict[str, str], *, position: int = 0) -> None:
        self._path = path
        self._own = own
        self._position = position
        self._lock = threading.Lock()

    def read(self, *, last: bool = False) -> tuple[Finding, ...]:
        """Markers in the whole lines since the last call; `last`: in an unfinished one too."""
        with self._lock:
            text = self._new_text(last=last)
        if not may_hold_any(text, self._own):
            return ()
        found: dict[str, Finding] = {}
        for line in text.splitlines():
            marker = marker_of(line, self._own)
            if marker is not None:
                count = found[marker].count + 1 if marker in found else 1
                shown = printable(line).strip()[:MAX_LINE_CHARS]
                found[marker] = Finding(marker=marker, line=shown, count=count)
        return tuple(found.values())

    def _new_text(self, *, last: bool) -> str:
        try:
            size = os.stat(self._path).st_size
            if size < self._position:
                # The log was cut to its tail, which has been read.
                self._position = size
            if size == self._position:
                return ""
            self._position = max(self._position, size - MAX_PASS_BYTES)
            with open(self._path, "rb") as file:
                file.seek(self._position)
                data = file.read(MAX_PASS_BYTES)
        except OSError:
            return ""
        if not last and len(data) < MAX_PASS_BYTES:
            data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        return data.decode("utf-8", "replace")


class LogScanner:
    """The tails of all ranks here."""

    def __init__(self, logs: LogFiles, dispatch: Callable[[Event], None]) -> None:
        self._logs = logs
        self._dispatch = dispatch
        self._tails: dict[RankRef, LogTail] = {}

    def follow(self, rank: Rank | None, *, from_end: bool = False) -> None:
        """Read this rank's log from now on. `from_end`: an earlier life of this agent read
        what is there already."""
        if rank is None or rank.ref in self._tails:
            return
        path = self._logs.rank(rank.ref)
        position = path.stat().st_size if from_end and path.exists() else 0
        self._tails[rank.ref] = LogTail(path, rank.launch.log_markers, position=position)

    async def scan_for_ever(self) -> None:
        """Every log in turn, then a pause."""
        while True:
            for ref, found in await asyncio.to_thread(_read_all, tuple(self._tails.items())):
                self._dispatch(LogRead(now_s=time.monotonic(), ref=ref, found=found))
            await asyncio.sleep(SCAN_S)

    def finish(self, ref: RankRef) -> None:
        """The rank is gone: its last lines, at once, and no more of it."""
        tail = self._tails.pop(ref, None)
        if tail is not None:
            self._dispatch(LogRead(now_s=time.monotonic(), ref=ref, found=tail.read(last=True), last=True))


def _read_all(tails: tuple[tuple[RankRef, LogTail], ...]) -> list[tuple[RankRef, tuple[Finding, ...]]]:
    found = [(ref, tail.read()) for ref, tail in tails]
    return [(ref, findings) for ref, findings in found if findings]
