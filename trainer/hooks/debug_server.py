"""The debug server of a program that brings its own loop (`trainer.control.debug_server` tells of debug_servers).

It opens before torch is imported, so a thread of Python's answers first: `ping` and the
profile, and that there is no Flight Recorder. As soon as the program has a process group,
torch's own server takes its place, which also answers while the interpreter is locked.
"""

import atexit
import os
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from trainer.control.debug_common import HANDLERS, debug_socket_path, listen_at

LOOK_INTERVAL_S = 1.0
READ_TIMEOUT_S = 2.0
MAX_REQUEST_BYTES = 4096
NO_GROUP = "the program has no process group of torch.distributed, and so no Flight Recorder and no wait counters"
_REASONS = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}


def open_debug_server(agent_socket: str) -> None:
    """Listen, until the process ends. The agent asks by the process that it started, which
    leads this one's session where a shell stands between. Raises OSError."""
    DebugServer(debug_socket_path(agent_socket, os.getsid(0))).start()


class DebugServer:
    """One thread; each question has another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._absent = NO_GROUP
        self._ending, self._with_torch = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="debug-server", daemon=True)

    def start(self) -> None:
        """Raises OSError."""
        self._path.with_suffix(".json").unlink(missing_ok=True)
        self._listener = listen_at(self._path, _listen)
        atexit.register(self._end)
        self._thread.start()

    def _run(self) -> None:
        with self._listener as listener:
            while not self._gave_way():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=self._answer, args=(connection,), name="debug-answer", daemon=True).start()
        self._keep_groups()

    def _gave_way(self) -> bool:
        """Whether torch serves in this one's place."""
        if self._absent is not NO_GROUP or not _has_group():
            return False
        self._with_torch = True
        if self._ending.is_set():
            return False
        try:
            from trainer.control import debug_server

            if debug_server.open_debug_server(self._path):
                return True
        except (ImportError, AttributeError) as error:
            self._absent = f"the program's torch has no worker server: {error}"
            return False
        self._absent = "torch's worker server could not be started; the rank's log says why"
        return False

    def _keep_groups(self) -> None:
        """Write the process groups down whenever there are others."""
        from trainer.control import debug_server

        last: tuple[str, ...] = ()
        while not self._ending.is_set():
            try:
                if (names := debug_server.group_names()) != last:
                    debug_server.write_groups(self._path)
                    last = names
            except (RuntimeError, KeyError):
                pass  # They changed while they were read.
            self._ending.wait(LOOK_INTERVAL_S)

    def _end(self) -> None:
        """Before the interpreter ends: a thread that has had torch's groups in hand and outlives
        it would end the process by SIGABRT."""
        self._ending.set()
        if self._with_torch:
            self._thread.join(LOOK_INTERVAL_S)

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(READ_TIMEOUT_S)
                status, body = self._reply(_request(connection))
                head = (
                    f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                connection.sendall(head.encode() + body)
        except (OSError, ValueError):
            return  # The client spoke no HTTP or went away; it is the one to say so.

    def _reply(self, target: str) -> tuple[int, bytes]:
        asked = urlsplit(target)
        match asked.path.removeprefix("/handler/"):
            case "ping":
                return 200, b"pong"
            case name if name in HANDLERS:
                return 200, HANDLERS[name](_duration_s(asked.query)).encode()
            case "fr_trace_json" | "wait_counter_values":
                return 503, self._absent.encode()
            case _:
                return 404, b"Handler not found"


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen()
    except OSError:
        listener.close()
        raise
    listener.settimeout(LOOK_INTERVAL_S)
    return listener


def _has_group() -> bool:
    """Looked up among the loaded modules, never imported; one that is still being loaded has none."""
    is_initialized = getattr(sys.modules.get("torch.distributed"), "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _request(connection: socket.socket) -> str:
    """The target of its first line, "" where there is none."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < MAX_REQUEST_BYTES and (chunk := connection.recv(MAX_REQUEST_BYTES)):
        data += chunk
    words = data.partition(b"\r\n")[0].decode("latin-1").split(" ")
    return words[1] if len(words) == 3 else ""


def _duration_s(query: str) -> float:
    try:
        return float(parse_qs(query)["duration"][0])
    except (KeyError, ValueError):
        return 1.0
