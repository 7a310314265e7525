"""The agent's sockets for its ranks, one a job: who is who, one line at a time."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from agents.core.events import Event, RankConnected, RankDisconnected, RankMessage
from agents.ranks.identity import identity_of, read_stat
from agents.ranks.lines import LineConnection
from agents.ranks.places import Place
from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.rank import RankHello, ToRank

_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class _Door:
    """One job's socket. `uid` is who its ranks run as."""

    job_id: str
    uid: int
    listener: socket.socket
    serving: "asyncio.Task[asyncio.AbstractServer]"


class RankServer:
    """Listens on each job's socket, which the job's user alone can use. Turns lines into events,
    messages into lines.

    The first line of a connection must be a hello of a rank of that job, from a process of the
    job's user; garbage ends the connection and is counted, it never reaches the core.
    """

    def __init__(self, dispatch: Callable[[Event], None]) -> None:
        self._dispatch = dispatch
        self._doors: dict[str, _Door] = {}
        self._numbers: dict[LineConnection, int] = {}
        self._connections: dict[int, LineConnection] = {}
        self._greeted: set[int] = set()
        self._next_number = 1
        self.refused_lines = 0

    def open(self, job_id: str, place: Place) -> None:
        """Listen for the job's ranks. A socket left by an earlier agent is replaced; the state-dir
        lock says it is dead. Raises OSError."""
        door = self._doors.get(job_id)
        if door is not None and door.uid == place.uid and place.agent_socket.exists():
            return
        self.shut(job_id)
        place.agent_socket.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(place.agent_socket))
            # The directory is the agent's own: what stands there is what was bound.
            os.chmod(place.agent_socket, 0o600)
            os.chown(place.agent_socket, place.uid, -1)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        loop = asyncio.get_running_loop()
        uid = place.uid
        serving = loop.create_task(
            loop.create_unix_server(
                lambda: LineConnection(
                    lambda connection, line: self._on_line(connection, line, job_id, uid), self._on_open, self._on_close
                ),
                sock=listener,
            )
        )
        self._doors[job_id] = _Door(job_id, uid, listener, serving)

    def shut(self, job_id: str) -> None:
        """Listen for this job no more; connections that are there stay."""
        door = self._doors.pop(job_id, None)
        if door is None:
            return
        if door.serving.done() and not door.serving.cancelled() and door.serving.exception() is None:
            door.serving.result().close()
        else:
            door.serving.cancel()
            door.listener.close()

    @property
    def jobs(self) -> frozenset[str]:
        """Jobs with a socket."""
        return frozenset(self._doors)

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
        for job_id in tuple(self._doors):
            self.shut(job_id)
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

    def _on_line(self, connection: LineConnection, line: bytes, job_id: str, uid: int) -> None:
        number = self._numbers[connection]
        try:
            message = decode_line("from_rank", line)
        except ProtocolError:
            self.refused_lines += 1
            connection.abort()
            return
        if number in self._greeted:
            self._dispatch(RankMessage(now_s=time.monotonic(), conn_id=number, message=message))
        elif isinstance(message, RankHello) and message.ref.job_id == job_id:
            self._greet(connection, number, message, uid)
        else:
            self.refused_lines += 1
            connection.abort()

    def _greet(self, connection: LineConnection, number: int, hello: RankHello, uid: int) -> None:
        pid = connection.peer_pid(uid)
        peer = identity_of(pid) if pid else None
        stat = read_stat(pid) if pid else None
        if peer is None or stat is None:
            self.refused_lines += 1
            connection.abort()
            return
        self._greeted.add(number)
        self._dispatch(
            RankConnected(now_s=time.monotonic(), conn_id=number, hello=hello, peer=peer, session_pid=stat.session)
        )
