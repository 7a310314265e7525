"""Reading the telemetry stream. Hints: a hole costs points in a chart, and is counted.

Only sealed batches of our web processes are taken (`runtime.batches`); whatever else lies
in the stream is skipped, counted, and never read again. A batch that is missing means that
we were deaf for a moment, and so that silence is no evidence.
"""

import time
from collections.abc import Callable

import msgspec
import redis

from controlplane.protocol.codec import decode_from_agent
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.frames import AgentFrame
from controlplane.runtime import bus, metrics
from controlplane.runtime.batches import BatchReader, Item
from controlplane.runtime.seal import Broken, tally
from controlplane.sentinel.heard import Heard

BLOCK_MS = 100
MAX_ENTRIES = 100
# So long without an entry: is it still the stream whose ids we know?
QUIET_S = 1.0


class StreamReader:
    """`ok`: Redis answered the last read. `batches`: what came from whom. Starts at the newest
    entry: older pictures are history. `wanted`: of which nodes frames are read; of others they cost only their way."""

    def __init__(self, wanted: Callable[[str], bool] | None = None) -> None:
        self.ok = False
        self._wanted = wanted or (lambda node_id: True)
        self.batches = BatchReader()
        self._client: redis.Redis | None = None
        self._last_id = "$"
        self._heard_at = time.monotonic()
        self._restarted = False

    def read(self) -> list[Heard]:
        """What came since the last read; waits up to BLOCK_MS. Empty when Redis is away."""
        try:
            client = self._client or bus.blocking_client()
            self._client = client
            entries = self._entries(client)
        except (redis.RedisError, OSError) as error:
            bus.health.note(error)
            self._drop()
            return []
        self.ok = True
        bus.health.note(None)
        heard: list[Heard] = []
        for entry_id, fields in entries:
            self._last_id = entry_id.decode()
            self._heard_at = time.monotonic()
            heard += self._frames(fields)
        return heard

    def take_missing(self) -> int:
        """How many batches were lost on their way since this was asked."""
        missing, self.batches.missing = self.batches.missing, 0
        return missing

    def _entries(self, client: redis.Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
        try:
            if self._restarted or time.monotonic() - self._heard_at > QUIET_S:
                self._restarted, self._heard_at = False, time.monotonic()
                self._find_restart(client)
            answer = client.xread({bus.STREAM: self._last_id}, count=MAX_ENTRIES, block=BLOCK_MS)
        except redis.ResponseError as error:
            if not bus.wrong_type(error):
                raise
            tally.note("stream", str(error))
            client.delete(bus.STREAM)
            self._last_id = "0"
            return []
        return answer[0][1] if answer else []  # type: ignore[no-any-return]

    def _find_restart(self, client: redis.Redis) -> None:
        """A stream that was made anew may count from lower ids: then begin at its start."""
        if self._last_id == "$":
            return
        newest = client.xrevrange(bus.STREAM, count=1)
        if not newest or _number(newest[0][0].decode()) < _number(self._last_id):
            self._last_id = "0"

    def _drop(self) -> None:
        """Connect anew; it may be another Redis, to which our ids mean nothing."""
        if self._client is not None:
            self._client.close()
        self._client, self.ok, self._restarted = None, False, True

    def _frames(self, fields: dict[bytes, bytes]) -> list[Heard]:
        try:
            batch = self.batches.open(fields.get(b"d"))
        except (Broken, msgspec.DecodeError) as error:
            code = error.code if isinstance(error, Broken) else "garbage"
            metrics.FRAMES.labels(result=f"stream_{code}").inc()
            tally.note(f"telemetry_{code}")
            return []
        return [heard for item in batch.items if self._wanted(item[0]) and (heard := _heard(item)) is not None]


def _heard(item: Item) -> Heard | None:
    node_id, session_id, at_s, data = item
    try:
        frame = decode_from_agent(data)
    except ProtocolError:
        metrics.FRAMES.labels(result="stream_garbage").inc()
        return None
    if not isinstance(frame, AgentFrame):
        return None
    return Heard(node_id=node_id, session_id=session_id, at_s=at_s, frame=frame)


def _number(entry_id: str) -> tuple[int, int]:
    first, _, second = entry_id.partition("-")
    return int(first), int(second or 0)
