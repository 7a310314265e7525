"""Refusals in the audit log, without letting whoever is refused fill it.

Called by the API's edge, by signing in and by whatever else turns somebody away. The first
refusal of a kind is a row at once; the same again within a minute is counted, and told by one
row when the minute is over. Never raises: a log that cannot be written changes no answer.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from django.db import DatabaseError

from controlplane.access.audit import audit
from controlplane.runtime.logs import get
from controlplane.runtime.requests import current

WINDOW_S = 60.0
MAX_ROWS_A_WINDOW = 300
MAX_KEYS = 5000
MANY = "many"
_log = get(__name__)
Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Window:
    """Since when, and how often again since its row."""

    opened_s: float
    reason: str
    again: int = 0


class Refusals:
    """Of one process. Keyed by who, what, which and from where; past MAX_ROWS_A_WINDOW rows or
    MAX_KEYS keys a minute, refusals are counted by their action alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[Key, _Window] = {}
        self._lock = threading.Lock()
        self._rows = 0
        self._minute_s = clock()

    def note(self, actor: str, action: str, subject: str, *, reason: str) -> bool:
        """True if it became a row of its own at once."""
        self.flush()
        origin = current().address
        key = (actor, action, subject, origin)
        with self._lock:
            moment = self._clock()
            window = self._windows.get(key)
            if window is None and (self._rows >= MAX_ROWS_A_WINDOW or len(self._windows) >= MAX_KEYS):
                key = (MANY, action, MANY, "")
                window = self._windows.setdefault(key, _Window(moment, "more refusals than are listed one by one"))
            if window is not None:
                window.again += 1
                return False
            self._windows[key] = _Window(moment, reason)
            self._rows += 1
        _write(key, reason, 0)
        return True

    def flush(self, *, all_of_them: bool = False) -> int:
        """Tell what was counted in the minutes that are over (or in all); returns how many rows."""
        with self._lock:
            moment = self._clock()
            if moment - self._minute_s >= WINDOW_S:
                self._rows, self._minute_s = 0, moment
            over = [k for k, w in self._windows.items() if all_of_them or moment - w.opened_s >= WINDOW_S]
            ended = [(key, self._windows.pop(key)) for key in over]
        told = [(key, window) for key, window in ended if window.again]
        for key, window in told:
            _write(key, window.reason, window.again)
        return len(told)


def _write(key: Key, reason: str, again: int) -> None:
    actor, action, subject, origin = key
    try:
        audit(actor, action, subject, reason=reason, origin=origin, data={"repeated": again} if again else None)
    except DatabaseError as error:
        _log.error("a refusal could not be audited", actor=actor, action=action, error=str(error))


refusals = Refusals()
