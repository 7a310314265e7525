"""Sends bytes to loopback connections as fast as the kernel takes them:
`PORT BYTES CONNECTIONS MEMORY BUFFER`, each connection from MEMORY bytes, over and over, with
BUFFER bytes of send buffer as the kernel counts them (0: as it sizes them itself)."""

import socket
import sys
import threading

BLOCK_BYTES = 2 << 20


def send(port: int, count: int, memory: memoryview, buffer_bytes: int) -> None:
    """One connection, after one byte from there."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        if buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes // 2)
        connection.recv(1)
        position = 0
        while count > 0:
            block = memory[position : position + min(count, BLOCK_BYTES)]
            connection.sendall(block)
            position = (position + len(block)) % len(memory)
            count -= len(block)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def main(port: int, count: int, connections: int, memory: int, buffer_bytes: int) -> None:
    """All connections at once."""
    held = [memoryview(bytearray(b"x" * memory)) for _ in range(connections)]
    threads = [threading.Thread(target=send, args=(port, count, each, buffer_bytes)) for each in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:6]))
