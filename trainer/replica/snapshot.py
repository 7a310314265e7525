"""A rank's state as one run of bytes, cut into chunks, each with its digest.

The tensors stand one after the other in the order of `Engine.state`, without gaps. No
pickles: dtype names and shapes must be the receiver's own. Equal states have equal
indexes, so a joiner may take chunks of one state from several donors at once.
Pure bytes and tensors, no sockets here.
"""

import mmap
from collections.abc import Iterator, Sequence

import msgspec
import torch

from trainer.errors import CatchUpFailed
from trainer.replica.digest import DIGEST_BYTES, WORD_BYTES, digest

CHUNK_BYTES = 2 << 20
"""Small enough to be checked in a core's own cache, where it has just been received."""


class TensorHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`dtype` as torch names it, without the module."""

    dtype: str
    shape: tuple[int, ...]


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State after `step` committed steps. `digests` of the chunks, `DIGEST_BYTES` each, in order."""

    step: int
    chunk_bytes: int
    tensors: tuple[TensorHead, ...]
    digests: bytes

    @property
    def chunks(self) -> int:
        """How many there are."""
        return len(self.digests) // DIGEST_BYTES

    def digest(self, chunk: int) -> bytes:
        """The digest that `chunk` must have."""
        return self.digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]


class Snapshot:
    """A copy of `state` in host memory: `take` fills it, `index` is there after `seal`."""

    def __init__(self, state: Sequence[torch.Tensor], *, step: int) -> None:
        self.step = step
        self.heads = heads(state)
        self.memory = _host_memory(size(state), pinned=any(tensor.is_cuda for tensor in state))
        self.index: bytes | None = None

    def take(self, state: Sequence[torch.Tensor], *, after: "torch.cuda.Event | None" = None) -> None:
        """Copy; on a GPU on a stream of its own, once `after` has passed there."""
        if after is None:
            self._copy(state)
            return
        side = torch.cuda.Stream()
        side.wait_event(after)
        with torch.cuda.stream(side):
            self._copy(state)
        side.synchronize()

    def _copy(self, state: Sequence[torch.Tensor]) -> None:
        offset = 0
        for tensor in state:
            if tensor.nbytes:
                target = self.memory[offset : offset + tensor.nbytes]
                target.copy_(as_bytes(tensor.detach().contiguous()), non_blocking=True)
                offset += tensor.nbytes

    def seal(self) -> None:
        """Digest the chunks."""
        digests = b"".join(
            digest(self.chunk(number)) for number in range(chunk_count(self.memory.numel(), CHUNK_BYTES))
        )
        self.index = msgspec.json.encode(Index(self.step, CHUNK_BYTES, self.heads, digests))

    def chunk(self, number: int) -> torch.Tensor:
        """Its bytes; empty when there is no such chunk."""
        return self.memory[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]


class Target:
    """Where a joiner puts the chunks: straight into the tensors of `state`."""

    def __init__(self, state: Sequence[torch.Tensor]) -> None:
        self.heads = heads(state)
        self.nbytes = size(state)
        self._parts: list[tuple[int, torch.Tensor]] = []
        offset = 0
        for tensor in state:
            if not tensor.is_contiguous():
                raise CatchUpFailed(f"a tensor of shape {tuple(tensor.shape)} of my state is not contiguous")
            if tensor.nbytes:
                self._parts.append((offset, as_bytes(tensor.detach())))
                offset += tensor.nbytes

    def read_index(self, data: bytes, step: int) -> Index:
        """Raises CatchUpFailed unless it describes `step` of a state like mine."""
        try:
            index = msgspec.json.decode(data, type=Index)
        except msgspec.DecodeError as error:
            raise CatchUpFailed(f"index of a snapshot: {error}") from error
        if index.tensors != self.heads:
            raise CatchUpFailed("the donor's tensors are not mine: another layout or model")
        if index.step != step or not 0 < index.chunk_bytes <= CHUNK_BYTES:
            raise CatchUpFailed(
                f"index of step {index.step} in chunks of {index.chunk_bytes} bytes, not of step {step}"
            )
        if len(index.digests) != DIGEST_BYTES * chunk_count(self.nbytes, index.chunk_bytes):
            raise CatchUpFailed(f"index of {index.chunks} chunks for {self.nbytes} bytes")
        return index

    def window(self, offset: int, count: int) -> torch.Tensor | None:
        """`count` bytes at `offset` of the state as one aligned block of host memory, to receive
        into without another copy; None where there is none (receive elsewhere, then `put`)."""
        first, part = next(self._overlaps(offset, count))
        if part.is_cuda or first > offset or offset + count > first + part.numel():
            return None
        block = part[offset - first : offset - first + count]
        return None if block.data_ptr() % WORD_BYTES else block

    def put(self, offset: int, block: torch.Tensor) -> None:
        """Write `block` (uint8, host) at byte `offset` of the state."""
        for first, part in self._overlaps(offset, block.numel()):
            low = max(offset, first)
            high = min(offset + block.numel(), first + part.numel())
            part[low - first : high - first].copy_(block[low - offset : high - offset])

    def _overlaps(self, offset: int, count: int) -> Iterator[tuple[int, torch.Tensor]]:
        for first, part in self._parts:
            if first + part.numel() > offset and first < offset + count:
                yield first, part


def heads(state: Sequence[torch.Tensor]) -> tuple[TensorHead, ...]:
    """What the tensors look like."""
    return tuple(TensorHead(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in state)


def size(state: Sequence[torch.Tensor]) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state)


def chunk_count(nbytes: int, chunk_bytes: int) -> int:
    """How many chunks `nbytes` make."""
    return -(-nbytes // chunk_bytes)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8 [bytes]; `tensor` is contiguous."""
    return tensor.reshape(-1).view(torch.uint8)


def _host_memory(nbytes: int, *, pinned: bool) -> torch.Tensor:
    """uint8 [nbytes]. Huge pages where the system has them: a fresh gigabyte in small ones
    costs more in page faults than in copying."""
    if pinned or not nbytes:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
    memory = mmap.mmap(-1, nbytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
