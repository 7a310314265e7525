"""The joiner's side: fetch a donor's snapshot in the background, keep a backlog, replay.

From its first view on a joiner takes part in every exchange with zeros and keeps each
committed reduced gradient. Once every rank of the replica has its snapshot the replica
raises its ready flag in band; at that commit the snapshot is restored, the backlog goes
through the optimizer, and the replica contributes from the next step. The others wait
for the replay of the tail only, never for the transfer.
"""

import socket
import threading
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from controlplane.protocol.launch import RankRef
from trainer.errors import CatchUpFailed
from trainer.replica import snapshot
from trainer.replica.donor import store_key

MAX_BACKLOG_STEPS = 4096
MAX_BACKLOG_BYTES = 8 << 30
FETCH_ATTEMPTS = 60
RETRY_S = 0.5
ADDRESS_POLL_S = 0.01
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Fetch:
    """One try to get the snapshot of (`donor`, `epoch`); `result` is set last."""

    donor: int
    epoch: int
    cancelled: bool = False
    result: snapshot.Snapshot | None = None
    took_s: float = 0.0


class CatchUp:
    """Backlog and fetch of one rank."""

    def __init__(self, ref: RankRef, store: dist.TCPStore) -> None:
        self._ref = ref
        self._store = store
        self._fetch: Fetch | None = None
        self._backlog: list[torch.Tensor] = []
        self._start_step = 0

    @property
    def has_snapshot(self) -> bool:
        """The fetch of this rank is over."""
        return self._fetch is not None and self._fetch.result is not None

    def restart(self, *, donor: int, epoch: int, step: int) -> None:
        """Fetch the state of `step` from `donor`, forgetting what was kept so far."""
        if self._fetch is not None:
            self._fetch.cancelled = True
        self._backlog.clear()
        self._start_step = step
        self._fetch = fetch = Fetch(donor, epoch)
        threading.Thread(target=self._run, args=(fetch, self._store.clone()), name="fetch", daemon=True).start()  # type: ignore[attr-defined]

    def keep(self, reduced: torch.Tensor) -> None:
        """A step was committed without me. Raises CatchUpFailed when the backlog is full."""
        self._backlog.append(reduced)
        nbytes = reduced.nbytes * len(self._backlog)
        if len(self._backlog) > MAX_BACKLOG_STEPS or nbytes > MAX_BACKLOG_BYTES:
            raise CatchUpFailed(f"backlog of {len(self._backlog)} steps ({nbytes} bytes) and still no snapshot")

    def take(self) -> tuple[Fetch, snapshot.Snapshot, list[torch.Tensor]]:
        """The snapshot and the backlog to replay on it. Raises CatchUpFailed when they do not meet."""
        fetch, backlog = self._fetch, self._backlog
        assert fetch is not None, "ready is only raised after a fetch"
        assert fetch.result is not None, "ready is only raised with a snapshot at hand"
        if fetch.result.step != self._start_step:
            raise CatchUpFailed(f"snapshot of step {fetch.result.step}, backlog from {self._start_step}")
        self._fetch, self._backlog = None, []
        return fetch, fetch.result, backlog

    def _run(self, fetch: Fetch, store: dist.TCPStore) -> None:
        began_s = time.monotonic()
        key = store_key(self._ref.job_id, self._ref.attempt, fetch.epoch, fetch.donor, self._ref.rank)
        for _attempt in range(FETCH_ATTEMPTS):
            try:
                while not fetch.cancelled and not store.check([key]):
                    time.sleep(ADDRESS_POLL_S)
                if fetch.cancelled:
                    return
                result = _download(store.get(key).decode("ascii"), fetch.epoch)
            except (OSError, CatchUpFailed, RuntimeError) as error:
                # The donor may be gone; the next view names another and cancels this.
                print(f"fetch from replica {fetch.donor}: {error!r}", flush=True)
                time.sleep(RETRY_S)
                continue
            fetch.took_s = time.monotonic() - began_s
            fetch.result = result
            return


def _download(address: str, epoch: int) -> snapshot.Snapshot:
    host, port, token = address.split(" ")
    with socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S) as connection:
        connection.settimeout(READ_TIMEOUT_S)
        with connection.makefile("rwb") as stream:
            stream.write(f"{token} {epoch}\n".encode("ascii"))
            stream.flush()
            return snapshot.read(stream)
