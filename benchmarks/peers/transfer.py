"""How fast a rank's state goes from one process to another: ours, torchft's, plain TCP.

Each sender is a process of its own and holds random bytes; the receiver is this process
(torchft's is a process of its environment). Only the transfer is timed, from the first
request to the last byte in the receiver's tensors and checked; what a donor spends on its
copy and its digests before that is reported beside it.
"""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import xxhash

from benchmarks.peers import torchft
from benchmarks.peers.runner import PeerFailed
from benchmarks.peers.transfer_state import MEGABYTE, STEP, state
from benchmarks.processes import REPOSITORY
from controlplane.protocol.launch import RankRef
from trainer.replica.donor import IN_FLIGHT_BYTES, Donor, bound_blocking, local_host_towards
from trainer.replica.fetch import Fetch
from trainer.replica.snapshot import CHUNK_BYTES

TIMEOUT_S = 60.0
WARM_BYTES = 64 << 20
JOB = "benchmark"
DONOR, JOINER = (0, 1), (1, 1)


class Ours:
    """Donor ranks of one state behind one rendezvous store."""

    def __init__(self, megabytes: int, *, donors: int) -> None:
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S)
        )
        self._target = state(megabytes, filled=False)
        self._donors = [self._start(megabytes, replica) for replica in range(donors)]
        self.prepared_s = [float(_said(process)[1]) for process in self._donors]

    def _start(self, megabytes: int, replica: int) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "benchmarks.peers.transfer", str(self._store.port), str(megabytes), str(replica)]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)

    def measure(self) -> float:
        """Seconds of one transfer into zeroed tensors. Raises PeerFailed when it is not whole."""
        for tensor in self._target:
            tensor.zero_()
        donors = tuple((replica, 1) for replica in range(len(self._donors)))
        began_s = time.monotonic()
        fetch = Fetch(RankRef(JOB, 1, *JOINER, 0), self._store, self._target, step=STEP, donors=donors)
        if not fetch.wait(TIMEOUT_S):
            raise PeerFailed("our own transfer did not end")
        took_s = time.monotonic() - began_s
        fetch.cancel()
        return took_s

    def close(self) -> None:
        """End the donors."""
        for process in self._donors:
            process.kill()
            process.wait()


def donate(port: int, megabytes: int, replica: int) -> None:
    """A donor process, until its input closes. Says `ready SECONDS` once it can be fetched from."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    held = state(megabytes, filled=True)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
    donor = Donor(RankRef(JOB, 1, replica, 1, 0), store, local_host=local_host_towards("127.0.0.1", port))
    began_s = time.monotonic()
    donor.serve({JOINER}, held, step=STEP)
    donor.wait_copied()
    copied_s = time.monotonic() - began_s
    store.get(f"snapshot/{JOB}/1/{STEP}/{replica}.1/0")
    print(f"ready {copied_s} {time.monotonic() - began_s}", flush=True)
    sys.stdin.read()


class Torchft:
    """torchft's HTTPTransport, one sender and one receiver process in its environment."""

    def __init__(self, megabytes: int) -> None:
        self._process = subprocess.Popen(
            [str(torchft.environment()), "-m", "benchmarks.peers.torchft_transfer", str(megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=REPOSITORY,
        )
        self.prepared_s = float(_said(self._process)[1])

    def measure(self, num_chunks: int) -> float:
        """Seconds of one transfer; `num_chunks` 0 is torchft's default. Raises PeerFailed."""
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.write(f"{num_chunks}\n")
        self._process.stdin.flush()
        return float(_said(self._process)[1])

    def close(self) -> None:
        """End both."""
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.close()
        self._process.wait(TIMEOUT_S)


def loopback(megabytes: int, connections: int, *, into: torch.Tensor | None = None, bounded: bool = False) -> float:
    """Seconds to move the bytes over plain TCP, in blocks of our chunks: from and into a warm
    buffer a connection, or, `into` (uint8), from as much memory into as much. Nothing is checked.
    `bounded`: with the sockets' buffers that a transfer of ours has within a host."""
    share = megabytes * MEGABYTE // connections
    source_bytes = share if into is not None else WARM_BYTES
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if bounded:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, IN_FLIGHT_BYTES // 2)
        program = str(Path(__file__).with_name("tcp_source.py"))
        numbers = (listener.getsockname()[1], share, connections, source_bytes, IN_FLIGHT_BYTES if bounded else 0)
        source = subprocess.Popen([sys.executable, program, *map(str, numbers)], stdin=subprocess.PIPE)
        try:
            accepted = [listener.accept()[0] for _ in range(connections)]
            parts = [memoryview(bytearray(CHUNK_BYTES)) for _ in accepted]
            if into is not None:
                parts = [into[n * share : (n + 1) * share].numpy().data for n in range(connections)]
            began_s = time.monotonic()
            readers = [
                threading.Thread(target=_drain, args=(connection, part, share))
                for connection, part in zip(accepted, parts, strict=True)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(TIMEOUT_S)
            return time.monotonic() - began_s
        finally:
            source.kill()
            source.wait()


def _drain(connection: socket.socket, buffer: memoryview, count: int) -> None:
    with connection:
        bound_blocking(connection, int(TIMEOUT_S))
        connection.sendall(b"g")
        position = 0
        while count > 0:
            size = min(count, CHUNK_BYTES)
            got = connection.recv_into(buffer[position : position + size], size, socket.MSG_WAITALL)
            if not got:
                raise PeerFailed("the loopback source ended early")
            count -= got
            position = (position + got) % len(buffer)


def memory_rates() -> dict[str, float]:
    """Bytes a second, in GB, that one core copies and digests: what bounds a transfer."""
    source, target = torch.rand(64 * MEGABYTE // 4), torch.zeros(64 * MEGABYTE // 4)
    blocks = source.view(torch.uint8).split(CHUNK_BYTES)

    def rate(act: "torch.Tensor | None" = None) -> float:
        began_s = time.monotonic()
        if act is None:
            target.copy_(source)
        else:
            for block in blocks:
                xxhash.xxh3_128_digest(block.numpy().data)
        return source.nbytes / (time.monotonic() - began_s) / 1e9

    rate(), rate(source)
    return {"copy": max(rate() for _ in range(3)), "digest": max(rate(source) for _ in range(3))}


@contextmanager
def closing(*things: Ours | Torchft) -> Iterator[None]:
    """Ends their processes whatever happens."""
    try:
        yield
    finally:
        for thing in things:
            thing.close()


def _said(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None, "opened as a pipe"
    words = process.stdout.readline().split()
    if not words:
        raise PeerFailed(f"{process.args} ended")
    return words


if __name__ == "__main__":
    donate(*(int(argument) for argument in sys.argv[1:4]))
