"""The agent's end of a rank's debug server: one bounded question over its unix socket.

The server is torch's worker server (`trainer.control.debug_server`), or what stands in for it until
torch is there (`trainer.hooks.debug_server`); it speaks HTTP/1.1 on a unix socket in the agent's
private directory and is never proxied anywhere but here. Blocking: call it in a thread.
"""

import os
import socket
import struct
import time
from pathlib import Path

from agents.ranks.files import open_regular

FOLDER = "debug"
MAX_ANSWER_BYTES = 8 * 1024 * 1024
_READ_BYTES = 65536
_LEAST_TIMEOUT_S = 0.001


class DebugServerError(Exception):
    """There was no (whole) answer; the text says why, for people."""


def tidy(folder: Path) -> None:
    """Remove the sockets of dead processes."""
    for path in folder.iterdir():
        if not Path(f"/proc/{path.stem}").exists():
            path.unlink(missing_ok=True)


def ask(folder: Path, pid: int, handler: str, *, timeout_s: float) -> bytes:
    """The body of the handler's answer. Raises DebugServerError. `folder` is the job's user's, who may have
    put a link to somebody else's socket there: only the rank's own user is asked anything."""
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            _connect(connection, folder, f"{pid}.sock")
            _check_peer(connection, folder)
            connection.sendall(request.encode())
            return _body(_read_all(connection, time.monotonic() + timeout_s))
    except FileNotFoundError as error:
        raise DebugServerError(
            "the rank has no debug server (a program without the trainer's hooks, or not yet up)"
        ) from error
    except TimeoutError as error:
        raise DebugServerError(f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise DebugServerError(f"its debug server is not reachable: {error}") from error


def groups(folder: Path, pid: int) -> bytes:
    """What the rank wrote down of its process groups; empty when it has not."""
    try:
        with open(open_regular(folder / f"{pid}.json", uid=folder.stat().st_uid), "rb") as file:
            return file.read(MAX_ANSWER_BYTES)
    except OSError:
        return b""


def _connect(connection: socket.socket, folder: Path, name: str) -> None:
    """By way of the open directory: a socket's own path may have 107 bytes at most."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)


def _check_peer(connection: socket.socket, folder: Path) -> None:
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3i", packed)[1]
    if uid != folder.stat().st_uid:
        raise DebugServerError(f"somebody else answers there (user {uid})")


def _read_all(connection: socket.socket, until_s: float) -> bytes:
    """In all by `until_s`: a rank that sends a byte now and then gets no longer than any other."""
    data = bytearray()
    while chunk := connection.recv(_READ_BYTES):
        data += chunk
        connection.settimeout(max(until_s - time.monotonic(), _LEAST_TIMEOUT_S))
        if len(data) > MAX_ANSWER_BYTES:
            raise DebugServerError(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(data)


def _body(answer: bytes) -> bytes:
    head, found, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not found or status != [b"200"]:
        raise DebugServerError(f"it refused: {(body or answer)[:200].decode('utf-8', 'replace')}")
    return body
