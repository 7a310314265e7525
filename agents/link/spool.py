"""Device readings of the time when the link was down, to be sent afterwards.

Kept encoded (about 150 bytes a device), bounded, oldest dropped first.
"""

from collections import deque

import msgspec

from controlplane.protocol.samples import DeviceSample

MAX_ROUNDS = 3_600  # an hour at 1 Hz, about 4 MB with 8 devices
BACKFILL_PER_SECOND = 60  # an hour's outage is told within a minute

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[DeviceSample, ...]).decode


class Spool:
    """Rounds of samples with the moment they were taken (node's monotonic seconds)."""

    def __init__(self, max_rounds: int = MAX_ROUNDS) -> None:
        self._rounds: deque[tuple[float, bytes]] = deque(maxlen=max_rounds)
        self.dropped_rounds = 0

    def __len__(self) -> int:
        return len(self._rounds)

    def put(self, at_s: float, samples: tuple[DeviceSample, ...]) -> None:
        """Keep a round; the oldest makes room."""
        if len(self._rounds) == self._rounds.maxlen:
            self.dropped_rounds += 1
        self._rounds.append((at_s, _encode(samples)))

    def take(self) -> tuple[float, tuple[DeviceSample, ...]] | None:
        """The oldest round, removed."""
        if not self._rounds:
            return None
        at_s, data = self._rounds.popleft()
        return at_s, _decode(data)
