"""A rank's state as one run of bytes, cut into chunks, each with its digest (xxh3, 128 bits).

The tensors stand one after the other in the order of `Engine.state`, the random state behind them, without gaps. No
pickles: dtype names and shapes must be the receiver's own. Equal states have equal
indexes, so a joiner may take chunks of one state from several donors at once. The digest
finds harm by accident; it is no proof against a forger.
Pure bytes and tensors, no sockets here.
"""

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec
import torch
import xxhash

from trainer.errors import CatchUpFailed

CHUNK_BYTES = 2 << 20
"""Small enough to be checked in a core's own cache, where it has just been copied or received."""
DIGEST_BYTES = 16


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


class Run:
    """The tensors of `state` as one run of `nbytes` bytes, by reference."""

    def __init__(self, state: Sequence[torch.Tensor]) -> None:
        self.heads = heads(state)
        self._parts = [as_bytes(tensor.detach().contiguous()) for tensor in state if tensor.nbytes]
        self._ends = list(accumulate(part.numel() for part in self._parts))
        self.nbytes = self._ends[-1] if self._ends else 0

    def pieces(self, offset: int, count: int) -> Iterator[torch.Tensor]:
        """Bytes [offset, offset + count) as uint8 views of the tensors' memory, in order."""
        number = bisect_right(self._ends, offset)
        while count > 0 and number < len(self._parts):
            part = self._parts[number]
            low = offset - self._ends[number] + part.numel()
            piece = part[low : low + count]
            yield piece
            offset, count, number = offset + piece.numel(), count - piece.numel(), number + 1


class Snapshot:
    """A copy of `state` in host memory: `take` fills `memory`, `index` is there after `seal`."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.heads: tuple[TensorHead, ...] = ()
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.index: bytes | None = None
        self._digests: list[bytes] = []

    def take(self, state: Sequence[torch.Tensor], *, after: "torch.cuda.Event | None" = None) -> None:
        """Copy, and on a CPU digest each chunk while it is in the cache; on a GPU copy on a
        stream of its own, once `after` has passed there."""
        run = Run(state)
        self.heads = run.heads
        numbers = range(chunk_count(run.nbytes, CHUNK_BYTES))
        if after is None:
            self.memory = _host_memory(run.nbytes)
            for number in numbers:
                self._copy(run, number)
                self._digest(number)
            return
        # A new thread's device is the first one, whatever this rank's is.
        side = torch.cuda.Stream(next(tensor.device for tensor in state if tensor.is_cuda))
        side.wait_event(after)
        with torch.cuda.stream(side):
            self.memory = torch.empty(run.nbytes, dtype=torch.uint8, pin_memory=True)
            for number in numbers:
                self._copy(run, number)
        side.synchronize()

    def seal(self) -> None:
        """Digest what `take` has not, and make the index."""
        for number in range(len(self._digests), chunk_count(self.memory.numel(), CHUNK_BYTES)):
            self._digest(number)
        self.index = msgspec.json.encode(Index(self.step, CHUNK_BYTES, self.heads, b"".join(self._digests)))

    def chunks(self, first: int, count: int) -> torch.Tensor:
        """Bytes of `count` chunks from `first` on; empty unless there are so many."""
        if first < 0 or count < 1 or first + count > chunk_count(self.memory.numel(), CHUNK_BYTES):
            return self.memory[:0]
        return self.memory[first * CHUNK_BYTES : (first + count) * CHUNK_BYTES]

    def _copy(self, run: Run, number: int) -> None:
        block, offset = self.chunks(number, 1), 0
        for piece in run.pieces(number * CHUNK_BYTES, block.numel()):
            block[offset : offset + piece.numel()].copy_(piece, non_blocking=True)
            offset += piece.numel()

    def _digest(self, number: int) -> None:
        self._digests.append(xxhash.xxh3_128_digest(self.chunks(number, 1).numpy().data))


class Target:
    """Where a joiner puts the chunks: straight into the tensors of `state`."""

    def __init__(self, state: Sequence[torch.Tensor]) -> None:
        for tensor in state:
            if not tensor.is_contiguous():
                raise CatchUpFailed(f"a tensor of shape {tuple(tensor.shape)} of my state is not contiguous")
        self._run = Run(state)
        self.heads, self.nbytes = self._run.heads, self._run.nbytes
        self.in_host_memory = not any(tensor.is_cuda for tensor in state)

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

    def windows(self, offset: int, count: int) -> Iterator[memoryview]:
        """`count` bytes at `offset` of the state, to receive into; only where `in_host_memory`."""
        for piece in self._run.pieces(offset, count):
            yield piece.numpy().data

    def put(self, offset: int, block: torch.Tensor) -> None:
        """Write `block` (uint8, host) at byte `offset` of the state."""
        done = 0
        for piece in self._run.pieces(offset, block.numel()):
            piece.copy_(block[done : done + piece.numel()])
            done += piece.numel()


def heads(state: Sequence[torch.Tensor]) -> tuple[TensorHead, ...]:
    """What the tensors look like."""
    return tuple(TensorHead(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in state)


def chunk_count(nbytes: int, chunk_bytes: int) -> int:
    """How many chunks `nbytes` make."""
    return -(-nbytes // chunk_bytes)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8 [bytes]; `tensor` is contiguous."""
    return tensor.reshape(-1).view(torch.uint8)


def _host_memory(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes]. Huge pages where the system has them: a fresh gigabyte in small ones
    costs more in page faults than in copying."""
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, nbytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
