"""Reading the telemetry stream. Hints: a hole costs points in a chart, and is counted."""

import msgspec
import redis

from controlplane.protocol.codec import decode_from_agent
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.frames import AgentFrame
from controlplane.runtime import bus, metrics
from controlplane.runtime.logs import get
from controlplane.sentinel.picture import Heard

BLOCK_MS = 100
MAX_ENTRIES = 500
_log = get(__name__)
_decode = msgspec.msgpack.Decoder(list[tuple[str, str, float, bytes]]).decode


class StreamReader:
    """`ok`: Redis answered the last read. Starts at the newest entry: older pictures are
    history."""

    def __init__(self) -> None:
        self.ok = False
        self._client: redis.Redis | None = None
        self._last_id = "$"

    def read(self) -> list[Heard]:
        """What came since the last read; waits up to BLOCK_MS. Empty when Redis is away."""
        try:
            client = self._client or bus.blocking_client()
            self._client = client
            answer = client.xread({bus.STREAM: self._last_id}, count=MAX_ENTRIES, block=BLOCK_MS)
        except (redis.RedisError, OSError) as error:
            bus.health.note(error)
            self._drop()
            return []
        self.ok = True
        bus.health.note(None)
        if not answer:
            return []
        heard: list[Heard] = []
        for entry_id, fields in answer[0][1]:
            self._last_id = entry_id.decode()
            heard += _frames(fields)
        return heard

    def _drop(self) -> None:
        """Begin anew: after a restart of Redis old ids mean nothing."""
        if self._client is not None:
            self._client.close()
        self._client, self.ok, self._last_id = None, False, "0"


def _frames(fields: dict[bytes, bytes]) -> list[Heard]:
    try:
        items = _decode(fields[b"d"])
    except (msgspec.DecodeError, KeyError):
        metrics.FRAMES.labels(result="stream_garbage").inc()
        return []
    heard = []
    for node_id, session_id, at_s, data in items:
        try:
            frame = decode_from_agent(data)
        except ProtocolError:
            metrics.FRAMES.labels(result="stream_garbage").inc()
            continue
        if isinstance(frame, AgentFrame):
            heard.append(Heard(node_id=node_id, session_id=session_id, at_s=at_s, frame=frame))
    return heard
