"""What is written once and never changed, kept by the process that has read it.

The key must name one row for ever, with its time, as numbers come back where a transaction is undone
or a database is restored. Nothing here is ever wrong, only forgotten: the oldest goes first.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lasting(Generic[T]):
    """Up to `room` of them, as `keep` counts them. Of any thread."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._used = 0
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """None where it was not kept, or is forgotten."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def keep(self, key: Hashable, value: T, *, size: int) -> None:
        """It takes so much of the room. What takes nothing, or all of it, is not kept."""
        with self._lock:
            if key in self._kept or not 0 < size <= self._room:
                return
            self._kept[key] = value, size
            self._used += size
            while self._used > self._room:
                self._used -= self._kept.popitem(last=False)[1][1]
