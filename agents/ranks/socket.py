"""The agent's socket for its ranks: who is who, one line at a time.

No byte from here ends or stalls an agent: a connection's lines are bounded in size and in
rate (`gate`), a line that is outside of the protocol is dropped, counted and reported, and a
connection with too many of them is closed.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agents.core.events import Event, RankConnected, RankDisconnected, RankLineRefused, RankMessage
from agents.log import note
from agents.ranks.gate import MAX_REFUSED, Gate, Share
from agents.ranks.identity import identity_of, read_stat
from agents.ranks.lines import LineConnection
from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.rank import MAX_REPORT_BYTES, RankHello, ToRank

HELLO_TIMEOUT_S = 10.0
_NOTE_EVERY_S = 10.0


@dataclass(slots=True)
class _Peer:
    """One connection that was let in. `refused` lines so far."""

    number: int
    share: Share
    greeted: bool = False
    refused: int = 0


class RankServer:
    """Listens on `path` (mode 0600). Turns lines into events, messages into lines.

    The first line of a connection must be a hello. `refused_lines` counts what never reached
    the core, `refused_connections` those that were closed before they said anything.
    """

    def __init__(self, path: Path, dispatch: Callable[[Event], None]) -> None:
        self._path = path
        self._dispatch = dispatch
        self._server: asyncio.AbstractServer | None = None
        self._gate = Gate()
        self._peers: dict[LineConnection, _Peer] = {}
        self._connections: dict[int, LineConnection] = {}
        self._next_number = 1
        self._noted_s = -_NOTE_EVERY_S
        self.refused_lines = self.refused_connections = 0

    async def start(self) -> None:
        """A socket left by an earlier agent is replaced; the state-dir lock says it is dead."""
        self._path.unlink(missing_ok=True)
        previous_mask = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(self._accept, str(self._path))
        finally:
            os.umask(previous_mask)

    def send(self, conn_id: int, message: ToRank) -> bool:
        """False: that connection is gone."""
        connection = self._connections.get(conn_id)
        return connection is not None and connection.send(encode_line(message))

    def close_connection(self, conn_id: int) -> None:
        """After what was written has left."""
        connection = self._connections.get(conn_id)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Ranks notice and try again until an agent is back."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections.values()):
            connection.close()

    def _accept(self) -> LineConnection:
        return LineConnection(
            self._on_line, self._on_open, self._on_close, on_read=self._on_read, max_line_bytes=MAX_REPORT_BYTES
        )

    def _on_open(self, connection: LineConnection) -> None:
        pid = connection.peer_pid()
        stat = read_stat(pid) if pid else None
        share = self._gate.enter(stat.session if stat is not None else 0, time.monotonic())
        if share is None:
            self.refused_connections += 1
            self._note_refusals("too many connections of one rank, or too many in a short time")
            connection.abort()
            return
        number = self._next_number
        self._next_number += 1
        self._peers[connection] = _Peer(number, share)
        self._connections[number] = connection
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._close_silent, connection)

    def _on_close(self, connection: LineConnection) -> None:
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        self._gate.leave(peer.share)
        del self._connections[peer.number]
        if peer.greeted:
            self._dispatch(RankDisconnected(now_s=time.monotonic(), conn_id=peer.number))

    def _close_silent(self, connection: LineConnection) -> None:
        peer = self._peers.get(connection)
        if peer is not None and not peer.greeted:
            connection.abort()

    def _on_read(self, connection: LineConnection, size_bytes: int) -> None:
        peer = self._peers.get(connection)
        if peer is not None:
            peer.share.spend(size_bytes=size_bytes)
            self._hold_back(connection, peer)

    def _hold_back(self, connection: LineConnection, peer: _Peer) -> None:
        wait_s = peer.share.wait_s(time.monotonic())
        if wait_s > 0.0:
            connection.hold(wait_s)

    def _on_line(self, connection: LineConnection, line: bytes) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            return
        peer.share.spend()
        try:
            message = decode_line("from_rank", line)
        except ProtocolError as error:
            self._refuse(connection, peer, str(error))
        else:
            if peer.greeted:
                self._dispatch(RankMessage(now_s=time.monotonic(), conn_id=peer.number, message=message))
            elif isinstance(message, RankHello):
                self._greet(connection, peer, message)
            else:
                self._refuse(connection, peer, "the first line of a connection is a hello")
        self._hold_back(connection, peer)

    def _refuse(self, connection: LineConnection, peer: _Peer, why: str) -> None:
        """Drop one line; the connection too, where nobody was greeted or nothing else comes."""
        self.refused_lines += 1
        peer.refused += 1
        self._note_refusals(why)
        if peer.greeted:
            closes = peer.refused >= MAX_REFUSED
            self._dispatch(RankLineRefused(now_s=time.monotonic(), conn_id=peer.number, reason=why, closed=closes))
        if not peer.greeted or peer.refused >= MAX_REFUSED:
            connection.abort()

    def _note_refusals(self, why: str) -> None:
        """In the node's log, at most once in so many seconds."""
        now_s = time.monotonic()
        if now_s - self._noted_s >= _NOTE_EVERY_S:
            self._noted_s = now_s
            counts = {"lines": self.refused_lines, "connections": self.refused_connections}
            note("refused at the socket for ranks", last=why, **counts)

    def _greet(self, connection: LineConnection, peer: _Peer, hello: RankHello) -> None:
        pid = connection.peer_pid()
        process = identity_of(pid) if pid else None
        stat = read_stat(pid) if pid else None
        if process is None or stat is None:
            connection.abort()
            return
        peer.greeted = True
        now_s = time.monotonic()
        self._dispatch(
            RankConnected(now_s=now_s, conn_id=peer.number, hello=hello, peer=process, session_pid=stat.session)
        )
