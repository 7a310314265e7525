"""How the demo is told to end: once for an orderly stop, twice for one at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130


class Ending:
    """Listens for SIGINT and SIGTERM from its making on. `kill` ends every process at once; it
    is called by the second signal, wherever the first stop has come to."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._event = threading.Event()
        self._signals = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def asked(self) -> bool:
        """It is time to stop."""
        return self._event.is_set()

    def after(self, seconds: float) -> None:
        """Ask by itself, `seconds` from now. Holds up no exit that comes before."""
        timer = threading.Timer(seconds, self._event.set)
        timer.daemon = True
        timer.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._event.set()
        if self._signals > 1:
            self._kill()
            os._exit(INTERRUPTED)
