"""The agent's sockets for its ranks, one a job: who is who, one line at a time.

No byte from here ends or stalls an agent: a connection's lines are bounded in size and in
rate (`gate`), a line that is outside of the protocol is dropped, counted and reported, and a
connection with too many of them is closed. Who speaks is the process that connected: the kernel
tells its number, which may be another process's later, so it is looked at on accepting, and
again at the hello, which counts only if it is still the same.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agents.core.events import Event, RankConnected, RankDisconnected, RankLineRefused, RankMessage
from agents.core.state import Identity, Rank
from agents.log import note
from agents.ranks.gate import MAX_REFUSED, Caller, Gate, Pass
from agents.ranks.identity import identity_of, read_stat, uid_of
from agents.ranks.lines import LineConnection
from agents.ranks.places import Place
from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import MAX_REPORT_BYTES, RankHello, ToRank

HELLO_TIMEOUT_S = 10.0
_NOTE_EVERY_S = 10.0
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class _JobSocket:
    """One job's socket. `uid` is who its ranks run as."""

    job_id: str
    uid: int
    listener: socket.socket
    serving: "asyncio.Task[asyncio.AbstractServer]"


@dataclass(frozen=True, slots=True)
class _Process:
    """Who connected, as it was then. `session`: of which it is."""

    identity: Identity
    uid: int
    session: int


@dataclass(slots=True)
class _Peer:
    """One connection that was let in at the socket of `job_id`. `process` None: it is gone, or
    another user's. `refused` lines so far."""

    number: int
    entry: Pass
    job_id: str
    process: _Process | None
    refused: int = 0

    @property
    def greeted(self) -> bool:
        """It said hello."""
        return self.entry.greeted


class RankServer:
    """Listens on each job's socket, which the job's user alone can use. Turns lines into events,
    messages into lines.

    The first line of a connection must be a hello of a rank of that job, from a process of the
    job's user. `ranks` tells whom the agent knows. `refused_lines` counts what never reached the
    core, `refused_connections` those that were closed before they said anything.
    """

    def __init__(self, dispatch: Callable[[Event], None], ranks: Callable[[], Mapping[RankRef, Rank]] = dict) -> None:
        self._dispatch = dispatch
        self._ranks = ranks
        self._sockets: dict[str, _JobSocket] = {}
        self._gate = Gate()
        self._peers: dict[LineConnection, _Peer] = {}
        self._connections: dict[int, LineConnection] = {}
        self._next_number = 1
        self._noted_s = -_NOTE_EVERY_S
        self.refused_lines = self.refused_connections = 0

    def open(self, job_id: str, place: Place) -> None:
        """Listen for the job's ranks. A socket left by an earlier agent is replaced; the state-dir
        lock says it is dead. Raises OSError."""
        opened = self._sockets.get(job_id)
        if opened is not None and opened.uid == place.uid and place.agent_socket.exists():
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
        serving = loop.create_task(loop.create_unix_server(lambda: self._accept(job_id, uid), sock=listener))
        self._sockets[job_id] = _JobSocket(job_id, uid, listener, serving)

    def shut(self, job_id: str) -> None:
        """Listen for this job no more; connections that are there stay."""
        opened = self._sockets.pop(job_id, None)
        if opened is None:
            return
        if opened.serving.done() and not opened.serving.cancelled() and opened.serving.exception() is None:
            opened.serving.result().close()
        else:
            opened.serving.cancel()
            opened.listener.close()

    @property
    def jobs(self) -> frozenset[str]:
        """Jobs with a socket."""
        return frozenset(self._sockets)

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
        for job_id in tuple(self._sockets):
            self.shut(job_id)
        for connection in tuple(self._connections.values()):
            connection.close()

    def _accept(self, job_id: str, uid: int) -> LineConnection:
        return LineConnection(
            self._on_line,
            lambda connection: self._on_open(connection, job_id, uid),
            self._on_close,
            on_read=self._on_read,
            max_line_bytes=MAX_REPORT_BYTES,
        )

    def _on_open(self, connection: LineConnection, job_id: str, uid: int) -> None:
        process = _process_of(connection, uid)
        session = process.session if process is not None else 0
        known = process is not None and self._is_ranks(job_id, session)
        caller = Caller(job_id, uid, session, known, known and process is not None and process.identity.pid == session)
        entry = self._gate.enter(caller, time.monotonic(), lambda: self._yield(connection))
        if entry is None:
            self._turn_away("too many connections of one rank, or too many in a short time")
            connection.abort()
            return
        number = self._next_number
        self._next_number += 1
        self._peers[connection] = _Peer(number, entry, job_id, process)
        self._connections[number] = connection
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._close_silent, connection)

    def _is_ranks(self, job_id: str, session: int) -> bool:
        """The session is led by a rank of the job that the agent knows."""
        for ref, rank in self._ranks().items():
            if ref.job_id == job_id and rank.identity is not None and rank.identity.pid == session:
                leader = read_stat(session)
                # While anybody is in the session its number is given to nobody else.
                return leader is None or leader.start_time_ticks == rank.identity.start_time_ticks
        return False

    def _yield(self, connection: LineConnection) -> None:
        self._turn_away("closed before its hello: too many connections that are no known rank's")
        connection.abort()

    def _turn_away(self, why: str) -> None:
        self.refused_connections += 1
        self._note_refusals(why)

    def _on_close(self, connection: LineConnection) -> None:
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        self._gate.leave(peer.entry)
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
            peer.entry.share.spend(size_bytes=size_bytes)
            self._hold_back(connection, peer)

    def _hold_back(self, connection: LineConnection, peer: _Peer) -> None:
        wait_s = peer.entry.share.wait_s(time.monotonic())
        if wait_s > 0.0:
            connection.hold(wait_s)

    def _on_line(self, connection: LineConnection, line: bytes) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            return
        peer.entry.share.spend()
        try:
            message = decode_line("from_rank", line)
        except ProtocolError as error:
            self._refuse(connection, peer, str(error))
        else:
            if peer.greeted:
                self._dispatch(RankMessage(now_s=time.monotonic(), conn_id=peer.number, message=message))
            elif isinstance(message, RankHello) and message.ref.job_id == peer.job_id:
                self._greet(connection, peer, message)
            else:
                self._refuse(connection, peer, "the first line of a connection is a hello of a rank of this job")
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
        process = peer.process
        stat = read_stat(process.identity.pid) if process is not None else None
        if process is None or stat is None or not _is_still(process):
            self.refused_lines += 1
            self._note_refusals("a hello of a process that is gone, or is not the one that connected")
            connection.abort()
            return
        self._gate.greet(peer.entry, known=False)
        now_s, session = time.monotonic(), stat.session
        self._dispatch(
            RankConnected(now_s=now_s, conn_id=peer.number, hello=hello, peer=process.identity, session_pid=session)
        )
        self._gate.greet(peer.entry, known=self._is_ranks(peer.job_id, session))


def _process_of(connection: LineConnection, uid: int) -> _Process | None:
    peer = connection.peer(uid)
    if peer is None:
        return None
    stat = read_stat(peer[0])
    if stat is None:
        return None
    process = _Process(Identity(peer[0], stat.start_time_ticks), peer[1], stat.session)
    return process if _is_still(process) else None


def _is_still(process: _Process) -> bool:
    """It lives, has the same number, and is the user's who connected."""
    return uid_of(process.identity.pid) == process.uid and identity_of(process.identity.pid) == process.identity
