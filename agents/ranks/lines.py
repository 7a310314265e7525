"""JSON lines over a unix stream socket, bounded in both directions."""

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable

from controlplane.protocol.rank import MAX_LINE_BYTES

# A peer that does not read (a stopped rank) loses its connection, not our memory; the
# newest view and install are kept and sent again when it comes back.
MAX_UNSENT_BYTES = 4 * MAX_LINE_BYTES
# Lines of one connection handled in a row; then everybody else has a turn.
_LINES_A_TURN = 64


class LineConnection(asyncio.Protocol):
    """One connection. `on_line` gets each line without its newline, `on_read` the size of each
    piece as it came. What has come while it is `hold`ed waits here, at most one piece and one
    line of `max_line_bytes`; nothing more is read meanwhile."""

    def __init__(
        self,
        on_line: Callable[["LineConnection", bytes], None],
        on_open: Callable[["LineConnection"], None],
        on_close: Callable[["LineConnection"], None],
        *,
        on_read: Callable[["LineConnection", int], None] | None = None,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self._on_line = on_line
        self._on_open = on_open
        self._on_close = on_close
        self._on_read = on_read
        self._max_line_bytes = max_line_bytes
        self._pending = b""
        self._lines: deque[bytes] = deque()
        self._resuming: asyncio.Handle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport exists."""
        assert isinstance(transport, asyncio.Transport), "a stream transport"
        self._transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Split off whole lines; a line without end closes the connection."""
        if self._on_read is not None:
            self._on_read(self, len(data))
        *lines, self._pending = (self._pending + data if self._pending else data).split(b"\n")
        self._lines.extend(filter(None, lines))
        if len(self._pending) > self._max_line_bytes:
            # Whoever takes lines hears of it, as of any that is too long; then it is over.
            self._on_line(self, self._pending)
            self.abort()
            return
        self._take_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Said once."""
        self._transport = None
        self._stop_waiting()
        self._on_close(self)

    def hold(self, seconds: float) -> None:
        """Hand over no further line, and read nothing, for so long."""
        if not self._is_open() or self._resuming is not None:
            return
        assert self._transport is not None, "it is open"
        self._transport.pause_reading()
        self._resuming = asyncio.get_running_loop().call_later(seconds, self._resume)

    def send(self, line: bytes) -> bool:
        """False: not connected, or the peer has not read for too long."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() + len(line) > MAX_UNSENT_BYTES:
            self.abort()
            return False
        self._transport.write(line)
        return True

    def close(self) -> None:
        """After what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        self._lines.clear()
        if self._transport is not None:
            self._transport.abort()

    def peer(self, uid: int) -> tuple[int, int] | None:
        """(pid, user id) of the peer as the kernel saw it when the connection was made; None unless
        it was this user's, root's or our own. The pid may be another process's by now."""
        if self._transport is None:
            return None
        peer: socket.socket = self._transport.get_extra_info("socket")
        packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        # User ids are unsigned; a signed one would not compare.
        pid, peer_uid, _ = struct.unpack("iII", packed)
        return (int(pid), int(peer_uid)) if pid > 0 and peer_uid in (uid, os.getuid(), 0) else None

    def peer_pid(self, uid: int) -> int | None:
        """Of `peer`, the pid alone."""
        peer = self.peer(uid)
        return peer[0] if peer is not None else None

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _take_turn(self) -> None:
        for _ in range(_LINES_A_TURN):
            if not self._lines or self._resuming is not None or not self._is_open():
                return
            self._on_line(self, self._lines.popleft())
        if self._lines:
            self.hold(0.0)

    def _resume(self) -> None:
        self._resuming = None
        self._take_turn()
        if self._resuming is None and self._is_open():
            assert self._transport is not None, "it is open"
            self._transport.resume_reading()

    def _stop_waiting(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
