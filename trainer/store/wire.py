"""The bytes that torch's TCPStore clients send, as requests; an incomplete one waits for more.

torch has no document of this protocol; what stands here was read from its client
(`torch/csrc/distributed/c10d/TCPStore.cpp`) and is held against the real client of the pinned
version by tests/integration/trainer/test_store.py. Numbers are of the machine's byte order
(little endian on every machine that torch runs on); a text or value is its length, u64, and
its bytes. Used by `trainer.store.server`.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = 0x3C85F7CE
MAX_KEY_BYTES = 8 * 1024
MAX_VALUE_BYTES = 8 << 20
MAX_KEYS_A_REQUEST = 16 * 1024
MAX_REQUEST_BYTES = 32 << 20
MAX_UNBOUND_BYTES = 64 * 1024
"""Of a request on a connection that has named no job yet."""
READY, NOT_READY = b"\x00", b"\x01"
STOP_WAITING, WAIT_CANCELED = b"\x00", b"\x01"

_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")


class Query(IntEnum):
    """First byte of a request."""

    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    GETNUMKEYS = 7
    DELETE_KEY = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13
    QUEUE_PUSH = 14
    QUEUE_POP = 15
    QUEUE_LEN = 16


class Malformed(Exception):
    """No client of torch sends this."""


class Incomplete(Exception):
    """The rest of the request is still under way: nothing can be read before `needed_bytes` are there."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """`number`: the magic, the nonce of a ping or what is to be added. `values` go with `keys`."""

    query: Query
    keys: tuple[bytes, ...] = ()
    values: tuple[bytes, ...] = ()
    number: int = 0


class Reader:
    """Over one buffer, from `at` on. Raises Incomplete or Malformed."""

    def __init__(self, buffer: bytearray, at: int) -> None:
        self._buffer, self.at = buffer, at

    def request(self) -> Request:
        """The next whole request."""
        code = self._take(1)[0]
        if code not in Query._value2member_map_:
            raise Malformed(f"request {code} is not served")
        query = Query(code)
        match query:
            case Query.VALIDATE | Query.PING:
                return Request(query, number=int(_U32.unpack(self._take(4))[0]))
            case Query.GETNUMKEYS | Query.CANCEL_WAIT:
                return Request(query)
            case Query.CHECK | Query.WAIT | Query.MULTI_GET:
                return Request(query, keys=tuple(self._key() for _ in range(self._count())))
            case Query.MULTI_SET:
                pairs = [(self._key(), self._value()) for _ in range(self._count())]
                return Request(query, keys=tuple(k for k, _ in pairs), values=tuple(v for _, v in pairs))
            case Query.ADD:
                return Request(query, keys=(self._key(),), number=int(_I64.unpack(self._take(8))[0]))
            case Query.COMPARE_SET:
                return Request(query, keys=(self._key(),), values=(self._value(), self._value()))
            case Query.SET | Query.APPEND | Query.QUEUE_PUSH:
                return Request(query, keys=(self._key(),), values=(self._value(),))
            case Query.GET | Query.DELETE_KEY | Query.QUEUE_POP | Query.QUEUE_LEN:
                return Request(query, keys=(self._key(),))

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._buffer):
            raise Incomplete(end)
        data = bytes(self._buffer[self.at : end])
        self.at = end
        return data

    def _sized(self, limit: int, what: str) -> bytes:
        size = int(_U64.unpack(self._take(8))[0])
        if size > limit:
            raise Malformed(f"a {what} of {size} bytes, the limit is {limit}")
        return self._take(size)

    def _key(self) -> bytes:
        return self._sized(MAX_KEY_BYTES, "key")

    def _value(self) -> bytes:
        return self._sized(MAX_VALUE_BYTES, "value")

    def _count(self) -> int:
        count = int(_U64.unpack(self._take(8))[0])
        if count > MAX_KEYS_A_REQUEST:
            raise Malformed(f"{count} keys in a request, the limit is {MAX_KEYS_A_REQUEST}")
        return count


def ping(nonce: int) -> bytes:
    """Answer to a ping."""
    return _U32.pack(nonce)


def number(value: int) -> bytes:
    """A count or a sum. Raises Malformed beyond 64 bits."""
    if not -(1 << 63) <= value < 1 << 63:
        raise Malformed(f"{value} has more than 64 bits")
    return _I64.pack(value)


def value(data: bytes) -> bytes:
    """A value with its length."""
    return _U64.pack(len(data)) + data
