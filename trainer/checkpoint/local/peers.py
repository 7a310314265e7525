"""Shards from node to node over TCP: `Server` takes and gives, `push` and `fetch` call it.

A request is one JSON line with the token that only the job's rendezvous store knows; the
answer is one JSON line. The sender's bytes end where the announced length ends; what came
is compared with its own digest before it gets a name.
"""

import hmac
import os
import secrets
import shutil
import socket
import threading
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from controlplane.protocol.bounds import Bytes, Digest, Epoch, Index, Step
from trainer.checkpoint.local.disk import LocalDisk
from trainer.errors import CheckpointFault

BACKLOG = 64
IO_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 5.0
TOKEN_BYTES = 16
MAX_LINE_BYTES = 4096
CHUNK_BYTES = 4 << 20


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rank answers, as it stands in the rendezvous store."""

    node: str
    host: str
    port: int
    token: str


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`bytes` follow a put."""

    token: Digest
    op: Literal["put", "get"]
    attempt: Index
    step: Step
    epoch: Epoch
    rank: Index
    bytes: Bytes = 0


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bytes` follow a get that found something; `error` is empty when all went well."""

    error: str = ""
    bytes: Bytes = 0


class Server:
    """One listening socket per rank, for the disk of its node."""

    def __init__(self, disk: LocalDisk, *, node: str, host: str) -> None:
        self._disk, self._token = disk, secrets.token_hex(TOKEN_BYTES)
        self._listener = socket.create_server((host, 0), backlog=BACKLOG)
        self.peer = Peer(node, host, self._listener.getsockname()[1], self._token)
        threading.Thread(target=self._accept, name="local-tier", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="local-tier-serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(IO_TIMEOUT_S)
            try:
                with connection.makefile("rwb") as stream:
                    self._answer(stream)
            except (OSError, msgspec.DecodeError, ValueError, RecursionError):
                return  # The other side went away or spoke nonsense; it asks somebody else.

    def _answer(self, stream: BinaryIO) -> None:
        request = msgspec.json.decode(stream.readline(MAX_LINE_BYTES), type=Request)
        if not hmac.compare_digest(request.token, self._token):
            return
        if request.op == "put":
            _say(stream, self._take(request, stream))
            return
        path = self._disk.path(request.step, request.epoch, request.rank)
        try:
            with path.open("rb") as file:
                _say(stream, Reply(bytes=path.stat().st_size))
                shutil.copyfileobj(file, stream, CHUNK_BYTES)
                stream.flush()
        except FileNotFoundError:
            _say(stream, Reply("not here"))

    def _take(self, request: Request, stream: BinaryIO) -> Reply:
        try:
            self._disk.admit(request.bytes)
            shard_of = (request.step, request.epoch, request.rank)
            self._disk.receive(shard_of, request.attempt, lambda draft: _copy(stream, draft, request.bytes))
        except (OSError, CheckpointFault) as error:
            return Reply(f"{error}")
        return Reply()


def push(peer: Peer, path: Path, *, attempt: int, step: int, epoch: int, rank: int) -> None:
    """Have `peer`'s node keep a copy of a shard; durable there when it returns. Raises OSError,
    CheckpointFault."""
    size = path.stat().st_size
    request = Request(token=peer.token, op="put", attempt=attempt, step=step, epoch=epoch, rank=rank, bytes=size)
    with _connect(peer) as connection, connection.makefile("rwb") as stream, path.open("rb") as file:
        stream.write(msgspec.json.encode(request) + b"\n")
        shutil.copyfileobj(file, stream, CHUNK_BYTES)
        stream.flush()
        _heard(stream, peer)


def fetch(peer: Peer, disk: LocalDisk, *, attempt: int, step: int, epoch: int, rank: int) -> None:
    """Have a shard of `peer`'s node on this one too. Raises OSError, CheckpointFault (also when
    it is not there)."""
    request = Request(token=peer.token, op="get", attempt=attempt, step=step, epoch=epoch, rank=rank)
    with _connect(peer) as connection, connection.makefile("rwb") as stream:
        _say(stream, request)
        reply = _heard(stream, peer)
        disk.admit(reply.bytes)
        disk.receive((step, epoch, rank), None, lambda draft: _copy(stream, draft, reply.bytes))


def _connect(peer: Peer) -> socket.socket:
    connection = socket.create_connection((peer.host, peer.port), timeout=CONNECT_TIMEOUT_S)
    connection.settimeout(IO_TIMEOUT_S)
    return connection


def _say(stream: BinaryIO, message: Request | Reply) -> None:
    stream.write(msgspec.json.encode(message) + b"\n")
    stream.flush()


def _heard(stream: BinaryIO, peer: Peer) -> Reply:
    line = stream.readline(MAX_LINE_BYTES)
    if not line:
        raise ConnectionError(f"node {peer.node} hung up")
    reply = msgspec.json.decode(line, type=Reply)
    if reply.error:
        raise CheckpointFault(f"node {peer.node}: {reply.error}")
    return reply


def _copy(stream: BinaryIO, draft: Path, size: int) -> None:
    """Exactly `size` bytes, durable. Raises OSError."""
    left = size
    with draft.open("wb") as file:
        while left:
            chunk = stream.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise ConnectionError(f"the sender stopped {left} bytes early")
            file.write(chunk)
            left -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
