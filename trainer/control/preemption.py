"""SIGTERM: somebody wants this process gone soon.

The handler only remembers; the loop leaves at the next step boundary (saving first where
that is needed), see `trainer.loop`. The signal goes to the whole process group, so the rank's
children (checkpoint writers, data-loader workers) get it too, and the save needs them: from
`listen` on every forked child blocks SIGTERM, whatever handler its library installs. They
end with the rank, which kills them, or by the SIGKILL after the grace. SIGUSR2 dumps all
stacks into the rank's log, also while the training thread is blocked in C++: the agent
collects them from there.
"""

import atexit
import faulthandler
import os
import signal
import sys
import time
from types import FrameType


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


def shield_children() -> None:
    """From now on forked children are deaf to SIGTERM. torch's data-loader workers set their
    own handler and would die of it, which ends the rank in its next batch, before it has saved."""
    os.register_at_fork(after_in_child=_keep_working)
    atexit.register(_end_children)


def _keep_working() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _end_children() -> None:
    """A program that ends with a loader still open, by an exception or sys.exit, would wait for
    ever: multiprocessing asks its daemons to go with the SIGTERM that they do not hear."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        if child.daemon:
            child.kill()
