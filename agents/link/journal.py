"""The append-only journal: what must survive the agent.

Each record is `length u32, crc32 u32, MessagePack`. A record is whole or it does not
exist: reading stops at the first one that is torn or damaged, and the file is cut there
(the rest is kept aside). `append` writes at once, so records survive a killed agent;
`sync` forces them to disk, so they survive a crash of the machine.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from agents.core.records import EventKept, Record
from agents.errors import JournalError
from controlplane.protocol.bounds import Count, Number, quoted
from controlplane.protocol.frames import InputRefused

_HEAD = struct.Struct("<II")
_MAX_RECORD_BYTES = 4 * 1024 * 1024
COMPACT_ABOVE_BYTES = 2 * 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_REFUSALS = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)


class _EventHead(msgspec.Struct, tag_field="record", tag="event"):
    """What must be readable of an event for another to take its place."""

    seq: Count
    at_s: Number


class Journal:
    """One open journal. A failed write is remembered and tried again with the next one,
    so that a full disk costs durability for a while and no record for ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # It holds what specs put into their ranks' environment; an older file may be open to others.
        os.fchmod(self._file, 0o600)
        self._size_bytes = os.fstat(self._file).st_size
        self._unwritten: list[bytes] = []
        self._half_written = False
        self._compacted_bytes = self._size_bytes
        self.error = ""
        self.unwritable = 0

    @property
    def wants_compaction(self) -> bool:
        """It has grown well beyond what the last compaction left."""
        return self._size_bytes > COMPACT_ABOVE_BYTES + 2 * self._compacted_bytes

    def append(self, record: Record) -> None:
        """Write one record; trouble is kept in `error` and raised by `sync`. A record that has no
        form on disk is counted and left out: it must not end the agent, nor stop the others."""
        framed = self._framed(record)
        if framed:
            self._unwritten.append(framed)
            self._flush()

    def sync(self) -> None:
        """Everything appended is on disk when this returns. Raises JournalError. Blocking:
        call it in a thread, but not while `compact` may run."""
        if self.error:
            raise JournalError(self.error, retry=True)
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise JournalError(f"{self._path}: {error}", retry=True) from error

    def compact(self, records: Iterable[Record]) -> None:
        """Replace the whole journal by these records, or leave it as it is if that fails."""
        data = b"".join(map(self._framed, records))
        fresh = self._path.with_suffix(".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            try:
                _write_all(descriptor, data)
                os.fdatasync(descriptor)
                os.replace(fresh, self._path)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            self.error = f"{self._path}: {error}"
            return
        os.close(self._file)
        self._file = descriptor
        self._unwritten.clear()
        self._half_written = False
        self._size_bytes = self._compacted_bytes = len(data)
        self.error = ""
        _sync_directory(self._path.parent)

    def close(self) -> None:
        """The file stays."""
        os.close(self._file)

    def _framed(self, record: Record) -> bytes:
        try:
            payload = _encode(record)
        except (ValueError, OverflowError, RecursionError):
            self.unwritable += 1
            return b""
        return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload

    def _flush(self) -> None:
        while self._unwritten:
            try:
                if self._half_written:
                    # What a failed write left must not hide the records that follow it.
                    os.ftruncate(self._file, self._size_bytes)
                    self._half_written = False
                _write_all(self._file, self._unwritten[0])
            except OSError as error:
                self._half_written = True
                self.error = f"{self._path}: {error}"
                return
            self._size_bytes += len(self._unwritten.pop(0))
        self.error = ""


def read_journal(path: Path, on_unread: Callable[[int, Path], None] | None = None) -> tuple[Record, ...]:
    """Every whole record in order; a torn or damaged tail is cut off and kept aside. So is a whole
    record that this agent cannot read, because another version wrote it, or a rank put it there
    before its door had bounds: `on_unread` is told how many and where. An unreadable event has a
    stand-in of the same number: the server takes events without a gap, or none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    records: list[Record] = []
    unread: list[bytes] = []
    offset = 0
    while offset + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, offset)
        payload = data[offset + _HEAD.size : offset + _HEAD.size + length]
        if length > _MAX_RECORD_BYTES or len(payload) != length or zlib.crc32(payload) != checksum:
            break
        try:
            records.append(_decode(payload))
        except _REFUSALS as error:
            unread.append(data[offset : offset + _HEAD.size + length])
            records.extend(_stand_in(payload, quoted(error)))
        offset += _HEAD.size + length
    if unread:
        aside = path.with_suffix(".unread")
        _put_aside(aside, b"".join(unread))
        if on_unread is not None:
            on_unread(len(unread), aside)
    if offset < len(data):
        _put_aside(path.with_suffix(".torn"), data[offset:])
        os.truncate(path, offset)
    return tuple(records)


def _stand_in(payload: bytes, why: str) -> tuple[Record, ...]:
    """What the journal goes on with in the place of an event that cannot be read."""
    try:
        head = msgspec.msgpack.decode(payload, type=_EventHead)
    except _REFUSALS:
        return ()
    body = InputRefused(None, 1, f"an event in the agent's journal cannot be read: {why}")
    return (EventKept(head.seq, head.at_s, body),)


def _put_aside(path: Path, data: bytes) -> None:
    """As private as the journal from which it comes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
