"""Saving: the lowest-numbered contributor writes, its rank 0 commits, training goes on.

1. every rank of the replica makes the directory and agrees that it is there;
2. Megatron's torch_dist writes the shards: in forked writers while training goes on
   (`poll` at each step boundary), or here and now (emergency, leaving, last step);
3. rank 0 digests the files, compares its epoch with the fence, writes the marker and
   prunes, in a thread; a save that is to block waits for it.

A save that fails is reported and forgotten. Nothing is written after an eviction: the
marker is what counts, and the fence is compared last.
"""

import ctypes
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.managers import SyncManager
from pathlib import Path

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.rank import CheckpointReport, FromRank
from trainer.checkpoint import manifest, retention
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.state import CONTENT, sharded_state
from trainer.engine import Engine
from trainer.errors import CheckpointFault, InnerPeerLost
from trainer.parallel import Votes

MAX_ERROR_CHARS = 500
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def prepare_writers() -> None:
    """Give Megatron its results queue from a forked manager: its own is spawned at the first
    save and takes seconds. Before any thread or process group exists, and after the SIGTERM
    handler, which the manager and the writers must inherit: a signal to the process group
    must not take them away from the last save."""
    manager = SyncManager(ctx=multiprocessing.get_context("fork"))
    manager.start(_die_with_parent)
    filesystem_async._results_queue = manager.Queue()


def _die_with_parent() -> None:
    """In the manager: a rank that is killed leaves nothing behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOrder:
    """Why and how. `kind`: interval, emergency, manual or final."""

    step: int
    epoch: int
    kind: str
    blocking: bool
    command_id: str = ""


@dataclass(slots=True)
class _Running:
    order: SaveOrder
    path: Path
    began_s: float
    blocking_s: float = 0.0


class Saver:
    """All ranks of a replica call `save`, `poll` and `finish` in the same order."""

    def __init__(
        self,
        ref: RankRef,
        config: TrainerConfig,
        engine: Engine,
        *,
        votes: Votes,
        fence: Fence,
        send: Callable[[FromRank], None],
    ) -> None:
        self._ref, self._config, self._engine = ref, config, engine
        self._votes, self._fence, self._send = votes, fence, send
        self._root = Path(config.checkpoint_dir)
        self._queue = AsyncCallsQueue(persistent=False)
        self._running: _Running | None = None
        self._committer: threading.Thread | None = None

    def save(self, order: SaveOrder) -> None:
        """Start (or do) one save; one that is still running is waited for first."""
        self.finish()
        began_s = time.monotonic()
        path = self._root / manifest.directory_name(order.step, order.epoch)
        running = _Running(order, path, began_s)
        if self._votes.any(manifest.read_marker(path) is not None):
            self._report_existing(running)
            return
        self._report(running, "writing")
        if not self._votes.all(self._make_directory(running)):
            return
        self._running = running
        try:
            request = dist_checkpointing.save(
                sharded_state(self._engine, order.step, loading=False),
                str(path),
                async_sharded_save=True,
                content_metadata=dict(CONTENT),
            )
            self._queue.schedule_async_request(request)
        except InnerPeerLost:
            raise
        except Exception as error:  # Megatron wraps what went wrong in its writers in many types.
            self._fail(running, error)
            return
        running.blocking_s = time.monotonic() - began_s
        if order.blocking:
            self.finish()

    def poll(self) -> None:
        """At each step boundary: commit the running save once all writers are done."""
        if self._running is not None:
            self._finalize(blocking=False)

    def finish(self) -> None:
        """Wait for the running save, its commit included."""
        if self._running is not None:
            self._finalize(blocking=True)
        if self._committer is not None:
            self._committer.join()
            self._committer = None

    def _finalize(self, *, blocking: bool) -> None:
        running = self._running
        assert running is not None, "callers check"
        began_s = time.monotonic()
        try:
            if not self._queue.maybe_finalize_async_calls(blocking=blocking):
                return
        except Exception as error:  # As above; every rank of the replica gets here together.
            self._fail(running, error)
            return
        finally:
            running.blocking_s += time.monotonic() - began_s
        self._running = None
        if self._ref.rank == 0:
            self._committer = threading.Thread(target=self._commit, args=(running,), name="commit", daemon=True)
            self._committer.start()

    def _commit(self, running: _Running) -> None:
        order, attempt = running.order, self._ref.attempt
        try:
            files = manifest.describe_files(running.path)
            layout = self._config.parallelism
            content = manifest.Manifest(
                job_id=self._ref.job_id,
                attempt=attempt,
                epoch=order.epoch,
                step=order.step,
                kind=order.kind,
                layout=manifest.Layout(
                    tp=layout.tp,
                    pp=layout.pp,
                    replicas=self._config.replicas,
                    vp=layout.vp,
                    cp=layout.cp,
                    ep=layout.ep,
                    replica_dp=layout.replica_dp,
                ),
                consumed_samples=order.step * self._config.training.global_batch,
                files=files,
            )
            if not self._fence.allows(attempt, order.epoch):
                raise CheckpointFault(f"epoch {order.epoch} is fenced: {self._fence.current()} was installed")
            manifest.write_marker(running.path, content)
            retention.prune(self._root, keep=self._config.checkpoint.keep, epoch=order.epoch)
        except (OSError, CheckpointFault) as error:
            self._report(running, "failed", error=str(error))
            return
        self._report(running, "complete", nbytes=content.total_bytes, digest=content.digest)

    def _report_existing(self, running: _Running) -> None:
        """This very state is saved already (a manual save right after the interval's)."""
        content = manifest.read_marker(running.path)
        if content is not None:
            self._report(running, "complete", nbytes=content.total_bytes, digest=content.digest)

    def _make_directory(self, running: _Running) -> bool:
        try:
            running.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._report(running, "failed", error=str(error))
            return False
        return True

    def _fail(self, running: _Running, error: Exception) -> None:
        self._running = None
        self._queue = AsyncCallsQueue(persistent=False)
        self._report(running, "failed", error=f"{type(error).__name__}: {error}")

    def _report(self, running: _Running, state: str, *, nbytes: int = 0, digest: str = "", error: str = "") -> None:
        """Rank 0 speaks for the save, except that any rank may say that it failed."""
        if self._ref.rank != 0 and state != "failed":
            return
        order = running.order
        self._send(
            CheckpointReport(
                step=order.step,
                path=str(running.path),
                state=state,
                kind=order.kind,
                epoch=order.epoch,
                bytes=nbytes,
                blocking_s=running.blocking_s,
                total_s=0.0 if state == "writing" else time.monotonic() - running.began_s,
                digest=digest,
                error=error[:MAX_ERROR_CHARS],
                command_id=order.command_id,
            )
        )
