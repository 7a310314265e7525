"""The local tier of one rank: a copy in memory at the boundary, everything else in a thread.

Save of step S, at every contributor alike and without a collective:
1. copy the state into buffers that were made at the start: training waits for one memcpy;
2. write this rank's shard to the node's disk (or tmpfs, `memory`) and post it in the rendezvous store;
3. of the replica that saves, rank r looks after shard r: it waits for the posts of the other
   replicas (their shard r is the same state), and has other nodes take copies until
   1 + `copies` nodes hold it;
4. its rank 0 collects who holds what and reports the step with its holders. The control
   plane resumes from it only where each shard has a holder among the nodes it places on.
A rank whose save before goes on leaves one out, and says so when that has ended: nobody waits for its shard.

Loading: the shard of this node's disk, or a peer's; a shard that differs from its digest
is as good as none. Nothing here ends training.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from controlplane.protocol import digests
from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.rank import CheckpointReport, FromRank
from trainer import device
from trainer.checkpoint import rng
from trainer.checkpoint.local import shard
from trainer.checkpoint.local.book import Book, Held
from trainer.checkpoint.local.disk import LocalDisk
from trainer.checkpoint.local.memory import Memory, root_of
from trainer.checkpoint.local.peers import Peer, Server, fetch, push
from trainer.checkpoint.manifest import LOCAL_SCHEME, directory_name, parse_name
from trainer.engine import Engine
from trainer.errors import CheckpointFault

PATIENCE_S = 60.0
"""For the other ranks' posts of a save, and for peers to come up before a load."""
POLL_S = 0.1
KIND = "local"
MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOrder:
    """One save. `contributors` are the replicas that save it too; the first one reports."""

    step: int
    epoch: int
    contributors: tuple[int, ...]


