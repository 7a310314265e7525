"""Telling the agent of a checkpoint, and making its directory one that can be trusted.

Rank 0 reports. When the program says that everything is written, a thread of its own reads
the files back, writes the marker with their digests (`trainer.checkpoint.manifest`) and
reports the save as complete: training does not wait for that.

Lives of one program may write the same directories. Each raises the job's fence
(`trainer.checkpoint.fence`) when it starts and at each view it is in; one that a newer life
has overtaken, and that its agent cannot reach, commits nothing any more.
"""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.rank import CheckpointReport, FromRank, SaveNow
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.manifest import Manifest, describe_files, layout_of, write_marker
from trainer.errors import CheckpointFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One save under way. `step` committed steps are in it; `order` is what asked for it."""

    path: Path
    step: int
    epoch: int
    kind: str
    order: SaveNow | None
    began_s: float


class Saves:
    """Reports of one rank; every method may be called from any thread."""

    def __init__(self, ref: RankRef, config: TrainerConfig, send: Callable[[FromRank], None]) -> None:
        self._ref, self._config, self._send = ref, config, send
        self._threads: list[threading.Thread] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._committed: set[Path] = set()
        self._epoch = 0
        self._fence = self._find_fence() if ref.rank == 0 else None

    def enter(self, epoch: int) -> None:
        """This life is in view `epoch` of its attempt (0: in none yet): fence those before it.
        Waits for no disk; a save does it again if this fails."""
        self._epoch = epoch
        if self._fence is not None:
            self._fence.raise_to(self._ref.attempt, epoch)

    def begin(self, save: Save) -> None:
        """It is being written."""
        self._report(save, "writing")

    def fail(self, save: Save, error: BaseException) -> None:
        """It will never be whole; training goes on or not as the program decides."""
        self._report(save, "failed", error=f"{type(error).__name__}: {error}"[:300])

    def complete(self, save: Save) -> None:
        """Every rank has written: commit it in the background. Only rank 0 does."""
        if self._ref.rank != 0:
            return
        blocking_s = time.monotonic() - save.began_s
        thread = threading.Thread(target=self._commit, args=(save, blocking_s), name="commit-save", daemon=True)
        with self._lock:
            thread.start()
            self._threads = [*(old for old in self._threads if old.is_alive()), thread]

    def wait(self, timeout_s: float) -> None:
        """Until every commit under way is reported, or time is out."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            threads = self._threads
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _commit(self, save: Save, blocking_s: float) -> None:
        """One at a time, and each directory once: a framework may tell of a save that was told before."""
        with self._turn:
            if save.path not in self._committed:
                self._committed.add(save.path)
                self._write(save, blocking_s)

    def _write(self, save: Save, blocking_s: float) -> None:
        try:
            manifest = Manifest(
                job_id=self._ref.job_id,
                attempt=self._ref.attempt,
                epoch=save.epoch,
                step=save.step,
                kind=save.kind,
                layout=layout_of(self._config),
                consumed_samples=save.step * self._config.training.global_batch,
                files=describe_files(save.path),
            )
            if not manifest.files:
                raise FileNotFoundError(f"{save.path} holds no file")
            self._check_fence()
            write_marker(save.path, manifest)
        except (OSError, CheckpointFault) as error:
            self.fail(save, error)
            return
        self._report(save, "complete", manifest=manifest, blocking_s=blocking_s)

    def _check_fence(self) -> None:
        """By the view of now, not of when the save began: the life is what is fenced. Raises
        CheckpointFault, OSError."""
        if self._fence is None:
            return
        mine = self._ref.attempt, self._epoch
        self._fence.raise_now(*mine)
        newest = self._fence.current()
        if newest > mine:
            theirs = "attempt {}, epoch {}".format(*newest)
            raise CheckpointFault("attempt {}, epoch {} is fenced: {} is in its place".format(*mine, theirs))

    def _find_fence(self) -> Fence | None:
        """None where the program's Python cannot reach the job's object store."""
        place = self._config.checkpoint_dir
        try:
            return Fence(place)
        except (ImportError, ValueError) as error:
            print(f"holdfast hooks: no checkpoint fence at {place}: {error}", file=sys.stderr, flush=True)
            return None

    def _report(
        self, save: Save, state: str, *, error: str = "", manifest: Manifest | None = None, blocking_s: float = 0.0
    ) -> None:
        if self._ref.rank != 0:
            return
        self._send(
            CheckpointReport(
                step=save.step,
                path=str(save.path),
                state=state,
                kind=save.kind,
                epoch=save.epoch,
                bytes=manifest.total_bytes if manifest else 0,
                blocking_s=blocking_s,
                total_s=time.monotonic() - save.began_s,
                digest=manifest.digest if manifest else "",
                error=error,
                command_id=save.order.command_id if save.order else "",
            )
        )
