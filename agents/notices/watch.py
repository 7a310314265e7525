"""Reads this machine's notices every other second, in a thread, and hands what they say to the core.

Called by `agents.main` beside the link. A driver that fails says so in the log, once until it works again or says
something else; nothing follows from it.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from agents.config import Config
from agents.core.events import Event, NoticeRead
from agents.notices.base import Notice, NoticeError, Notices
from agents.notices.file import FileNotices
from agents.notices.http import EC2_URL, GCE_URL, Ec2Notices, GceNotices

EVERY_S = 2.0


def source_of(config: Config) -> Notices | None:
    """The driver that the settings choose; None: nobody is asked."""
    match config.notices:
        case "file":
            return FileNotices(Path(config.notice_file))
        case "ec2":
            return Ec2Notices(config.notice_url or EC2_URL)
        case "gce":
            return GceNotices(config.notice_url or GCE_URL)
    return None


class Watch:
    """One source, and what it said last."""

    def __init__(self, source: Notices, dispatch: Callable[[Event], None], note: Callable[..., None]) -> None:
        self._source, self._dispatch, self._note = source, dispatch, note
        self._failed = ""

    async def watch_for_ever(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Once."""
        try:
            found = await asyncio.to_thread(self._source.read, time.time())
        except NoticeError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                self._note("notice not read", error=error)
            return
        self._failed = ""
        self._dispatch(_event(found))


def _event(found: Notice | None) -> NoticeRead:
    """The wall clock is used here, where the provider used it, and nowhere after."""
    if found is None:
        return NoticeRead(now_s=time.monotonic(), leaves_in_s=None, reason="its provider says nothing of an end")
    left_s = max(0.0, found.at_unix_s - time.time())
    return NoticeRead(now_s=time.monotonic(), leaves_in_s=left_s, reason=found.reason)
