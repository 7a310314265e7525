"""Ends of processes, within milliseconds, by pidfd; children are reaped here."""

import asyncio
import os
from collections.abc import Callable

from agents.core.state import Identity
from agents.ranks.identity import open_pidfd

OnGone = Callable[[int | None, int | None, bool], None]


class ProcessWatcher:
    """Calls back once per watched process with (exit_code, signal, known)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, Identity] = {}

    def watch(self, identity: Identity, on_gone: OnGone) -> None:
        """Watch a process, ours or not; if it is gone already, say so soon."""
        descriptor = open_pidfd(identity)
        if descriptor is None:
            self._loop.call_soon(on_gone, *_reap(identity.pid))
            return
        self._watched[descriptor] = identity
        self._loop.add_reader(descriptor, self._gone, descriptor, on_gone)

    def close(self) -> None:
        """Stop watching; nothing happens to the processes."""
        for descriptor in tuple(self._watched):
            self._forget(descriptor)

    def _gone(self, descriptor: int, on_gone: OnGone) -> None:
        identity = self._watched[descriptor]
        self._forget(descriptor)
        on_gone(*_reap(identity.pid))

    def _forget(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        del self._watched[descriptor]
        os.close(descriptor)


def _reap(pid: int) -> tuple[int | None, int | None, bool]:
    """The status of a child; somebody else's child keeps its status to its parent."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None, None, False
    if reaped != pid:
        return None, None, False
    code = os.waitstatus_to_exitcode(status)
    return (code, None, True) if code >= 0 else (None, -code, True)
