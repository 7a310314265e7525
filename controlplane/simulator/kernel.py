"""Virtual time, seeded chance and the tape."""

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any

MAX_EVENTS = 2_000_000


class Ended(Exception):
    """What was running has ended in the middle: nothing more of it happens."""


class Kernel:
    """Runs callbacks in order of (time, order of scheduling); nothing else moves time."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)
        self.tape: list[str] = []
        self._order = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` in `delay_s` virtual seconds."""
        self._order += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._order, call, args))

    def run(self, until_s: float) -> None:
        """Run everything that is due up to `until_s`."""
        for _ in range(MAX_EVENTS):
            if not self._queue or self._queue[0][0] > until_s:
                self.now_s = until_s
                return
            self.now_s, _, call, args = heapq.heappop(self._queue)
            try:
                call(*args)
            except Ended:
                continue
        raise RuntimeError(f"more than {MAX_EVENTS} events: something in the world feeds itself")

    def between(self, low: float, high: float) -> float:
        """Uniform draw."""
        return self.random.uniform(low, high)

    def log(self, kind: str, text: str) -> None:
        """One line of the tape."""
        self.tape.append(f"{self.now_s:10.3f} {kind:<10} {text}")

    def digest(self) -> str:
        """SHA-256 of the tape: equal seeds, equal digests."""
        return hashlib.sha256("\n".join(self.tape).encode()).hexdigest()
