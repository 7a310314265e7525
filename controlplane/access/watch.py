"""The watch over open streams of a process: one look for all of them, each LOOK_S.

`guarded` hands a stream a `Watched`; once the rows say that who opened it may no longer have
it, `ended` is set with the reason, and the stream ends itself. A look that fails (the database
is away) is tried again; what could not be confirmed for UNSEEN_S ends too: a revocation that
cannot be seen must not be a way to go on. It never reads Redis and waits for no push.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from django.db import DatabaseError, close_old_connections

from controlplane.access.models import Scope
from controlplane.access.rights import Rights
from controlplane.access.scopes import allows
from controlplane.access.standing import Standing, rights_now
from controlplane.runtime.logs import get

TICK_S = 0.25
LOOK_S = 1.0
UNSEEN_S = 4.0
"""A stream ends within 5 s of its cause, also where a look hangs."""

SIGNED_OUT = "signed out"
UNCONFIRMED = "unconfirmed"

_Found = tuple[float, dict[Standing, Rights]]

_log = get(__name__)


class Watched:
    """One open stream. `reason` is what its reader is told once `ended` is set. `rights`: its reader's, as last looked
    up (None: not yet); what it tells follows them."""

    def __init__(self, standing: Standing, needed: Scope) -> None:
        self.standing = standing
        self.needed = needed
        self.ended = asyncio.Event()
        self.reason = ""
        self.rights: Rights | None = None
        self.seen_s = time.monotonic()

    def end(self, reason: str) -> None:
        """Once; a later reason changes nothing."""
        if not self.ended.is_set():
            self.reason = reason
            self.ended.set()


class Watch:
    """The streams of one event loop. The looking task lives while there is one."""

    def __init__(self) -> None:
        self.streams: set[Watched] = set()
        self._task: asyncio.Task[None] | None = None
        # A thread of its own: a look must not wait behind the reads it guards.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="watch-db")

    @contextlib.asynccontextmanager
    async def guarded(self, standing: Standing, needed: Scope) -> AsyncIterator[Watched]:
        """Watched from here to the end of the block."""
        watched = Watched(standing, needed)
        self.streams.add(watched)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep_looking())
        try:
            yield watched
        finally:
            self.streams.discard(watched)

    async def _keep_looking(self) -> None:
        look: asyncio.Future[_Found | None] | None = None
        next_s = time.monotonic()
        while self.streams:
            await asyncio.sleep(TICK_S)
            if look is not None and look.done():
                self._apply(look.result())
                look = None
            if look is None and time.monotonic() >= next_s:
                next_s = time.monotonic() + LOOK_S
                standings = [watched.standing for watched in self.streams]
                look = asyncio.get_running_loop().run_in_executor(self._pool, _look, standings)
            self._end_unseen()

    def _apply(self, found: _Found | None) -> None:
        if found is None:
            return
        began_s, rights = found
        for watched in self.streams:
            if watched.seen_s > began_s:
                continue
            held = rights.get(watched.standing)
            if held is not None and allows(held.fleet, watched.needed):
                watched.seen_s, watched.rights = began_s, held
            else:
                watched.end(SIGNED_OUT)

    def _end_unseen(self) -> None:
        limit_s = time.monotonic() - UNSEEN_S
        for watched in self.streams:
            if watched.seen_s < limit_s:
                watched.end(UNCONFIRMED)


def _look(standings: list[Standing]) -> _Found | None:
    """(when it began, what each may do); None where the database did not answer."""
    began_s = time.monotonic()
    close_old_connections()
    try:
        return began_s, rights_now(standings)
    except DatabaseError as error:
        _log.warning("open streams could not be confirmed", error=str(error))
        return None
    finally:
        close_old_connections()


_watches: dict[asyncio.AbstractEventLoop, Watch] = {}


def watch() -> Watch:
    """The watch of the running loop; those of closed loops are forgotten."""
    loop = asyncio.get_running_loop()
    if loop not in _watches:
        for old in [one for one in _watches if one.is_closed()]:
            del _watches[old]
        _watches[loop] = Watch()
    return _watches[loop]
