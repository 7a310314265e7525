"""The rank processes of a workload: forked from one import, spoken to over socket pairs.

The controller's process has imported everything and has no threads, so a fork is a warm
rank in milliseconds. A process is a session of its own: it is ended by its process group,
because checkpoint writers inherit its sockets and would keep its peers waiting. Its death
is seen on a pidfd, never guessed from silence; silence counts only against the deadline
of a call that it was given. Messages are typed and framed; no code travels.
"""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trainer.exits import ExitCode
from trainer.workloads.dispatch import Call, Reply
from trainer.workloads.errors import CallFailed, RanksLost, WorldLost

HEAD_BYTES = 4
MAX_MESSAGE_BYTES = 64 << 20
SEND_TIMEOUT_S = 10.0
LOG_TAIL_CHARS = 400
WAKE = signal.SIGUSR1
"""A rank of your world is lost: wait for nobody. A process that takes calls `in_world` must
not die of it before its first answer."""
WAKE_EVERY_S = 0.5


class Failed(Reply, frozen=True, tag="failed"):
    """A call that a rank could not carry out. `peer_lost`: because another rank is gone;
    the rank has left the world already, so that those who wait for it are woken."""

    error: str
    peer_lost: bool


class Wire:
    """Both ends of one socket: a length, then MessagePack."""

    def __init__(self, connection: socket.socket, incoming: Any) -> None:
        """`incoming`: the union of message types that may arrive here."""
        self.connection = connection
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(incoming)

    def send(self, message: Call | Reply) -> None:
        """Raises OSError when the other end is gone."""
        data = msgspec.msgpack.encode(message)
        assert len(data) <= MAX_MESSAGE_BYTES, f"{type(message).__name__} of {len(data)} bytes"
        self.connection.sendall(len(data).to_bytes(HEAD_BYTES, "big") + data)

    def receive(self) -> Any:
        """Raises EOFError at the end, ValueError on what is no message."""
        size = int.from_bytes(self._exactly(HEAD_BYTES), "big")
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes, the limit is {MAX_MESSAGE_BYTES}")
        return self._decoder.decode(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.connection.recv(size - len(data))
            if not chunk:
                raise EOFError("the other end closed")
            data += chunk
        return bytes(data)


@dataclass(slots=True)
class _Process:
    number: int
    pid: int
    pidfd: int
    wire: Wire


@dataclass(slots=True)
class _Pending:
    """What is still awaited in one round of calls."""

    deadline_s: float
    patience_s: float
    in_world: bool
    silent: set[int]
    hurried: bool = False
    replies: dict[int, Reply] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)

    def hurry(self) -> None:
        """Something is lost: the others answer soon or never."""
        if not self.hurried:
            self.hurried = True
            self.deadline_s = min(self.deadline_s, time.monotonic() + self.patience_s)


