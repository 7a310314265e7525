"""Faults a job may have injected into its own ranks, for demos and chaos tests.

Honoured only when the job allows them (`TrainerConfig.allow_faults`); the check is here.
"""

import threading
import time

from controlplane.protocol.rank import InjectFault

HANG_POLL_S = 0.2


class InjectedException(RuntimeError):
    """The `exception` fault; ends the rank like any bug would."""


class Faults:
    """Written by the control link's thread, read by the training loop."""

    def __init__(self, *, allowed: bool) -> None:
        self.slow_s = 0.0
        self._allowed = allowed
        self._hang_until: float | None = None
        self._exception = False
        self._nan = False
        self._lock = threading.Lock()

    def inject(self, fault: InjectFault) -> bool:
        """Arm `fault`; False when the job does not allow it or the kind is unknown.

        kinds: hang (`value` seconds, 0 for ever), slow (`value` seconds more per
        micro-batch, 0 heals), exception, nan.
        """
        if not self._allowed:
            return False
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
