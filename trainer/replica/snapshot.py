"""A rank's state on the wire: one JSON header line, then the tensors' bytes, then a digest.

No pickles: dtype names are looked up in a table, shapes must match the receiver's own
tensors. Pure bytes and tensors, no sockets' life time here.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch

from trainer.errors import CatchUpFailed

DIGEST_BYTES = 16
MAX_HEADER_BYTES = 16 << 20
CHUNK_BYTES = 4 << 20


class Stream(Protocol):
    """What a buffered socket file and a BytesIO have in common."""

    def readline(self, limit: int, /) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...
    def readinto(self, buffer: memoryview, /) -> int: ...
    def write(self, data: Any, /) -> int: ...
    def flush(self) -> None: ...


class TensorHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`dtype` as torch names it, without the module."""

    dtype: str
    shape: tuple[int, ...]


class SnapshotHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State after `step` committed steps, taken when `epoch` was installed."""

    epoch: int
    step: int
    tensors: tuple[TensorHead, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """A copy in host memory; `nbytes` of the tensors alone."""

    epoch: int
    step: int
    tensors: list[torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def take(state: Sequence[torch.Tensor], *, epoch: int, step: int) -> Snapshot:
    """Copy `state` to host memory."""
    return Snapshot(epoch, step, [tensor.detach().to("cpu", copy=True).contiguous() for tensor in state])


def restore(snapshot: Snapshot, state: Sequence[torch.Tensor]) -> None:
    """Copy a snapshot into `state`. Raises CatchUpFailed when the shapes differ."""
    mine = [(tensor.dtype, tuple(tensor.shape)) for tensor in state]
    theirs = [(tensor.dtype, tuple(tensor.shape)) for tensor in snapshot.tensors]
    if mine != theirs:
        raise CatchUpFailed("the donor's tensors are not mine: another layout or model")
    for target, source in zip(state, snapshot.tensors, strict=True):
        target.copy_(source)


def write(snapshot: Snapshot, stream: Stream) -> None:
    """Raises OSError when the receiver goes away."""
    head = SnapshotHead(
        snapshot.epoch,
        snapshot.step,
        tuple(TensorHead(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in snapshot.tensors),
    )
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    line = msgspec.json.encode(head) + b"\n"
    digest.update(line)
    stream.write(line)
    for tensor in snapshot.tensors:
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        digest.update(data)
        stream.write(data)
    stream.write(digest.digest())
    stream.flush()


def read(stream: Stream) -> Snapshot:
    """Raises CatchUpFailed on anything but a whole, unharmed snapshot; OSError from the stream."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    line = stream.readline(MAX_HEADER_BYTES)
    digest.update(line)
    try:
        head = msgspec.json.decode(line, type=SnapshotHead)
    except msgspec.DecodeError as error:
        raise CatchUpFailed(f"snapshot header: {error}") from error
    tensors = [_read_tensor(stream, entry, digest) for entry in head.tensors]
    if stream.read(DIGEST_BYTES) != digest.digest():
        raise CatchUpFailed("snapshot digest does not match")
    return Snapshot(head.epoch, head.step, tensors)


def _read_tensor(stream: Stream, head: TensorHead, digest: "hashlib.blake2b") -> torch.Tensor:
    dtype = getattr(torch, head.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CatchUpFailed(f"snapshot holds a tensor of type {head.dtype!r}")
    tensor = torch.empty(head.shape, dtype=dtype)
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    position = 0
    while position < len(data):
        count = stream.readinto(data[position : position + CHUNK_BYTES])
        if not count:
            raise CatchUpFailed(f"snapshot ended {len(data) - position} bytes early")
        position += count
    digest.update(data)
    return tensor
