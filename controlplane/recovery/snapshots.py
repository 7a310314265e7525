"""Snapshots as the journal keeps them: a byte with the number of their shape, then zstd of msgpack.

Those from before shapes had numbers are zstd alone, which begins with a byte that no shape will have.
"""

from typing import TypeVar

import msgspec
import zstandard

from controlplane.policy.fleet import FleetSnapshot
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.upcast import SHAPE, Raw, upcast

S = TypeVar("S", JobSnapshot, FleetSnapshot)
ZSTD = 0x28
"""The first byte of any zstd frame."""
assert SHAPE < ZSTD, "shape 40 would be taken for no number at all"
_encode = msgspec.msgpack.Encoder().encode


def packed(snapshot: JobSnapshot | FleetSnapshot) -> bytes:
    """As it is stored."""
    return bytes([SHAPE]) + zstandard.compress(_encode(snapshot))


def unpacked(blob: bytes, kind: type[S]) -> S:
    """Today's type of it, whatever shape it was stored in. Raises ValueError for one that cannot be read."""
    shape, content = _split(blob)
    try:
        if shape == SHAPE:
            return msgspec.msgpack.decode(content, type=kind)
        return msgspec.convert(upcast(msgspec.msgpack.decode(content), shape), kind, str_keys=True)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a snapshot of shape {shape} that today's rules cannot read: {error}") from error


def raw_of(blob: bytes) -> tuple[Raw, int]:
    """Plain data and its shape, for who changes what is stored."""
    shape, content = _split(blob)
    raw: Raw = msgspec.msgpack.decode(content)
    return raw, shape


def raw_packed(raw: Raw, shape: int) -> bytes:
    """The other way round."""
    head = bytes([shape]) if shape else b""
    return head + zstandard.compress(msgspec.msgpack.encode(raw))


def _split(blob: bytes) -> tuple[int, bytes]:
    if not blob:
        raise ValueError("no snapshot is kept")
    numbered = blob[0] != ZSTD
    try:
        return (blob[0], zstandard.decompress(blob[1:])) if numbered else (0, zstandard.decompress(blob))
    except zstandard.ZstdError as error:
        raise ValueError(f"a snapshot that is damaged: {error}") from error
