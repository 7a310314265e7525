"""What the ranks of a job tell each other about local checkpoints, in the rendezvous store.

Addresses of all ranks' servers, posts of who holds which shard of a save, and the newest
complete step of the attempt. Used from the save's thread, on a connection of its own.
"""

import time
from collections.abc import Iterator

import msgspec
import torch.distributed as dist

from controlplane.protocol.launch import RankRef
from trainer.checkpoint.local.peers import Peer
from trainer.store.client import OwnClient

POLL_S = 0.02


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes that hold one shard; `error` says why there is none."""

    nodes: tuple[str, ...] = ()
    digest: str = ""
    bytes: int = 0
    error: str = ""


class Book:
    """Keys under `local/<job>/<attempt>`."""

    def __init__(self, store: dist.Store, ref: RankRef) -> None:
        self._store = OwnClient(store)
        self._ref, self._prefix = ref, f"local/{ref.job_id}/{ref.attempt}"
        self._mine: tuple[str, bytes] | None = None

    def publish(self, peer: Peer) -> None:
        """Where this rank answers; a later incarnation takes the place over."""
        self._mine = f"{self._prefix}/at/{self._ref.replica}/{self._ref.rank}", msgspec.json.encode(peer)
        self._store.set(*self._mine)

    def peers(self, replicas: int, world: int) -> Iterator[Peer]:
        """Ranks that have come up: those with this rank's shard first."""
        others = [rank for rank in range(world) if rank != self._ref.rank]
        for rank in (self._ref.rank, *others):
            for replica in range(replicas):
                key = f"{self._prefix}/at/{replica}/{rank}"
                if self._store.check([key]):
                    yield msgspec.json.decode(self._store.get(key), type=Peer)

    def post(self, step: int, epoch: int, ref: RankRef, held: Held) -> None:
        """This rank has written its shard, or could not. A store that was started again is told
        where it answers."""
        if self._mine is not None and not self._store.check([self._mine[0]]):
            self._store.set(*self._mine)
        self._store.set(self._post(step, epoch, ref.replica, ref.rank), msgspec.json.encode(held))

    def await_post(self, step: int, epoch: int, replica: int, rank: int, patience_s: float) -> Held:
        """Another replica's post of shard `rank`."""
        return self._await(self._post(step, epoch, replica, rank), f"replica {replica}", patience_s)

    def settle(self, step: int, epoch: int, rank: int, held: Held) -> None:
        """All nodes that hold shard `rank`, copies included."""
        self._store.set(f"{self._prefix}/{step}-{epoch}/held/{rank}", msgspec.json.encode(held))

    def await_settled(self, step: int, epoch: int, rank: int, patience_s: float) -> Held:
        """Of each shard in turn."""
        return self._await(f"{self._prefix}/{step}-{epoch}/held/{rank}", f"rank {rank}", patience_s)

    def mark_complete(self, step: int, epoch: int) -> None:
        """Every shard of this step has a holder: older ones may go."""
        self._store.set(f"{self._prefix}/complete", f"{step} {epoch}")

    def complete(self) -> tuple[int, int] | None:
        """The newest complete (step, epoch) of this attempt."""
        key = f"{self._prefix}/complete"
        if not self._store.check([key]):
            return None
        step, epoch = self._store.get(key).split()
        return int(step), int(epoch)

    def _post(self, step: int, epoch: int, replica: int, rank: int) -> str:
        return f"{self._prefix}/{step}-{epoch}/post/{replica}/{rank}"

    def _await(self, key: str, who: str, patience_s: float) -> Held:
        deadline_s = time.monotonic() + patience_s
        while not self._store.check([key]):
            if time.monotonic() > deadline_s:
                return Held(error=f"{who} said nothing within {patience_s:.0f} s")
            time.sleep(POLL_S)
        held = msgspec.json.decode(self._store.get(key), type=Held)
        self._store.delete_key(key)
        return held
