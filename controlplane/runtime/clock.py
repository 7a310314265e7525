"""Server time. Only the server's own times are ever compared with each other; that the clock was
set is told by the monotonic one, which no step moves."""

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

CLOCK_STEP_S = 1.0
"""A wall clock is steered by less; more is somebody setting it."""
AHEAD_S = 1.0
"""Server processes tell the time by clocks that agree so far: a time further ahead is not known."""
SEEN_WITHIN_S = 2.0
"""A step is seen by the leading sentinel within this: its turn is shorter."""
SETTLE_S = 5.0
"""So long after a step nothing is concluded from what is due: the leader moves that first."""


def now() -> datetime:
    """Aware, UTC."""
    return datetime.now(UTC)


def now_s() -> float:
    """Unix seconds."""
    return now().timestamp()


def from_s(value: float) -> datetime:
    """Unix seconds to an aware datetime."""
    return datetime.fromtimestamp(value, UTC)


def ago(age_s: float) -> datetime:
    """The server's time `age_s` seconds ago; a negative age is a peer's mistake and counts as 0."""
    return now() - timedelta(seconds=max(0.0, age_s))


def after(seconds: float) -> datetime:
    """The server's time in `seconds`."""
    return now() + timedelta(seconds=seconds)


def iso(value: datetime | None) -> str | None:
    """ISO-8601 with microseconds, UTC, as every `*_at` field of the API."""
    return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def age_s(value: datetime | None) -> float | None:
    """Seconds since `value`; None stays None."""
    return None if value is None else max(0.0, (now() - value).total_seconds())


@dataclass(slots=True)
class ClockWatch:
    """`set_s`: what the clock was last set to (Unix seconds), `step_s`: by how much."""

    set_s: float | None = None
    step_s: float = 0.0
    _ahead_s: float | None = None

    def look(self, wall_s: float, monotonic_s: float) -> float:
        """Seconds by which the clock was set since the last look; 0.0: it was not."""
        ahead_s = wall_s - monotonic_s
        step_s = 0.0 if self._ahead_s is None else ahead_s - self._ahead_s
        self._ahead_s = ahead_s
        if abs(step_s) < CLOCK_STEP_S:
            return 0.0
        self.set_s, self.step_s = wall_s, step_s
        return step_s


class _Steps:
    """When this process last saw that the clock was set."""

    def __init__(self) -> None:
        self._watch, self._lock = ClockWatch(), threading.Lock()
        self._seen_at: float | None = None

    def lately(self, wall_s: float, monotonic_s: float) -> bool:
        """It was, within `SETTLE_S`."""
        with self._lock:
            if self._watch.look(wall_s, monotonic_s):
                self._seen_at = monotonic_s
            return self._seen_at is not None and monotonic_s - self._seen_at < SETTLE_S


_steps = _Steps()


def set_lately() -> bool:
    """The clock of this process was set within `SETTLE_S`, since it was first asked."""
    return _steps.lately(time.time(), time.monotonic())
