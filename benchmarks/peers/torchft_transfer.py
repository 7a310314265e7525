"""torchft's HTTPTransport between two processes: `MEGABYTES`, then one number of chunks a line.

Runs in torchft's environment. The child holds the state and serves it; this process
receives, and answers each line with `took SECONDS`. First line said: `ready SECONDS`, what
the sender's copy took.
"""

import multiprocessing
import socket
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
from torchft.checkpointing.http_transport import HTTPTransport

from benchmarks.peers.transfer_state import STEP, state

TIMEOUT = timedelta(seconds=60)


def serve(pipe: Connection, megabytes: int) -> None:
    """A transport for each number of chunks that is asked for; says its address."""
    torch.set_num_threads(1)
    socket.gethostname = lambda: "localhost"  # What it advertises has to resolve here.
    held = {f"t{index}": tensor for index, tensor in enumerate(state(megabytes, filled=True))}
    transports: dict[int, HTTPTransport] = {}
    while True:
        try:
            chunks = pipe.recv()
        except EOFError:
            return
        began_s = time.monotonic()
        if chunks not in transports:
            transports[chunks] = HTTPTransport(TIMEOUT, chunks)
            transports[chunks].send_checkpoint([1], STEP, held, TIMEOUT)
        pipe.send((transports[chunks].metadata(), time.monotonic() - began_s))


def main(megabytes: int) -> None:
    """Until the input closes."""
    torch.set_num_threads(1)
    mine, theirs = multiprocessing.Pipe()
    sender = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, megabytes), daemon=True)
    sender.start()
    mine.send(0)
    _, copied_s = mine.recv()
    print(f"ready {copied_s}", flush=True)
    for line in sys.stdin:
        chunks = int(line)
        mine.send(chunks)
        address, _ = mine.recv()
        receiver = HTTPTransport(TIMEOUT, chunks)
        began_s = time.monotonic()
        got = receiver.recv_checkpoint(0, address, STEP, TIMEOUT)
        took_s = time.monotonic() - began_s
        assert sum(tensor.nbytes for tensor in got.values()) > 0
        del got
        print(f"took {took_s}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
