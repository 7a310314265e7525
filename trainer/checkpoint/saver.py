"""Saving: the lowest-numbered contributor writes, its rank 0 commits, training goes on.

1. every rank of the replica makes the directory and agrees that it is there;
2. Megatron plans the save, which is collective and touches no file; each rank forks its
   writer (the fork is the snapshot), and training goes on;
3. from here on a thread of each rank does the rest, and nothing waits for a step boundary:
   it waits for its writer, uploads to the object store where the checkpoint lies in one,
   and posts what it wrote in the rendezvous store (`commit`);
4. rank 0's thread collects the posts, compares its epoch with the fence, writes the marker,
   reports, prunes. A blocking save waits for the thread.

A save that fails is reported and forgotten. A scheduled one that comes while another is
still being written is left out. Nothing is written after an eviction: the marker is what
counts, and the fence is compared last.
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.rank import CheckpointReport, FromRank
from trainer.checkpoint import manifest, retention, rng, staging
from trainer.checkpoint.commit import Board, Committer, Order
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.part import Part
from trainer.checkpoint.state import sharded_state
from trainer.checkpoint.storage import is_remote, storage_at
from trainer.checkpoint.strategy import Planned, Planner
from trainer.checkpoint.writer import Writer
from trainer.config import staging_root
from trainer.engine import Engine
from trainer.errors import InnerPeerLost
from trainer.parallel import Votes

MAX_ERROR_CHARS = 500
SCHEDULED, FINAL = "interval", "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOrder:
    """Why and how. `kind`: interval, emergency, manual or final."""

    step: int
    epoch: int
    kind: str
    blocking: bool
    command_id: str = ""


class Saver:
    """All ranks of a replica call `save` and `finish` in the same order."""

    def __init__(
        self,
        ref: RankRef,
        config: TrainerConfig,
        engine: Engine,
        *,
        votes: Votes,
        fence: Fence,
        store: dist.Store,
        send: Callable[[FromRank], None],
    ) -> None:
        self._ref, self._config, self._engine, self._votes, self._send = ref, config, engine, votes, send
        self._planner = Planner()
        self._board = Board(store, ref, votes.size, timeout_s=config.inner_timeout_s)
        self._committer = Committer(ref, config, fence=fence)
        self._sequence = 0
        self._committed: manifest.Manifest | None = None
        self._thread: threading.Thread | None = None

    def save(self, order: SaveOrder) -> None:
        """Start (or do) one save. Raises InnerPeerLost."""
        if order.kind == SCHEDULED and self._votes.any(self._busy):
            print(f"save of step {order.step} left out: the one before is still being written", file=sys.stderr)
            return
        self.finish()
        began_s = time.monotonic()
        # All ranks of the replica count alike, so their posts of one save meet.
        self._sequence += 1
        name = manifest.directory_name(order.step, order.epoch)
        address = f"{self._config.checkpoint_dir.rstrip('/')}/{name}"
        running = _Running(order, address, self._folder(address), self._sequence, began_s)
        if self._votes.any(self._is_committed(running)):
            self._report_existing(running)
            return
        self._report(running, "writing")
        if not self._votes.all(self._make_directory(running)):
            return
        try:
            planned = self._planner.plan(sharded_state(self._engine, order.step, loading=False), running.folder)
            writer = Writer(self._body(running, planned))
        except InnerPeerLost:
            raise
        except Exception as error:  # Megatron raises a dozen unrelated types, or the memory is short.
            self._give_up(running, f"{type(error).__name__}: {error}")
        else:
            running.blocking_s = time.monotonic() - began_s
            self._thread = threading.Thread(
                target=self._see_through, args=(running, planned, writer), name="checkpoint", daemon=True
            )
            self._thread.start()
        if order.blocking:  # A rank that gave up has told rank 0 so by then: it may be about to leave.
            self.finish()

    def _give_up(self, running: "_Running", error: str) -> None:
        """This rank has nothing to write. Others may have got further: rank 0 does not wait for it."""
        self._report(running, "failed", error=error)
        if is_remote(running.address):
            shutil.rmtree(running.folder, ignore_errors=True)
        if self._ref.rank != 0:
            self._thread = threading.Thread(target=self._post, args=(running, Part(error=error)), daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait for the running save: on rank 0 until it is committed or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _folder(self, address: str) -> Path:
        """Where Megatron writes: the checkpoint itself, or this rank's staging."""
        if not is_remote(address):
            return Path(address)
        return staging.outgoing(staging_root(), self._ref) / Path(address).name

    def _body(self, running: "_Running", planned: Planned) -> Callable[[], Part]:
        """What the fork does; the random state is taken now."""
        folder, name = running.folder, rng.file_name(self._ref.rank)
        layout = self._config.parallelism
        state = rng.capture(rank=self._ref.rank, world=self._votes.size, tp=layout.tp, pp=layout.pp)

        def small() -> tuple[manifest.FileEntry, ...]:
            storage_at(folder).write(name, state)
            names = planned.write_common(folder) | {name}
            return manifest.describe_files(folder, only=names.__contains__)

        def body() -> Part:
            # Each small file waits for the disk as long as a large one: they do so beside them.
            with ThreadPoolExecutor(1) as beside:
                described = beside.submit(small)
                part = planned.write()
                return Part(files=(*part.files, *described.result()), written=part.written)

        return body

    def _see_through(self, running: "_Running", planned: Planned, writer: Writer) -> None:
        """The save's own thread: from the fork to the commit."""
        part, remote = writer.wait(), is_remote(running.address)
        if remote and not part.error:
            part = self._committer.upload(part, running.folder, running.address)
        if self._ref.rank != 0:
            self._post(running, part)
        else:
            self._commit(running, planned, part)
        if remote:
            shutil.rmtree(running.folder, ignore_errors=True)
        writer.reap()

    def _post(self, running: "_Running", part: Part) -> None:
        try:
            self._board.post(running.sequence, part)
        except RuntimeError as error:  # The store is away; rank 0 will miss the post and say so.
            print(f"save of step {running.order.step}: {error}", file=sys.stderr, flush=True)

    def _commit(self, running: "_Running", planned: Planned, mine: Part) -> None:
        order = running.order
        try:
            parts = [mine, *self._board.collect(running.sequence)]
            content = self._committer.commit(
                Order(order.step, order.epoch, order.kind), parts, planned, running.folder, running.address
            )
        except Exception as error:  # Whatever the storage says: a save that fails ends no training.
            self._committer.discard(running.address)
            self._report(running, "failed", error=str(error))
            return
        self._committed = content
        removal = self._committer.survey(order.epoch, last=order.kind == FINAL)
        self._report_complete(running, content, removal)
        # Last: nobody waits for it, and a disk takes its time to remove large files.
        self._committer.prune(removal)

    def _is_committed(self, running: "_Running") -> bool:
        """On rank 0, which knows: only it commits in this epoch. Nothing is asked of the storage,
        which may be slow or away."""
        known, order = self._committed, running.order
        return known is not None and (known.step, known.epoch) == (order.step, order.epoch)

    def _report_existing(self, running: "_Running") -> None:
        """This very state is saved already (a manual save right after the interval's)."""
        if self._committed is None:
            return
        order, removal = running.order, retention.NOTHING
        if order.kind == FINAL:
            removal = self._committer.survey(order.epoch, last=True)
        self._report_complete(running, self._committed, removal)
        self._committer.prune(removal)

    def _make_directory(self, running: "_Running") -> bool:
        try:
            running.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._report(running, "failed", error=str(error))
            return False
        return True

    def _report_complete(self, running: "_Running", content: manifest.Manifest, removal: retention.Plan) -> None:
        self._report(
            running,
            "complete",
            nbytes=content.total_bytes,
            digest=content.digest,
            removal=removal,
        )

    def _report(
        self,
        running: "_Running",
        state: str,
        *,
        nbytes: int = 0,
        digest: str = "",
        error: str = "",
        removal: retention.Plan = retention.NOTHING,
    ) -> None:
        """Rank 0 speaks for the save, except that any rank may say that it failed."""
        if self._ref.rank != 0 and state != "failed":
            return
        order = running.order
        self._send(
            CheckpointReport(
                step=order.step,
                path=running.address,
                state=state,
                kind=order.kind,
                epoch=order.epoch,
                bytes=nbytes,
                blocking_s=running.blocking_s,
                total_s=0.0 if state == "writing" else time.monotonic() - running.began_s,
                digest=digest,
                error=error[:MAX_ERROR_CHARS],
                command_id=order.command_id,
                oldest_kept=removal.oldest_kept,
                kept=removal.held,
            )
        )


@dataclass(slots=True)
class _Running:
    """One save under way. `folder` is where its files are written first."""

    order: SaveOrder
    address: str
    folder: Path
    sequence: int
    began_s: float
    blocking_s: float = 0.0
