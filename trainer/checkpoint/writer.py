"""The forked writer of one rank: a snapshot by copy-on-write, on its way to the disk.

The fork is the snapshot: training may change its tensors at once. The child writes this
rank's files, syncs them, digests them and tells the parent through a pipe; it joins no
collective and ends with its parent.
"""

import contextlib
import ctypes
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from trainer.checkpoint.part import Part

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Writer:
    """Runs `body` in a fork of this process, from the moment it is made."""

    def __init__(self, body: Callable[[], Part]) -> None:
        context = multiprocessing.get_context("fork")
        self._receive, send = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(body, send), name="checkpoint-writer")
        self._process.start()
        send.close()

    def wait(self) -> Part:
        """Until the child has told. Never raises for what the child did."""
        part = Part(error="its writer ended without a word")
        with contextlib.suppress(EOFError, OSError):
            part = msgspec.json.decode(self._receive.recv_bytes(), type=Part)
        self._receive.close()
        return part

    def reap(self) -> None:
        """After `wait`: the process itself ends a little later, for it gives its memory back."""
        self._process.join()


def _run(body: Callable[[], Part], send: Connection) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        part = body()
    except Exception as error:  # Whatever the disk or torch says goes to the parent, and on to the report.
        part = Part(error=f"{type(error).__name__}: {error}")
    send.send_bytes(msgspec.json.encode(part))