class LocalTier:
    """Made once per rank, before the checkpoint is loaded: peers may need this node's disk."""

    def __init__(
        self,
        ref: RankRef,
        config: TrainerConfig,
        *,
        world: int,
        node: str,
        host: str,
        store: dist.Store,
        send: Callable[[FromRank], None],
    ) -> None:
        local = config.checkpoint.local
        assert local.wanted, "made only for jobs that have the tier"
        root = root_of(local)
        memory = Memory(root) if local.medium == "memory" else None
        self._ref, self._config, self._world, self._node, self._send = ref, config, world, node, send
        self._disk = LocalDisk(root / node, ref.job_id, memory=memory)
        self._server = Server(self._disk, node=node, host=host)
        self._book = Book(store, ref)
        self._book.publish(self._server.peer)
        self._buffers: list[torch.Tensor] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._busy, self._left_out = False, list[LocalOrder]()
        try:
            self._disk.forget_others()
        except OSError as error:
            _warn(f"{error}")

    def is_due(self, step: int) -> bool:
        """A save stands at this step."""
        return step % self._config.checkpoint.local.interval_steps == 0

    def save(self, engine: Engine, order: LocalOrder) -> None:
        """Copy the state and let a thread do the rest; left out while the one before goes on."""
        with self._lock:
            if self._busy:
                _warn(f"step {order.step} left out: the one before is still being written")
                self._left_out.append(order)
                return
        began_s = time.monotonic()
        tensors = engine.state()
        fault = self._copy(tensors)
        head, random_state = self._head(order, tensors), self._rng()
        blocking_s = time.monotonic() - began_s
        self._busy = True
        see_through = partial(self._see_through, order, head, random_state, fault, began_s, blocking_s)
        self._thread = threading.Thread(target=self._work, args=(see_through,), name="local-save", daemon=True)
        self._thread.start()

    def _copy(self, tensors: Sequence[torch.Tensor]) -> str:
        """Step 1. Why not, where there is no memory for the buffers: then this save fails, and the
        next one asks for them again."""
        try:
            if self._buffers is None:
                pinned = device.has_cuda()
                self._buffers = [torch.empty(t.shape, dtype=t.dtype, pin_memory=pinned) for t in tensors]
        except (RuntimeError, MemoryError) as error:
            return f"no buffer in memory for a copy of the state: {type(error).__name__}: {error}"
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer.copy_(tensor.detach(), non_blocking=True)
        device.synchronize()
        return ""

    def finish(self) -> None:
        """Wait for the running save."""
        if self._thread is not None:
            self._thread.join(PATIENCE_S)

    def load(self, engine: Engine, path: str) -> None:
        """Fill `engine` from `local:step_...`, its random state included. Raises CheckpointFault, OSError."""
        number = parse_name(path.removeprefix(LOCAL_SCHEME))
        if number is None:
            raise CheckpointFault(f"{path} names no local checkpoint")
        step, epoch = number
        mine = self._disk.path(step, epoch, self._ref.rank)
        if not _is_whole(mine):
            self._fetch(step, epoch)
        head, random_state = shard.read(mine, engine.state())
        layout, ref = self._config.parallelism, self._ref
        mold = (ref.job_id, step, epoch, ref.rank, self._world, layout.tp, layout.pp)
        if (head.job_id, head.step, head.epoch, head.rank, head.world, head.tp, head.pp) != mold:
            raise CheckpointFault(f"{mine} is of another layout or job")
        rng.restore(random_state, rank=ref.rank, world=self._world, tp=layout.tp, pp=layout.pp)

    def _fetch(self, step: int, epoch: int) -> None:
        """From any peer that has it; they may still be starting, so that only an answer of every
        rank of the job says that there is none."""
        deadline_s, said = time.monotonic() + PATIENCE_S, "no other rank has come up"
        while True:
            answered = 0
            for peer in self._book.peers(self._config.replicas, self._world):
                if peer.node == self._node:
                    answered += 1
                    continue
                try:
                    fetch(peer, self._disk, attempt=self._ref.attempt, step=step, epoch=epoch, rank=self._ref.rank)
                    return
                except CheckpointFault as error:
                    said, answered = str(error), answered + 1
                except (OSError, msgspec.DecodeError) as error:
                    said = str(error)
            if answered == self._config.replicas * self._world or time.monotonic() > deadline_s:
                raise CheckpointFault(f"shard {self._ref.rank} of step {step} is on no node that is here: {said}")
            time.sleep(POLL_S)

    def _head(self, order: LocalOrder, tensors: Sequence[torch.Tensor]) -> shard.ShardHead:
        layout, ref = self._config.parallelism, self._ref
        return shard.ShardHead(
            job_id=ref.job_id,
            attempt=ref.attempt,
            epoch=order.epoch,
            step=order.step,
            rank=ref.rank,
            world=self._world,
            tp=layout.tp,
            pp=layout.pp,
            tensors=shard.heads(tensors),
            algorithm=digests.PREFERRED,
        )

    def _rng(self) -> bytes:
        layout = self._config.parallelism
        return rng.capture(rank=self._ref.rank, world=self._world, tp=layout.tp, pp=layout.pp)

    def _work(self, see_through: Callable[[], None]) -> None:
        """The save's thread. What was left out meanwhile is said last."""
        see_through()
        while (left := self._next_left_out()) is not None:
            self._say_left_out(left)

    def _next_left_out(self) -> LocalOrder | None:
        """None: there is no more, and the next save may begin."""
        with self._lock:
            if self._left_out:
                return self._left_out.pop(0)
            self._busy = False
            return None

    def _say_left_out(self, order: LocalOrder) -> None:
        held = Held(error=f"node {self._node}: left out, the save before was still being written")
        try:
            self._book.post(order.step, order.epoch, self._ref, held)
            if order.contributors[0] == self._ref.replica:
                self._book.settle(order.step, order.epoch, self._ref.rank, held)
        except Exception as error:  # As below.
            _warn(f"step {order.step}: {type(error).__name__}: {error}")

    def _see_through(
        self,
        order: LocalOrder,
        head: shard.ShardHead,
        random_state: bytes,
        fault: str,
        began_s: float,
        blocking_s: float,
    ) -> None:
        """Steps 2 to 4; with a `fault` of step 1 there is nothing to write, and the others are told."""
        local = self._config.checkpoint.local
        try:
            held = Held(error=f"node {self._node}: {fault}") if fault else self._write(order, head, random_state)
            self._book.post(order.step, order.epoch, self._ref, held)
            if order.contributors[0] == self._ref.replica:
                held = self._look_after(order, held)
                self._book.settle(order.step, order.epoch, self._ref.rank, held)
                if self._ref.rank == 0:
                    self._report(order, began_s, blocking_s)
            # Last: nobody waits for it, and a disk takes its time to remove large files.
            self._disk.prune(keep=local.keep, complete=self._book.complete())
        except Exception as error:  # The store, a peer or the disk: the next save tries again, training goes on.
            _warn(f"step {order.step}: {type(error).__name__}: {error}")

    def _write(self, order: LocalOrder, head: shard.ShardHead, random_state: bytes) -> Held:
        assert self._buffers is not None, "filled at the boundary"
        ref = self._ref
        try:
            self._disk.admit(sum(buffer.nbytes for buffer in self._buffers))
            path = self._disk.prepare(ref.attempt, order.epoch, order.step, ref.rank)
            digest = shard.write(path, head, self._buffers, random_state)
            self._disk.check_fence(ref.attempt, order.epoch)
            return Held(nodes=(self._node,), digest=digest, bytes=path.stat().st_size)
        except (OSError, CheckpointFault) as error:
            return Held(error=f"node {self._node}: {error}")

    def _look_after(self, order: LocalOrder, mine: Held) -> Held:
        """Who holds shard r, after having as many nodes take copies as are wanted."""
        posts = [mine] + [
            self._book.await_post(order.step, order.epoch, replica, self._ref.rank, PATIENCE_S)
            for replica in order.contributors[1:]
        ]
        whole = [post for post in posts if not post.error]
        if not whole:
            return Held(error="; ".join(post.error for post in posts))
        if mine.error:
            return Held(nodes=_nodes(whole), digest=whole[0].digest, bytes=whole[0].bytes)
        nodes = list(_nodes(post for post in whole if post.digest == mine.digest))
        for peer in self._candidates(order, nodes):
            if len(nodes) > self._config.checkpoint.local.copies:
                break
            try:
                path = self._disk.path(order.step, order.epoch, self._ref.rank)
                push(peer, path, attempt=self._ref.attempt, step=order.step, epoch=order.epoch, rank=self._ref.rank)
                nodes.append(peer.node)
            except (OSError, CheckpointFault, msgspec.DecodeError) as error:
                _warn(f"copy of step {order.step} to node {peer.node}: {error}")
        return Held(nodes=tuple(sorted(nodes)), digest=mine.digest, bytes=mine.bytes)

    def _candidates(self, order: LocalOrder, holders: Sequence[str]) -> list[Peer]:
        """One peer of each other node, starting at a place that differs from rank to rank."""
        peers = {peer.node: peer for peer in self._book.peers(max(order.contributors) + 1, self._world)}
        others = [peers[node] for node in sorted(peers) if node not in holders]
        turn = self._ref.rank % len(others) if others else 0
        return others[turn:] + others[:turn]

    def _report(self, order: LocalOrder, began_s: float, blocking_s: float) -> None:
        shards = [self._book.await_settled(order.step, order.epoch, rank, PATIENCE_S) for rank in range(self._world)]
        error = "; ".join(f"shard {rank}: {held.error}" for rank, held in enumerate(shards) if held.error)
        if not error:
            self._book.mark_complete(order.step, order.epoch)
        digest = digests.digest_of(held.digest.encode() for held in shards)
        self._send(
            CheckpointReport(
                step=order.step,
                path=f"{LOCAL_SCHEME}{directory_name(order.step, order.epoch)}",
                state="failed" if error else "complete",
                kind=KIND,
                epoch=order.epoch,
                bytes=sum(held.bytes for held in shards),
                blocking_s=blocking_s,
                total_s=time.monotonic() - began_s,
                digest="" if error else digest,
                error=error[:MAX_ERROR_CHARS],
                holders=() if error else tuple(held.nodes for held in shards),
                oldest_kept=self._disk.oldest_kept(self._config.checkpoint.local.keep, (order.step, order.epoch)),
            )
        )


def _nodes(posts: Iterable[Held]) -> tuple[str, ...]:
    return tuple(sorted({node for post in posts for node in post.nodes}))


def _is_whole(path: Path) -> bool:
    try:
        shard.check(path)
    except (OSError, CheckpointFault):
        return False
    return True


def _warn(text: str) -> None:
    print(f"local checkpoint: {text}", file=sys.stderr, flush=True)
