"""Sends bytes to loopback connections as fast as the kernel takes them:
`PORT BYTES CONNECTIONS MEMORY`, each connection from MEMORY bytes, over and over."""

import socket
import sys
import threading

BLOCK_BYTES = 2 << 20


def send(port: int, count: int, memory: memoryview) -> None:
    """One connection, after one byte from there."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(1)
        position = 0
        while count > 0:
            block = memory[position : position + min(count, BLOCK_BYTES)]
            connection.sendall(block)
            position = (position + len(block)) % len(memory)
            count -= len(block)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def main(port: int, count: int, connections: int, memory: int) -> None:
    """All connections at once."""
    held = [memoryview(bytearray(b"x" * memory)) for _ in range(connections)]
    threads = [threading.Thread(target=send, args=(port, count, each)) for each in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:5]))
