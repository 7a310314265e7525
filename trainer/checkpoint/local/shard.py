"""One rank's state in one file: a JSON line, the tensors' bytes, the random state as another
JSON line, a digest of all before it.

No pickles: dtype names are looked up, shapes must be the reader's own. Written beside its
name and renamed, so that a name always stands for a whole shard.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch

from controlplane.protocol import digests
from trainer.checkpoint.storage import sync
from trainer.checkpoint.stream import DurableStream
from trainer.errors import CheckpointFault

MAX_HEAD_BYTES = 32 << 20
CHUNK_BYTES = 4 << 20


class TensorHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`dtype` as torch names it, without the module."""

    dtype: str
    shape: tuple[int, ...]


class ShardHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose state this is: rank `rank` of the tp x pp layout of `world` ranks, after `step`
    committed steps."""

    job_id: str
    attempt: int
    epoch: int
    step: int
    rank: int
    world: int
    tp: int
    pp: int
    tensors: tuple[TensorHead, ...]
    algorithm: str = digests.BLAKE2B


def heads(tensors: Sequence[torch.Tensor]) -> tuple[TensorHead, ...]:
    """What the header says of `tensors`."""
    return tuple(TensorHead(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors)


def write(path: Path, head: ShardHead, tensors: Sequence[torch.Tensor], rng: bytes) -> str:
    """Durable, all or nothing; `tensors` lie in host memory, `rng` as `trainer.checkpoint.rng`
    has it. Returns the digest of header and tensors, which every replica has alike. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb", buffering=0) as file:
            stream = DurableStream(file, algorithm=head.algorithm)
            stream.write(msgspec.json.encode(head) + b"\n")
            for tensor in tensors:
                stream.write(_bytes(tensor))
            alike = digests.named(stream.hashed, head.algorithm)
            stream.write(rng + b"\n")
            stream.write(stream.hashed.digest())
            stream.sync()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
    return alike


def check(path: Path) -> ShardHead:
    """Read the file through; its header. Raises OSError, CheckpointFault."""
    with path.open("rb") as file:
        line = file.readline(MAX_HEAD_BYTES)
        head, digest = _begin(line, path)
        left = _payload_bytes(head)
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
        _rest(file, digest, path)
    return head


def read(path: Path, targets: Sequence[torch.Tensor]) -> tuple[ShardHead, bytes]:
    """Fill `targets`; (header, random state). When it raises, they hold nothing that may be trained on. Raises OSError,
    CheckpointFault."""
    with path.open("rb") as file:
        line = file.readline(MAX_HEAD_BYTES)
        head, digest = _begin(line, path)
        if head.tensors != heads(targets):
            raise CheckpointFault(f"{path}: its tensors are not mine: another layout or model")
        for target in targets:
            source = torch.empty(target.shape, dtype=target.dtype)
            view = _bytes(source)
            if file.readinto(view) != len(view):
                raise CheckpointFault(f"{path}: it ends early")
            digest.update(view)
            target.copy_(source)
        return head, _rest(file, digest, path)


def _begin(line: bytes, path: Path) -> tuple[ShardHead, digests.Hasher]:
    """The header, and the digest by its algorithm that has taken the header."""
    try:
        head = msgspec.json.decode(line, type=ShardHead)
        digest = digests.hasher(head.algorithm)
    except (msgspec.DecodeError, digests.UnknownDigest) as error:
        raise CheckpointFault(f"{path}: header: {error}") from error
    digest.update(line)
    return head, digest


def _payload_bytes(head: ShardHead) -> int:
    total = 0
    for entry in head.tensors:
        dtype = getattr(torch, entry.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointFault(f"a shard holds a tensor of type {entry.dtype!r}")
        total += dtype.itemsize * torch.Size(entry.shape).numel()
    return total


def _rest(file: BinaryIO, digest: digests.Hasher, path: Path) -> bytes:
    """Behind the tensors: the random state, which is returned, the digest, and nothing more."""
    line = file.readline(MAX_HEAD_BYTES)
    digest.update(line)
    if file.read(digests.DIGEST_BYTES + 1) != digest.digest():
        raise CheckpointFault(f"{path}: its content is not what was written")
    return line


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
