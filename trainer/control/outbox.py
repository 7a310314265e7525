"""Messages to the agent that must not be lost while it is away: a bounded queue.

Facts that membership and the ledger rest on go first when room is short: step reports
are shed before them, oldest first, and the number shed is counted. A message that the
agent would refuse never stands at the head, where everything else would wait behind it.
"""

import threading
from collections import deque

from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.rank import FromRank, StepReport

MAX_FACTS = 1024


class Outbox:
    """Thread-safe. The head is removed only after it was sent whole."""

    def __init__(self, limit: int = MAX_FACTS) -> None:
        self._limit = limit
        self._queue: deque[tuple[FromRank, bytes]] = deque()
        self._lock = threading.Lock()
        self._empty = threading.Event()
        self._empty.set()
        self.shed = 0

    def put(self, message: FromRank) -> None:
        """Append; sheds the oldest step report, or the oldest message, when full. Raises
        ProtocolError for one that is outside of the protocol's ranges: it is not queued."""
        line = encode_line(message)
        decode_line("from_rank", line)
        with self._lock:
            if len(self._queue) >= self._limit:
                self._shed_one()
            self._queue.append((message, line))
            self._empty.clear()

    def head(self) -> bytes | None:
        """The oldest message as a line, or None."""
        with self._lock:
            return self._queue[0][1] if self._queue else None

    def pop(self) -> None:
        """The head was sent."""
        with self._lock:
            if self._queue:
                self._queue.popleft()
            if not self._queue:
                self._empty.set()

    def wait_empty(self, timeout_s: float) -> bool:
        """True when everything was sent in time."""
        return self._empty.wait(timeout_s)

    def _shed_one(self) -> None:
        self.shed += 1
        for index, (message, _) in enumerate(self._queue):
            if isinstance(message, StepReport):
                del self._queue[index]
                return
        self._queue.popleft()
