"""SIGTERM: somebody wants this process gone soon.

The handler only remembers; the loop leaves at the next step boundary (saving first where
that is needed), see `trainer.loop`. The signal goes to the whole process group, so the rank's
children (checkpoint writers, data-loader workers) get it too, and the save needs them: from
`listen` on every child, forked or spawned by multiprocessing, blocks SIGTERM, whatever
handler its library installs. They end with the rank, which kills them, or by the SIGKILL
after the grace. SIGUSR2 dumps all stacks into the rank's log, also while the training thread
is blocked in C++: the agent collects them from there.
"""

import atexit
import faulthandler
import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import util
from types import FrameType
from typing import Any


class Preemption:
    """Call `listen` in the main thread."""

    def __init__(self) -> None:
        self.asked_at_s: float | None = None

    @property
    def asked(self) -> bool:
        """True once SIGTERM came."""
        return self.asked_at_s is not None

    def age_s(self) -> float:
        """Seconds since SIGTERM, 0 before."""
        return 0.0 if self.asked_at_s is None else time.monotonic() - self.asked_at_s

    def listen(self) -> None:
        """Install the handlers."""

        def remember(_number: int, _frame: FrameType | None) -> None:
            if self.asked_at_s is None:
                self.asked_at_s = time.monotonic()

        signal.signal(signal.SIGTERM, remember)
        shield_children()
        faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)


@functools.cache
def shield_children() -> None:
    """From now on children are deaf to SIGTERM. torch's data-loader workers set their own handler
    and would die of it, which ends the rank in its next batch, before it has saved; and the
    queue that Megatron saves through lives in a process that its first save spawns."""
    os.register_at_fork(after_in_child=_block)
    util.spawnv_passfds = _deaf(util.spawnv_passfds)
    atexit.register(_end_children)


def _block() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


def _deaf(spawn: Callable[..., int]) -> Callable[..., int]:
    """What is blocked here while it is started stays blocked there."""

    def spawn_deaf(*given: Any) -> int:
        before = _block()
        try:
            return spawn(*given)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return spawn_deaf


def _end_children() -> None:
    """A program that ends with a loader still open, by an exception or sys.exit, would wait for
    ever: multiprocessing asks its daemons to go with the SIGTERM that they do not hear."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
