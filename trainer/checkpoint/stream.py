"""A file on its way to the disk: digested while it is written, written back while it grows.

A plain write fills the page cache first and reaches the disk only in `fsync`. Here the
kernel is told after each chunk to begin (`sync_file_range`, which waits for nothing), so
that writing, digesting and the disk's own work go on at the same time; the `fsync` at the
end is what makes it durable, and waits for the rest alone.
"""

import ctypes
import io
import os
from collections.abc import Callable
from typing import Any

from controlplane.protocol.digests import PREFERRED, hasher

CHUNK_BYTES = 8 << 20
SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h


class DurableStream(io.RawIOBase):
    """Takes bytes front to back for `file`, which was opened without a buffer and stays the
    caller's. `hashed` has taken everything that was written."""

    def __init__(self, file: io.FileIO, *, algorithm: str = PREFERRED) -> None:
        self.hashed = hasher(algorithm)
        self.fault: OSError | None = None
        self._file, self._position, self._begun = file, 0, 0

    def write(self, data: Any, /) -> int:
        """All of it. Raises OSError, which `fault` keeps for callers that lose it."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), CHUNK_BYTES):
                self._write_chunk(view[start : start + CHUNK_BYTES])
        except OSError as error:
            self.fault = error
            raise
        return len(view)

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True

    def sync(self) -> None:
        """Durable when it returns. Raises OSError, also for what failed on its way before."""
        os.fsync(self._file.fileno())

    def _write_chunk(self, chunk: memoryview) -> None:
        self.hashed.update(chunk)
        left = chunk
        while left:
            left = left[self._file.write(left) :]
        self._position += len(chunk)
        if self._position - self._begun >= CHUNK_BYTES:
            _begin_write_back(self._file.fileno(), self._begun, self._position - self._begun)
            self._begun = self._position


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """None where the C library has none: `sync` then waits for all of it."""
    function: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_range = _sync_file_range()


def _begin_write_back(descriptor: int, start: int, length: int) -> None:
    # Whatever it answers: `fsync` tells of every write that failed.
    if _range is not None:
        _range(descriptor, start, length, SYNC_FILE_RANGE_WRITE)
