"""JSON lines over a unix stream socket, bounded in both directions."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable

from controlplane.protocol.rank import MAX_LINE_BYTES

# A peer that does not read (a stopped rank) loses its connection, not our memory; the
# newest view and install are kept and sent again when it comes back.
MAX_UNSENT_BYTES = 4 * MAX_LINE_BYTES


class LineConnection(asyncio.Protocol):
    """One connection. `on_line` gets each line without its newline."""

    def __init__(
        self,
        on_line: Callable[["LineConnection", bytes], None],
        on_open: Callable[["LineConnection"], None],
        on_close: Callable[["LineConnection"], None],
    ) -> None:
        self._on_line = on_line
        self._on_open = on_open
        self._on_close = on_close
        self._pending = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport exists."""
        assert isinstance(transport, asyncio.Transport), "a stream transport"
        self._transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Split off whole lines; a line without end closes the connection."""
        if self._pending:
            data = self._pending + data
        *lines, self._pending = data.split(b"\n")
        for line in lines:
            if self._transport is None or self._transport.is_closing():
                return
            if line:
                self._on_line(self, line)
        if len(self._pending) > MAX_LINE_BYTES:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Said once."""
        self._transport = None
        self._on_close(self)

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
        if self._transport is not None:
            self._transport.abort()

    def peer_pid(self, uid: int) -> int | None:
        """The peer's pid as the kernel saw it when the connection was made; None unless it was this
        user's, root's or our own."""
        if self._transport is None:
            return None
        peer: socket.socket = self._transport.get_extra_info("socket")
        packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, peer_uid, _ = struct.unpack("3i", packed)
        return int(pid) if peer_uid in (uid, os.getuid(), 0) else None
