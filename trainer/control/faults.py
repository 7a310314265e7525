"""Faults a job may have injected into its own ranks, for demos and rehearsals.

Honoured only when the job allows them (`TrainerConfig.allow_faults`); the check is here.
Faults of a computation (hang, slow, exception, nan) wait for the next compute; those of a
process (abort, segfault, gil_lock) and of its connections happen at once, wherever the
training thread is.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable

from controlplane.protocol.rank import InjectFault

HANG_POLL_S = 0.2
FOREVER_S = 2**31 - 1


class InjectedException(RuntimeError):
    """The `exception` fault; ends the rank like any bug would."""


class Faults:
    """Written by the control link's thread, read by the training loop. `cut` breaks the
    rank's connections to other replicas; it returns how many there were."""

    def __init__(self, *, allowed: bool) -> None:
        self.slow_s = 0.0
        self.cut: Callable[[], int] = _nothing_to_cut
        self._allowed = allowed
        self._hang_until: float | None = None
        self._exception = False
        self._nan = False
        self._lock = threading.Lock()

    def inject(self, fault: InjectFault) -> bool:
        """Arm `fault`, or do it; False when the job does not allow it, the kind is unknown
        or there is nothing to break.

        kinds: hang and gil_lock (`value` seconds, 0 for ever), slow (`value` seconds more per
        micro-batch, 0 heals), exception, nan, abort, segfault, communication.
        """
        if not self._allowed:
            return False
        match fault.kind:
            case "abort":
                os.abort()
            case "segfault":
                ctypes.string_at(0)
            case "gil_lock":
                _hold_the_interpreter(fault.value)
            case "communication":
                return self.cut() > 0
            case _:
                return self._arm(fault)
        return True

    def _arm(self, fault: InjectFault) -> bool:
        with self._lock:
            match fault.kind:
                case "hang":
                    self._hang_until = time.monotonic() + fault.value if fault.value > 0 else float("inf")
                case "slow":
                    self.slow_s = max(0.0, fault.value)
                case "exception":
                    self._exception = True
                case "nan":
                    self._nan = True
                case _:
                    return False
        return True

    def at_compute(self) -> None:
        """Hang or raise, if told to. Called at the start of every compute."""
        while self._hang_until is not None and time.monotonic() < self._hang_until:
            time.sleep(HANG_POLL_S)
        with self._lock:
            self._hang_until = None
            raise_now, self._exception = self._exception, False
        if raise_now:
            raise InjectedException("injected exception")

    def take_nan(self) -> bool:
        """True once after a `nan` fault."""
        with self._lock:
            taken, self._nan = self._nan, False
        return taken


def _hold_the_interpreter(seconds: float) -> None:
    """Sleep in C with the GIL held: no thread of this process runs Python meanwhile. The
    agent's signals go to the main thread, so they do not cut the sleep short."""
    sleep = ctypes.PyDLL(None).sleep
    sleep(ctypes.c_uint(max(1, round(seconds)) if seconds > 0 else FOREVER_S))


def _nothing_to_cut() -> int:
    return 0
