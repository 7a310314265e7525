"""Rank hosts: one process per job that imports once and forks ranks on request.

A host outlives its agent. Its socket's place follows from the job, so that an agent that
lost everything else still finds it; its identity comes from the kernel, not from a file. It
runs as the job's user, so what it says of processes is believed of that user's alone.
"""

import asyncio
import os
import time
from collections.abc import Callable

from agents.core.events import (
    Event,
    HostListed,
    HostProcessGone,
    HostReadied,
    HostStarted,
    HostStartFailed,
    RankForkedHere,
    RankProcessGone,
    RankSpawnFailed,
)
from agents.core.state import Identity
from agents.errors import LaunchError
from agents.log import note
from agents.ranks.identity import is_alive, read_stat, uid_of
from agents.ranks.launch import Standing, host_argv, spawn_detached
from agents.ranks.lines import LineConnection
from agents.ranks.logs import LogFiles, tail
from agents.ranks.places import Place
from agents.ranks.watcher import ProcessWatcher
from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import (
    ForkRank,
    FromHost,
    HostReady,
    HostState,
    ListRanks,
    RankForked,
    RankGone,
    ShutdownHost,
    ToHost,
)

_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 0.5
_STABLE_S = 5.0
_NOTE_EVERY_S = 10.0


class HostKeeper:
    """Starts, finds, connects to and watches the hosts of this node."""

    def __init__(
        self,
        module: str,
        logs: LogFiles,
        watcher: ProcessWatcher,
        dispatch: Callable[[Event], None],
    ) -> None:
        self._module = module
        self._logs = logs
        self._watcher = watcher
        self._dispatch = dispatch
        self._identities: dict[str, Identity] = {}
        self._places: dict[str, Place] = {}
        self._connections: dict[str, LineConnection] = {}
        self._waiting: dict[str, list[ToHost]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked_at_s: dict[RankRef, float] = {}
        self._noted_s = -_NOTE_EVERY_S
        self.refused_lines = 0

    def start(self, job_id: str, place: Place, standing: Standing) -> None:
        """Start the job's host. Raises LaunchError."""
        path = place.host_socket
        path.unlink(missing_ok=True)
        log = self._logs.create(self._logs.host(job_id), place)
        try:
            identity = spawn_detached(host_argv(self._module, path, job_id), extra={}, log=log, standing=standing)
        finally:
            os.close(log)
        self.adopt(job_id, identity, place)
        self._dispatch(HostStarted(now_s=time.monotonic(), job_id=job_id, identity=identity))

    def failed(self, job_id: str, error: LaunchError) -> None:
        """It could not be started."""
        self._dispatch(HostStartFailed(now_s=time.monotonic(), job_id=job_id, error=str(error)))

    def not_asked(self, ref: RankRef, error: LaunchError) -> None:
        """What a rank needs before it is forked could not be made."""
        self._dispatch(RankSpawnFailed(now_s=time.monotonic(), ref=ref, error=str(error)))

    def adopt(self, job_id: str, identity: Identity, place: Place) -> None:
        """Watch a host and keep connected to it."""
        self._identities[job_id] = identity
        self._places[job_id] = place
        self._watcher.watch(identity, lambda code, number, known: self._on_gone(job_id, code, number, known))
        self._tasks[job_id] = asyncio.get_running_loop().create_task(self._keep_connected(job_id, identity))

    def pid(self, job_id: str) -> int | None:
        """Of the job's host, None before it was started."""
        identity = self._identities.get(job_id)
        return None if identity is None else identity.pid

    def send(self, job_id: str, message: ToHost) -> None:
        """Orders to a host that is not connected wait for the connection."""
        if isinstance(message, ForkRank):
            self._asked_at_s[message.ref] = time.monotonic()
        connection = self._connections.get(job_id)
        if connection is None or not connection.send(encode_line(message)):
            self._waiting.setdefault(job_id, []).append(message)

    def ask(self, job_id: str) -> None:
        """Which of your ranks live? Answered by `HostListed`."""
        self.send(job_id, ListRanks())

    def shutdown(self, job_id: str) -> None:
        """Ask it to leave when no rank is left."""
        self.send(job_id, ShutdownHost())

    def close(self) -> None:
        """Let go of every host; they live on."""
        for task in self._tasks.values():
            task.cancel()
        for connection in tuple(self._connections.values()):
            connection.close()

    async def _keep_connected(self, job_id: str, identity: Identity) -> None:
        delay_s = _RETRY_FIRST_S
        while is_alive(identity):
            closed = asyncio.get_running_loop().create_future()
            protocol = LineConnection(
                lambda made, line: self._on_line(job_id, identity, made, line),
                lambda opened: self._on_open(job_id, identity, opened),
                lambda _, done=closed: done.done() or done.set_result(None),  # type: ignore[misc]
            )
            try:
                await asyncio.get_running_loop().create_unix_connection(
                    lambda made=protocol: made,  # type: ignore[misc]
                    str(self._places[job_id].host_socket),
                )
            except OSError:
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, _RETRY_MAX_S)
                continue
            opened_s = time.monotonic()
            await closed
            if self._connections.get(job_id) is protocol:
                del self._connections[job_id]
            # One that is closed at once, because it speaks nonsense, is not asked all the time.
            stable = time.monotonic() - opened_s > _STABLE_S
            delay_s = _RETRY_FIRST_S if stable else min(delay_s * 2, _RETRY_MAX_S)
            await asyncio.sleep(delay_s)

    def _on_open(self, job_id: str, identity: Identity, connection: LineConnection) -> None:
        if connection.peer_pid(self._places[job_id].uid) != identity.pid:
            # Somebody else sits on that path; our host will be found when it does.
            connection.abort()
            return
        self._connections[job_id] = connection
        for message in self._waiting.pop(job_id, []):
            connection.send(encode_line(message))

    def _on_line(self, job_id: str, host: Identity, connection: LineConnection, line: bytes) -> None:
        try:
            message = decode_line("from_host", line)
        except ProtocolError as error:
            self._refuse(job_id, connection, str(error))
            return
        if not self._take(job_id, host, message):
            self._refuse(job_id, connection, "it speaks for a rank, or for a process, that is not its own")

    def _refuse(self, job_id: str, connection: LineConnection, why: str) -> None:
        self.refused_lines += 1
        if time.monotonic() - self._noted_s >= _NOTE_EVERY_S:
            self._noted_s = time.monotonic()
            note("a rank host's line refused", job=job_id, lines=self.refused_lines, last=why)
        connection.abort()

    def _take(self, job_id: str, host: Identity, message: FromHost) -> bool:
        """False: a host may tell of its own job's ranks, and of its own children, alone."""
        now_s = time.monotonic()
        match message:
            case HostReady():
                self._dispatch(HostReadied(now_s=now_s, job_id=job_id, import_s=message.import_s))
            case RankForked() if message.ref.job_id == job_id and _is_child(message, host):
                if not self._is_ours(job_id, message):
                    return True
                asked_s = self._asked_at_s.pop(message.ref, now_s)
                identity = Identity(message.pid, message.start_time_ticks)
                self._dispatch(RankForkedHere(now_s=now_s, ref=message.ref, identity=identity, took_s=now_s - asked_s))
            case RankGone() if message.ref.job_id == job_id:
                self._dispatch(
                    RankProcessGone(
                        now_s=now_s,
                        ref=message.ref,
                        pid=message.pid,
                        exit_code=message.exit_code,
                        signal=message.signal,
                        known=True,
                        log_tail=tail(self._logs.rank(message.ref)),
                    )
                )
            case HostState() if all(_is_child(forked, host) for forked in message.ranks):
                ranks = tuple(f for f in message.ranks if f.ref.job_id == job_id and self._is_ours(job_id, f))
                self._dispatch(HostListed(now_s=now_s, job_id=job_id, ranks=ranks))
            case _:
                return False
        return True

    def _is_ours(self, job_id: str, forked: RankForked) -> bool:
        """A process of the job's user, or one that is gone: a host that names another's would have
        it watched, and in the end killed, by an agent that may be root."""
        uid = uid_of(forked.pid)
        if uid is None or uid == self._places[job_id].uid:
            return True
        note("rank refused: another user's process", job=job_id, pid=forked.pid, uid=uid)
        return False

    def _on_gone(self, job_id: str, code: int | None, number: int | None, known: bool) -> None:
        self._identities.pop(job_id, None)
        self._connections.pop(job_id, None)
        self._waiting.pop(job_id, None)
        task = self._tasks.pop(job_id, None)
        if task is not None:
            task.cancel()
        exit_code = -number if known and number is not None else code
        log_tail = tail(self._logs.host(job_id))
        self._dispatch(HostProcessGone(now_s=time.monotonic(), job_id=job_id, exit_code=exit_code, log_tail=log_tail))


def _is_child(forked: RankForked, host: Identity) -> bool:
    """The process is the host's own: what is signalled as a rank must be no stranger. One that is
    gone already, or whose pid is another's by now, is never signalled."""
    stat = read_stat(forked.pid)
    return stat is None or stat.start_time_ticks != forked.start_time_ticks or stat.parent == host.pid
