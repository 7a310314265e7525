"""The fleet in shards: which sentinel hears a node, and where the live state of a shard lies.

A node belongs to a shard by a stable hash of its id, and to the same one in each process that has the same
HOLDFAST_SENTINEL_SHARDS. With one shard names are what they were without any. A live state that is of no single node
(`sight`, `nodes`, `fleet`, the ranks of a job) lies in a part for each shard, written by its leader.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Any

from django.conf import settings

from controlplane.runtime import bus

MAX_SHARDS = 64
REMEMBERED = 1 << 17


@lru_cache(maxsize=REMEMBERED)
def shard_of(node_id: str, count: int) -> int:
    """0 to `count` - 1."""
    return int.from_bytes(blake2b(node_id.encode(), digest_size=8).digest(), "big") % count if count > 1 else 0


def part_name(name: str, shard: int, count: int) -> str:
    """The name of a shard's part of a live state."""
    return name if count == 1 else f"{name}/{shard}"


def part_of(name: str, node_id: str) -> str:
    """The name of the part that the node's shard writes."""
    count = settings.SENTINEL_SHARDS
    return part_name(name, shard_of(node_id, count), count)


def part_names(name: str) -> list[str]:
    """Of each shard."""
    count = settings.SENTINEL_SHARDS
    return [part_name(name, shard, count) for shard in range(count)]


def read_parts(name: str) -> list[dict[str, Any]]:
    """The part of each shard, by its number; {} where there is none of ours, or Redis is away."""
    if settings.SENTINEL_SHARDS == 1:
        return [bus.read_live(name) or {}]
    names = part_names(name)
    found = bus.read_live_of(names)
    return [found.get(each, {}) for each in names]


def read_whole(name: str) -> dict[str, Any]:
    """All parts as one; {} where there is none."""
    whole: dict[str, Any] = {}
    for part in read_parts(name):
        whole |= part
    return whole
