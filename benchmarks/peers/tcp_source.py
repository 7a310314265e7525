"""Sends bytes to loopback connections as fast as the kernel takes them: `PORT BYTES CONNECTIONS`."""

import socket
import sys
import threading

BLOCK_BYTES = 4 << 20
BLOCKS = 16


def send(port: int, count: int, memory: memoryview) -> None:
    """One connection, from a buffer larger than the caches of a core, after one byte from there."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(1)
        position = 0
        while count > 0:
            size = min(count, BLOCK_BYTES)
            connection.sendall(memory[position : position + size])
            position = (position + BLOCK_BYTES) % len(memory)
            count -= size
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def main(port: int, count: int, connections: int) -> None:
    """All connections at once."""
    memory = memoryview(bytearray(b"x" * (BLOCKS * BLOCK_BYTES)))
    threads = [threading.Thread(target=send, args=(port, count, memory)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:4]))
