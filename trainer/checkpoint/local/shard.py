"""One rank's state in one file: a JSON line, the tensors' bytes, the random state as another
JSON line, a digest of all before it.

No pickles: dtype names are looked up, shapes must be the reader's own. Written beside its
name and renamed, so that a name always stands for a whole shard.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch

from trainer.checkpoint.storage import sync_directory
from trainer.errors import CheckpointFault

DIGEST_BYTES = 16
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


def heads(tensors: Sequence[torch.Tensor]) -> tuple[TensorHead, ...]:
    """What the header says of `tensors`."""
    return tuple(TensorHead(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors)


def write(path: Path, head: ShardHead, tensors: Sequence[torch.Tensor], rng: bytes) -> str:
    """Durable, all or nothing; `tensors` lie in host memory, `rng` as `trainer.checkpoint.rng`
    has it. Returns the digest of header and tensors, which every replica has alike. Raises OSError."""
    pieces = [msgspec.json.encode(head) + b"\n", *(_bytes(tensor) for tensor in tensors)]
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        # Digested while it is written: both let go of the interpreter, and neither is quick.
        with ThreadPoolExecutor(1) as beside, temporary.open("wb", buffering=0) as file:
            digesting = beside.submit(_digest_of, pieces)
            for piece in pieces:
                _write_all(file, piece)
            os.fsync(file.fileno())
            digest = digesting.result()
            alike = digest.hexdigest()
            digest.update(rng + b"\n")
            _write_all(file, rng + b"\n" + digest.digest())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return alike


def check(path: Path) -> ShardHead:
    """Read the file through; its header. Raises OSError, CheckpointFault."""
    with path.open("rb") as file:
        line = file.readline(MAX_HEAD_BYTES)
        head, digest = _head(line, path), hashlib.blake2b(line, digest_size=DIGEST_BYTES)
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
        head, digest = _head(line, path), hashlib.blake2b(line, digest_size=DIGEST_BYTES)
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


def _head(line: bytes, path: Path) -> ShardHead:
    try:
        return msgspec.json.decode(line, type=ShardHead)
    except msgspec.DecodeError as error:
        raise CheckpointFault(f"{path}: header: {error}") from error


def _payload_bytes(head: ShardHead) -> int:
    total = 0
    for entry in head.tensors:
        dtype = getattr(torch, entry.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointFault(f"a shard holds a tensor of type {entry.dtype!r}")
        total += dtype.itemsize * torch.Size(entry.shape).numel()
    return total


def _rest(file: BinaryIO, digest: "hashlib.blake2b", path: Path) -> bytes:
    """Behind the tensors: the random state, which is returned, the digest, and nothing more."""
    line = file.readline(MAX_HEAD_BYTES)
    digest.update(line)
    if file.read(DIGEST_BYTES + 1) != digest.digest():
        raise CheckpointFault(f"{path}: its content is not what was written")
    return line


def _digest_of(pieces: Sequence[bytes | memoryview]) -> "hashlib.blake2b":
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
