"""Ends what a rank has left behind: its process group, and its control group where it has one.

Called by the runtime when a rank's own process is gone; answers `GroupGone` when nothing is
left. It signals only members of the dead leader's group, and what the kernel says is in the
rank's control group.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

from agents.core.events import Event, GroupGone
from agents.core.state import Identity
from agents.ranks.cgroups import ControlGroups
from agents.ranks.identity import group_members
from controlplane.protocol.launch import RankRef

_FIRST_S, _MAX_S = 0.01, 1.0


class Sweeper:
    """Looks again until all of it is gone; a process in D state takes its time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, groups: ControlGroups, dispatch: Callable[[Event], None]
    ) -> None:
        self._loop = loop
        self._groups = groups
        self._dispatch = dispatch

    def sweep(self, ref: RankRef, identity: Identity | None, wait_s: float = _FIRST_S) -> None:
        """Kill what is left, and look again after `wait_s`."""
        members = group_members(identity) if identity is not None else ()
        if self._groups.kill(ref) and not members:
            self._dispatch(GroupGone(now_s=time.monotonic(), ref=ref))
            return
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._loop.call_later(wait_s, self.sweep, ref, identity, min(wait_s * 2, _MAX_S))