class RankPool:
    """Processes numbered from 0 in the order of their start. Single-threaded."""

    def __init__(self, body: Callable[[Wire, int], ExitCode], *, calls: Any, replies: Any, log_dir: Path) -> None:
        """`body(wire, number)` is a process's life; `calls` and `replies` are unions of message types."""
        self._body, self._calls, self._replies, self._log_dir = body, calls, replies, log_dir
        self._alive: dict[int, _Process] = {}
        self._started = 0
        log_dir.mkdir(parents=True, exist_ok=True)

    def start(self) -> int:
        """Fork one more process; returns its number."""
        number = self._started
        self._started += 1
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._become(number, theirs)
        theirs.close()
        ours.settimeout(SEND_TIMEOUT_S)
        self._alive[number] = _Process(number, pid, os.pidfd_open(pid), Wire(ours, self._replies))
        return number

    @property
    def alive(self) -> frozenset[int]:
        """Numbers of the processes that are not known to be dead."""
        return frozenset(self._alive)

    def pid(self, number: int) -> int:
        """Process id. Raises KeyError for a dead one."""
        return self._alive[number].pid

    def kill(self, numbers: Iterable[int]) -> None:
        """SIGKILL to their process groups, at once; `dead` will tell of them."""
        for number in numbers:
            _kill_group(self._alive[number].pid)

    def dead(self, *, wait_for: Iterable[int] = (), timeout_s: float = 10.0) -> dict[int, str]:
        """Processes that have ended since it was last asked, and how. Waits for the deaths of
        `wait_for`. Positive evidence only."""
        awaited = set(wait_for)
        deadline_s = time.monotonic() + timeout_s
        found: dict[int, str] = {}
        while True:
            for number, process in list(self._alive.items()):
                if _ended(process):
                    found[number] = self._bury(process)
            remaining_s = deadline_s - time.monotonic()
            if not awaited & set(self._alive) or remaining_s <= 0:
                return found
            with selectors.DefaultSelector() as selector:
                for number in awaited & set(self._alive):
                    selector.register(self._alive[number].pidfd, selectors.EVENT_READ)
                selector.select(remaining_s)

    def ask(
        self,
        calls: Mapping[int, Call],
        *,
        timeout_s: float,
        patience_s: float,
        meanwhile: Callable[[], None] | None = None,
        in_world: bool = True,
    ) -> dict[int, Reply]:
        """Send each process its call and wait for every answer.

        A process that dies is known at once; from then, or from the first word that a peer is
        lost, the others have `patience_s` to notice and answer. One that has not answered by
        its deadline is ended: it is hung, and what it would do later must not count. The
        timeout of the ranks' own collectives must be shorter than `timeout_s`, so that those
        who wait for a hung rank speak before they are taken for hung. `meanwhile` runs once all calls are on their way.
        With `in_world` the called need each other: after a loss those who are silent get WAKE
        until they speak, for some waits of gloo end with no timeout. Raises RanksLost (WorldLost when
        all of them live), CallFailed.
        """
        pending = _Pending(time.monotonic() + timeout_s, patience_s, in_world, set(calls))
        for number, call in calls.items():
            try:
                self._alive[number].wire.send(call)
            except (KeyError, OSError):
                self._lose(pending, number)
        if meanwhile is not None:
            meanwhile()
        with selectors.DefaultSelector() as selector:
            for number in pending.silent:
                selector.register(self._alive[number].wire.connection, selectors.EVENT_READ, number)
                selector.register(self._alive[number].pidfd, selectors.EVENT_READ, number)
            self._gather(pending, selector)
        for number in sorted(pending.silent):
            self.kill([number])
            self.dead(wait_for=[number])
            pending.lost[number] = f"no answer to {type(calls[number]).__name__} in time; ended"
        if pending.lost:
            raise RanksLost(pending.lost)
        failed = {number: reply for number, reply in pending.replies.items() if isinstance(reply, Failed)}
        if failed:
            words = {number: reply.error for number, reply in sorted(failed.items())}
            if all(reply.peer_lost for reply in failed.values()):
                raise WorldLost(words)
            raise CallFailed("; ".join(f"process {number}: {error}" for number, error in words.items()))
        return pending.replies

    def close(self) -> None:
        """End every process that is left."""
        numbers = list(self._alive)
        self.kill(numbers)
        self.dead(wait_for=numbers)

    def log(self, number: int) -> Path:
        """Where a process writes what it has to say."""
        return self._log_dir / f"process-{number}.log"

    def _gather(self, pending: _Pending, selector: selectors.BaseSelector) -> None:
        while pending.silent and (remaining_s := pending.deadline_s - time.monotonic()) > 0:
            if pending.hurried and pending.in_world:
                remaining_s = min(remaining_s, WAKE_EVERY_S)
                for number in pending.silent:
                    os.kill(self._alive[number].pid, WAKE)
            for number in sorted({key.data for key, _ in selector.select(remaining_s)}):
                if number not in pending.silent:
                    continue
                process = self._alive[number]
                # The last words first: a process may answer and end.
                answered = _readable(process.wire.connection) and self._take(pending, process)
                if not answered and not _ended(process):
                    continue
                selector.unregister(process.wire.connection)
                selector.unregister(process.pidfd)
                if not answered:
                    self._lose(pending, number)

    def _take(self, pending: _Pending, process: _Process) -> bool:
        """True when an answer came. A process that closed its socket or sends what is no answer is ended."""
        try:
            reply = process.wire.receive()
        except (EOFError, OSError, ValueError):
            _kill_group(process.pid)
            _wait_for_end(process)
            return False
        pending.replies[process.number] = reply
        pending.silent.discard(process.number)
        if isinstance(reply, Failed) and reply.peer_lost:
            pending.hurry()
        return True

    def _lose(self, pending: _Pending, number: int) -> None:
        pending.silent.discard(number)
        process = self._alive.get(number)
        pending.lost[number] = "ended before the call" if process is None else self._bury(process)
        pending.hurry()

    def _bury(self, process: _Process) -> str:
        """Reap it, end what it left behind, close its descriptors. Returns how it ended."""
        _kill_group(process.pid)
        _, status = os.waitpid(process.pid, 0)
        os.close(process.pidfd)
        process.wire.connection.close()
        del self._alive[process.number]
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        tail = self.log(process.number).read_text(errors="replace")[-LOG_TAIL_CHARS:].strip()
        return f"ended with exit code {code}: {tail}"

    def _become(self, number: int, connection: socket.socket) -> None:
        """In the child; never returns."""
        code = ExitCode.INTERNAL
        try:
            os.setsid()
            for other in self._alive.values():
                other.wire.connection.close()
                os.close(other.pidfd)
            log = os.open(self.log(number), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o640)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = self._body(Wire(connection, self._calls), number)
        except BaseException:  # Nothing may unwind into the controller's own code.
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _ended(process: _Process) -> bool:
    return _readable(process.pidfd)


def _wait_for_end(process: _Process) -> None:
    _readable(process.pidfd, wait_s=SEND_TIMEOUT_S)


def _readable(source: Any, wait_s: float = 0.0) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        return bool(selector.select(wait_s))


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):  # Forked a moment ago: not yet a session of its own.
            os.kill(pid, signal.SIGKILL)
