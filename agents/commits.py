"""Brings what the core wants kept to the journal's disk, in the order of arrival.

Called by the runtime; answers each `Commit` with a `Journaled`. What needs no fsync goes at once if
nobody is waiting. It decides nothing.
"""

import asyncio
import time
from collections.abc import Callable

from agents.core.effects import Commit
from agents.core.events import Event, Journaled
from agents.errors import JournalError
from agents.link.journal import Journal


class Committer:
    """`busy`: a sync is under way, so the journal must not be compacted now."""

    def __init__(self, journal: Journal, dispatch: Callable[[Event], None]) -> None:
        self._journal = journal
        self._dispatch = dispatch
        self._waiting: asyncio.Queue[Commit] = asyncio.Queue()
        self.busy = False

    def put(self, commit: Commit) -> None:
        """Answered at once, or after the sync that it needs or waits for."""
        if commit.durable or self.busy or not self._waiting.empty():
            self._waiting.put_nowait(commit)
        else:
            self._answer(commit, self._journal.error)

    async def run(self) -> None:
        """For ever."""
        while True:
            commits = [await self._waiting.get()]
            while not self._waiting.empty():
                commits.append(self._waiting.get_nowait())
            self.busy = True
            error = self._journal.error
            try:
                if any(commit.durable for commit in commits):
                    await asyncio.to_thread(self._journal.sync)
            except (JournalError, RuntimeError) as raised:  # The latter: no thread can be had for it now.
                error = str(raised)
            finally:
                self.busy = False
            for commit in commits:
                self._answer(commit, error)

    def _answer(self, commit: Commit, error: str) -> None:
        self._dispatch(Journaled(now_s=time.monotonic(), command_ids=commit.command_ids, error=error))
