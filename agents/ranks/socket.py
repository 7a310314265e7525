"""The agent's socket for its ranks: who is who, one line at a time."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from agents.core.events import Event, RankConnected, RankDisconnected, RankMessage
from agents.ranks.identity import identity_of, read_stat
from agents.ranks.lines import LineConnection
from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.rank import RankHello, ToRank


class RankServer:
    """Listens on `path` (mode 0600). Turns lines into events, messages into lines.

    The first line of a connection must be a hello; garbage ends the connection and is
    counted, it never reaches the core.
    """

    def __init__(self, path: Path, dispatch: Callable[[Event], None]) -> None:
        self._path = path
        self._dispatch = dispatch
        self._server: asyncio.AbstractServer | None = None
        self._numbers: dict[LineConnection, int] = {}
        self._connections: dict[int, LineConnection] = {}
        self._greeted: set[int] = set()
        self._next_number = 1
        self.refused_lines = 0

    async def start(self) -> None:
        """A socket left by an earlier agent is replaced; the state-dir lock says it is dead."""
        self._path.unlink(missing_ok=True)
        previous_mask = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: LineConnection(self._on_line, self._on_open, self._on_close), str(self._path)
            )
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

    def _on_open(self, connection: LineConnection) -> None:
        number = self._next_number
        self._next_number += 1
        self._numbers[connection] = number
        self._connections[number] = connection

    def _on_close(self, connection: LineConnection) -> None:
        number = self._numbers.pop(connection)
        del self._connections[number]
        if number in self._greeted:
            self._greeted.discard(number)
            self._dispatch(RankDisconnected(now_s=time.monotonic(), conn_id=number))

    def _on_line(self, connection: LineConnection, line: bytes) -> None:
        number = self._numbers[connection]
        try:
            message = decode_line("from_rank", line)
        except ProtocolError:
            self.refused_lines += 1
            connection.abort()
            return
        if number in self._greeted:
            self._dispatch(RankMessage(now_s=time.monotonic(), conn_id=number, message=message))
        elif isinstance(message, RankHello):
            self._greet(connection, number, message)
        else:
            self.refused_lines += 1
            connection.abort()

    def _greet(self, connection: LineConnection, number: int, hello: RankHello) -> None:
        pid = connection.peer_pid()
        peer = identity_of(pid) if pid else None
        stat = read_stat(pid) if pid else None
        if peer is None or stat is None:
            connection.abort()
            return
        self._greeted.add(number)
        self._dispatch(
            RankConnected(now_s=time.monotonic(), conn_id=number, hello=hello, peer=peer, session_pid=stat.session)
        )
