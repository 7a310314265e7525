"""The donor's side of catching up: copy the state in the background, serve it over TCP.

The copy starts when the view is installed and must be over before the next optimizer
step (`wait_copied`); forward and backward do not touch it. The address goes through the
rendezvous store together with a token that the joiner has to send first.
"""

import hmac
import secrets
import socket
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist

from trainer.replica import snapshot

BACKLOG = 16
IO_TIMEOUT_S = 60.0
TOKEN_BYTES = 16


def store_key(job_id: str, attempt: int, epoch: int, replica: int, rank: int) -> str:
    """Where the address of one donor rank's snapshot of one epoch stands."""
    return f"snapshot/{job_id}/{attempt}/{epoch}/{replica}/{rank}"


class Donor:
    """One listening socket per rank, one snapshot at a time."""

    def __init__(self, store: dist.TCPStore, *, local_host: str) -> None:
        self._store = store.clone()  # type: ignore[attr-defined]
        self._snapshot: snapshot.Snapshot | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._token = secrets.token_hex(TOKEN_BYTES)
        self._listener = socket.create_server((local_host, 0), backlog=BACKLOG)
        self._address = f"{local_host} {self._listener.getsockname()[1]} {self._token}"
        threading.Thread(target=self._accept, name="donor", daemon=True).start()

    def offer(self, state: Sequence[torch.Tensor], *, epoch: int, step: int, key: str) -> None:
        """Copy `state` (by reference until `wait_copied` returns) and publish the address under `key`."""
        self._copied = copied = threading.Event()

        def copy() -> None:
            try:
                self._snapshot = snapshot.take(state, epoch=epoch, step=step)
            finally:
                copied.set()
            self._store.set(key, self._address)

        threading.Thread(target=copy, name="donor-copy", daemon=True).start()

    def wait_copied(self) -> None:
        """Call before anything writes to the state."""
        self._copied.wait()

    def withdraw(self) -> None:
        """Nobody needs the snapshot any more; frees its memory."""
        self._copied.wait()
        self._snapshot = None

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), name="donor-serve", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(IO_TIMEOUT_S)
            try:
                with connection.makefile("rwb") as stream:
                    token, _, epoch = stream.readline(256).decode("ascii", "replace").strip().partition(" ")
                    held = self._snapshot
                    if not hmac.compare_digest(token, self._token) or held is None or str(held.epoch) != epoch:
                        return
                    snapshot.write(held, stream)
            except OSError:
                return  # The joiner went away; it comes again or a new view names another donor.


def local_host_towards(host: str, port: int) -> str:
    """The address of this machine on the way to `host` (no packet is sent)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])
