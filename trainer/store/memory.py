"""What one job keeps in the rendezvous store: values, queues, and who waits for a key.

Pure: the caller brings the time and carries the answers out. Used by `trainer.store.server`,
one `Shelf` a job; what is on one shelf cannot be seen from another.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_KEYS = 1 << 20
MAX_BYTES = 256 << 20


class ShelfFull(Exception):
    """The job has put more into the store than one job may."""


@dataclass(eq=False, slots=True)
class Waiter:
    """A client that waits for keys; `missing` shrinks to none."""

    client: object
    missing: set[bytes]


@dataclass(slots=True)
class Shelf:
    """`used_s`: when a client of the job was last heard (the caller's clock)."""

    used_s: float = 0.0
    values: dict[bytes, bytes] = field(default_factory=dict)
    queues: dict[bytes, deque[bytes]] = field(default_factory=dict)
    waiters: dict[bytes, list[Waiter]] = field(default_factory=dict)
    held_bytes: int = 0

    @property
    def waiting(self) -> int:
        """Clients that wait for a key."""
        return len({id(waiter) for waiting in self.waiters.values() for waiter in waiting})

    def has(self, keys: Iterable[bytes]) -> bool:
        """True when every key has a value, or something in its queue."""
        return all(key in self.values or self.queues.get(key) for key in keys)

    def put(self, key: bytes, value: bytes) -> list[object]:
        """Set a value; the clients whose wait is over by it. Raises ShelfFull."""
        before = self.values.get(key)
        self._charge(len(value) - len(before) if before is not None else len(key) + len(value))
        self.values[key] = value
        return self._woken(key)

    def append(self, key: bytes, more: bytes) -> list[object]:
        """Lengthen a value, or begin one."""
        return self.put(key, self.values.get(key, b"") + more)

    def add(self, key: bytes, amount: int) -> tuple[int, list[object]]:
        """Count up from 0; the new number. Raises ValueError where the value is no number."""
        total = int(self.values.get(key, b"0")) + amount
        return total, self.put(key, str(total).encode("ascii"))

    def compare_set(self, key: bytes, expected: bytes, wanted: bytes) -> tuple[bytes, list[object]]:
        """torch's rule: an absent key takes `wanted` if nothing was expected, else `expected` is
        answered; a present one changes if it is as expected. Answers what stands there then."""
        present = self.values.get(key)
        if present is None and expected:
            return expected, []
        if present is None or present == expected:
            return wanted, self.put(key, wanted)
        return present, []

    def delete(self, key: bytes) -> bool:
        """True if there was one."""
        value = self.values.pop(key, None)
        if value is None:
            return False
        self.held_bytes -= len(key) + len(value)
        return True

    def push(self, key: bytes, value: bytes) -> list[object]:
        """Put a value at a queue's end; at most one waiting client is woken by it."""
        self._charge(len(key) + len(value))
        self.queues.setdefault(key, deque()).append(value)
        return self._woken(key, only_one=True)

    def pop(self, key: bytes) -> tuple[int, bytes | None]:
        """(length of the queue before, its first value or None)."""
        queue = self.queues.get(key)
        if not queue:
            return 0, None
        value = queue.popleft()
        self.held_bytes -= len(key) + len(value)
        if not queue:
            del self.queues[key]
        return (len(queue) + 1), value

    def wait(self, client: object, keys: Iterable[bytes]) -> bool:
        """True when there is nothing to wait for; else the client is told once all are there."""
        waiter = Waiter(client, {key for key in keys if not self.has((key,))})
        for key in waiter.missing:
            self.waiters.setdefault(key, []).append(waiter)
        return not waiter.missing

    def leave(self, client: object) -> None:
        """The client waits no more."""
        for key in [key for key, waiting in self.waiters.items() if any(one.client is client for one in waiting)]:
            left = [one for one in self.waiters[key] if one.client is not client]
            if left:
                self.waiters[key] = left
            else:
                del self.waiters[key]

    def _charge(self, size_bytes: int) -> None:
        if self.held_bytes + size_bytes > MAX_BYTES or len(self.values) >= MAX_KEYS:
            raise ShelfFull(f"{len(self.values)} keys and {self.held_bytes} bytes are the most one job may keep")
        self.held_bytes += size_bytes

    def _woken(self, key: bytes, *, only_one: bool = False) -> list[object]:
        waiting = self.waiters.pop(key, [])
        done = []
        for number, waiter in enumerate(waiting):
            waiter.missing.discard(key)
            if waiter.missing:
                continue
            done.append(waiter.client)
            if only_one:
                left = waiting[number + 1 :]
                if left:
                    self.waiters[key] = left
                break
        return done
