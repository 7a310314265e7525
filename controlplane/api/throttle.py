"""Rate limits: token buckets in this process.

Simple on purpose: with n web processes an account gets at most n times the rate, and a
restart forgives everything. That stops loops; a proxy stops floods; the guessing of passwords
is met by `access.gate`, in rows that all processes share.
"""

import math
import threading
import time
from collections.abc import Callable

MAX_BUCKETS = 10_000
REQUESTS_A_SECOND = 50.0
REQUEST_BURST = 200.0


class Buckets:
    """`rate` tokens a second up to `burst`, per name."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self.burst = burst
        self._levels: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> int | None:
        """None when there was a token, else whole seconds until there is one."""
        now_s = self._clock()
        with self._lock:
            level, at_s = self._levels.pop(name, (self._burst, now_s))
            level = min(self._burst, level + (now_s - at_s) * self._rate)
            taken = level >= 1.0
            # Re-inserted last, so the oldest name is the least recently seen.
            self._levels[name] = (level - 1.0 if taken else level, now_s)
            if len(self._levels) > MAX_BUCKETS:
                del self._levels[next(iter(self._levels))]
        return None if taken else max(1, math.ceil((1.0 - level) / self._rate))

    def left(self, name: str) -> tuple[int, int]:
        """Whole tokens that there are now, and whole seconds until all are back; takes none."""
        now_s = self._clock()
        with self._lock:
            level, at_s = self._levels.get(name, (self._burst, now_s))
        level = min(self._burst, level + (now_s - at_s) * self._rate)
        return int(level), math.ceil((self._burst - level) / self._rate)

    def clear(self) -> None:
        """Forget everybody."""
        with self._lock:
            self._levels.clear()


requests = Buckets(REQUESTS_A_SECOND, REQUEST_BURST)


def headers(account: str) -> dict[str, str]:
    """What an account is told with each answer: how many requests at once, how many of these are left, and the seconds
    until all are back."""
    left, back_s = requests.left(account)
    return {
        "RateLimit-Limit": f"{requests.burst:.0f}", "RateLimit-Remaining": str(left), "RateLimit-Reset": str(back_s)
    }  # fmt: skip


def allow(account: str) -> int | None:
    """Take one request of an account; seconds to wait when there is none left."""
    return requests.take(account)
