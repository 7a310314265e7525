"""Somebody who can write to Redis and holds no key: what he writes, and what he waits for."""

from collections.abc import Iterator
from typing import Any

import msgspec
import redis
from asgiref.sync import sync_to_async

from controlplane.protocol.codec import encode_frame
from controlplane.protocol.frames import AgentFrame
from controlplane.protocol.samples import DeviceSample
from controlplane.runtime.models import FrameCounter
from controlplane.runtime.seal import HEAD_BYTES, PEER
from tests.integration.backend.servers import RedisServer

STREAM = "hf:telemetry"
QUEUE = "holdfast"
NESTED = "[" * 100_000
PIDBOX = "/0.celery.pidbox"


def attacker(server: RedisServer) -> redis.Redis:
    """A client with all rights on Redis."""
    return redis.Redis.from_url(server.url, socket_timeout=10.0)


def hot_frames(session_id: str, node_id: str, at_s: float, *, count: int = 12) -> Iterator[list[Any]]:
    """What a burning device would report, with numbers no frame of the true node has reached."""
    for number in range(count):
        sample = DeviceSample(
            index=0, temperature_c=70.0 + 4.0 * number, power_w=300.0 * (1 + number % 2),
            utilization_ratio=0.9, ecc_uncorrected_total=number,
        )  # fmt: skip
        frame = AgentFrame(seq=1_000_000 + number, uptime_s=5000.0 + number, devices=(sample,))
        yield [node_id, session_id, at_s, encode_frame(frame)]


def unsealed_entries(items: list[list[Any]]) -> list[bytes]:
    """The batch as it was before seals, and as it is now with a seal that nobody made."""
    batch = msgspec.msgpack.encode(["w0123456789", 1, items])
    return [msgspec.msgpack.encode(items), b"\0" * HEAD_BYTES + batch, b"\xff" * HEAD_BYTES + batch]


async def dropped(prefix: str) -> int:
    """How often what came over Redis was dropped, for reasons that begin so."""
    rows = FrameCounter.objects.filter(node_name=PEER, reason__startswith=prefix)
    return sum(await sync_to_async(list)(rows.values_list("count", flat=True)))
