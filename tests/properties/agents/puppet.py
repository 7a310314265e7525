"""A process in a session of its own that says to an agent what it is given: a rank, or a host.

    python -m tests.properties.agents.puppet SOCKET HELLO

On stdin: a length in four bytes, then so many bytes, which go out on the connection as they
are (a new one, begun with HELLO, where the last was closed or the length is 0). On stdout: one
byte for each, once they have left or the agent has closed the connection. With an empty HELLO
it is a rank host: it listens on SOCKET for its agent.
"""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

from controlplane.protocol.codec import encode_line
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import RankHello

ROOT = Path(__file__).resolve().parents[3]
LENGTH = struct.Struct("<I")


def main(path: str, hello: str) -> None:
    """Until stdin ends."""
    connection: socket.socket | None = None
    listener = None if hello else _listen(path)
    while len(head := sys.stdin.buffer.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        data = sys.stdin.buffer.read(length)
        try:
            if connection is None or length == 0 or _is_closed(connection):
                if connection is not None:
                    connection.close()
                connection = _connect(path, hello) if listener is None else listener.accept()[0]
            connection.sendall(data)
        except OSError:
            connection = None
        os.write(1, b".")


def _connect(path: str, hello: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.sendall(hello.encode())
    return connection


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    return listener


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


class Puppet:
    """The other end. `ref` None: of a rank host."""

    def __init__(self, path: Path, ref: RankRef | None) -> None:
        hello = encode_line(RankHello(ref, 1)).decode() if ref is not None else ""
        argv = [sys.executable, "-m", "tests.properties.agents.puppet", str(path), hello]
        self.ref = ref
        self.process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    async def say(self, data: bytes) -> None:
        """The bytes, on the connection at hand; returns once they have left."""
        assert self.process.stdin is not None and self.process.stdout is not None, "opened with pipes"
        self.process.stdin.write(LENGTH.pack(len(data)) + data)
        self.process.stdin.flush()
        loop, stdout = asyncio.get_running_loop(), self.process.stdout
        said = loop.create_future()
        loop.add_reader(stdout, lambda: said.done() or said.set_result(os.read(stdout.fileno(), 1)))
        try:
            async with asyncio.timeout(30):
                await said
        finally:
            loop.remove_reader(stdout)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
