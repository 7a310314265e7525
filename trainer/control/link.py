"""The control link: one thread that speaks with the agent and never blocks training.

It connects to the agent's socket (for ever, when the agent is away), says hello first,
sends what is in the outbox, the progress once a second and at each border, and puts what
it hears into the mailbox. An eviction ends the process here and now: the training thread
may be stuck in C++.
"""

import select
import socket
import sys
import threading
import time
from collections.abc import Callable

from controlplane.protocol.codec import decode_line, encode_line
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import (
    MAX_LINE_BYTES,
    Evicted,
    FromRank,
    InjectFault,
    RankHello,
    ToRank,
)
from controlplane.protocol.rank_commands import CarryOut
from trainer.control.faults import Faults
from trainer.control.mailbox import Mailbox
from trainer.control.outbox import Outbox
from trainer.control.progress import Progress
from trainer.control.rank_commands import RankCommands

PROGRESS_INTERVAL_S = 1.0
BORDER_GAP_S = 0.02
RECONNECT_S = 0.2
SEND_TIMEOUT_S = 5.0
READ_BYTES = 65536


class ControlLink:
    """`send` is for facts; progress goes by itself. `pid` is this process's id."""

    def __init__(
        self,
        ref: RankRef,
        pid: int,
        *,
        path: str,
        mailbox: Mailbox,
        progress: Progress,
        faults: Faults,
        on_evicted: Callable[[Evicted], None],
    ) -> None:
        self._ref, self._pid, self._path = ref, pid, path
        self._mailbox, self._progress, self._faults = mailbox, progress, faults
        self._on_evicted = on_evicted
        self._outbox = Outbox()
        self._commands = RankCommands()
        self._bell_out, self._bell_in = socket.socketpair()
        self._bell_in.setblocking(False)
        self._bell_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="control-link", daemon=True)

    def start(self) -> None:
        """From now on the rank is known to its agent."""
        self._progress.on_border = self._ring
        self._thread.start()

    def send(self, message: FromRank) -> None:
        """Queue a fact; it is sent now or after a reconnect. One that the protocol does not allow
        is dropped, and the log says why: what it reports is missing, training goes on."""
        try:
            self._outbox.put(message)
        except ProtocolError as error:
            print(f"report not sent: {error}", file=sys.stderr, flush=True)
            return
        self._ring()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything queued is sent; False when time ran out."""
        return self._outbox.wait_empty(timeout_s)

    def _ring(self) -> None:
        try:
            self._bell_in.send(b"\0")
        except BlockingIOError:
            return  # The bell is ringing already.

    def _run(self) -> None:
        last = ""
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.settimeout(SEND_TIMEOUT_S)
                    connection.connect(self._path)
                    self._serve(connection)
            except (OSError, ProtocolError) as error:
                # Printed once, not raised: without a control link a rank goes on.
                if repr(error) != last:
                    print(f"control link lost: {error!r}", file=sys.stderr, flush=True)
                last = repr(error)
            time.sleep(RECONNECT_S)

    def _serve(self, connection: socket.socket) -> None:
        connection.sendall(encode_line(RankHello(self._ref, self._pid, self._progress.epoch)))
        self._mailbox.reconnected()
        pending = bytearray()
        due_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= due_s:
                connection.sendall(encode_line(self._progress.report()))
                due_s, sent_s = now_s + PROGRESS_INTERVAL_S, now_s
            while (line := self._outbox.head()) is not None:
                connection.sendall(line)
                self._outbox.pop()
            readable, _, _ = select.select([connection, self._bell_out], [], [], max(0.0, due_s - now_s))
            if self._bell_out in readable:
                self._bell_out.recv(READ_BYTES)
                due_s = min(due_s, sent_s + BORDER_GAP_S)
            if connection in readable:
                data = connection.recv(READ_BYTES)
                if not data:
                    raise ConnectionResetError("the agent closed the socket")
                pending += data
                self._take_lines(pending)

    def _take_lines(self, pending: bytearray) -> None:
        while (end := pending.find(b"\n")) >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            self._take(decode_line("to_rank", line))
        if len(pending) > MAX_LINE_BYTES:
            raise ConnectionResetError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def _take(self, message: ToRank) -> None:
        match message:
            case Evicted():
                self._on_evicted(message)
            case InjectFault():
                if not self._faults.inject(message):
                    print(f"fault refused: {message.kind}", file=sys.stderr, flush=True)
            case CarryOut():
                self._commands.put(message, self.send)
            case _:
                self._mailbox.put(message)
