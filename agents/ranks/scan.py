"""Reads what ranks append to their logs, in a thread, for lines with markers.

Called by the runtime: once a second for all ranks, and once more for a rank that is gone,
before its end is told, so that its last words come first. What came while no agent ran is
read by the next one, from where the last told line stood: a line is told again rather than
never. A rank that writes faster than this reads loses lines here, not in its log. It never
changes a file.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agents.core.events import Event, LogRead
from agents.core.state import Finding, Rank
from agents.ranks.files import open_regular
from agents.ranks.logs import LogFiles, printable
from controlplane.protocol.launch import RankRef
from controlplane.protocol.markers import marker_of, may_hold_any

SCAN_S = 1.0
MAX_PASS_BYTES = 256 * 1024
MAX_PASS_LINES = 5_000
MAX_LINE_CHARS = 300


class LogTail:
    """One log, read from `position` on. Its methods are called from several threads; what was
    found waits in here, so that whoever asks next has all of it."""

    def __init__(self, path: Path, own: dict[str, str], *, position: int = 0) -> None:
        self._path = path
        self._own = own
        self._position = position
        self._found: dict[str, Finding] = {}
        self._over = False
        self._lock = threading.Lock()

    def read(self, *, last: bool = False) -> None:
        """Look for markers in the whole lines since the last call; `last`: in an unfinished one
        too, and in nothing that follows."""
        with self._lock:
            if self._over:
                return
            self._over = last
            text = self._new_text(last=last)
            if may_hold_any(text, self._own):
                self._search(text)

    def take(self) -> tuple[tuple[Finding, ...], int]:
        """(what was found since the last call, bytes of the log that were read by now)."""
        with self._lock:
            found, self._found = self._found, {}
            return tuple(found.values()), self._position

    def _search(self, text: str) -> None:
        for line in text.splitlines()[-MAX_PASS_LINES:]:
            marker = marker_of(line, self._own)
            if marker is not None:
                count = self._found[marker].count + 1 if marker in self._found else 1
                shown = printable(line).strip()[:MAX_LINE_CHARS]
                self._found[marker] = Finding(marker=marker, line=shown, count=count)

    def _new_text(self, *, last: bool) -> str:
        try:
            size = os.lstat(self._path).st_size
            if size < self._position:
                # The log was cut to its tail, which has been read.
                self._position = size
            if size == self._position:
                return ""
            self._position = max(self._position, size - MAX_PASS_BYTES)
            with open(open_regular(self._path), "rb") as file:
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

    def follow(self, rank: Rank | None) -> None:
        """Read this rank's log from now on: what was not told of it yet, at most MAX_PASS_BYTES."""
        if rank is None or rank.ref in self._tails:
            return
        path = self._logs.rank(rank.ref)
        size = path.stat().st_size if path.exists() else 0
        # Shorter than what was read: it was cut since, and nobody knows what of it was read.
        position = rank.log_read_bytes if rank.log_read_bytes <= size else 0
        self._tails[rank.ref] = LogTail(path, rank.launch.log_markers, position=position)

    async def scan_for_ever(self) -> None:
        """Every log in turn, then a pause."""
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        """Every log, once. A rank may end meanwhile: then `finish` has told what was found."""
        tails = tuple(self._tails.items())
        await asyncio.to_thread(_read_all, tails)
        for ref, tail in tails:
            self._tell(ref, tail)

    def finish(self, ref: RankRef) -> None:
        """The rank is gone: its last lines, at once, and no more of it."""
        tail = self._tails.pop(ref, None)
        if tail is not None:
            tail.read(last=True)
            self._tell(ref, tail, last=True)

    def _tell(self, ref: RankRef, tail: LogTail, *, last: bool = False) -> None:
        found, read_bytes = tail.take()
        if found or last:
            self._dispatch(LogRead(now_s=time.monotonic(), ref=ref, found=found, read_bytes=read_bytes, last=last))


def _read_all(tails: tuple[tuple[RankRef, LogTail], ...]) -> None:
    for _, tail in tails:
        tail.read()
