"""What one node keeps of one job: `<dir>/<node>/<job>/step_00000120-e7/shard_3`, on a disk or
on a tmpfs.

A shard has its name only when it is whole (`shard.write`, `receive`). The fence is the
node's own: a rank of an older epoch writes nothing here, and no peer sends it here.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.checkpoint.fence import Fence
from trainer.checkpoint.local import shard
from trainer.checkpoint.local.memory import Memory
from trainer.checkpoint.manifest import directory_name, parse_name
from trainer.checkpoint.storage import sync
from trainer.errors import CheckpointFault

FORGOTTEN_S = 7 * 86400.0
"""A job's folder that nobody touched for so long is removed when another job starts."""
FORGOTTEN_IN_MEMORY_S = 86400.0
"""Where the rank host was killed and could not give the memory back."""


def plan(found: Sequence[tuple[int, int]], *, keep: int, complete: tuple[int, int] | None) -> list[tuple[int, int]]:
    """Which (step, epoch) may go: all older than the `keep` newest up to the newest `complete`
    one. What is newer than that may yet become complete, and nothing goes before a first one is.
    Newest is by epoch, then step, as in `trainer.checkpoint.retention`."""
    if complete is None:
        return []
    settled = sorted((item for item in found if _saved(item) <= _saved(complete)), key=_saved, reverse=True)
    return sorted(settled[max(1, keep) :])


def _saved(item: tuple[int, int]) -> tuple[int, int]:
    step, epoch = item
    return epoch, step


class LocalDisk:
    """One node's folder of one job. Shared by the node's ranks; each writes its own shards."""

    def __init__(self, root: Path, job_id: str, *, memory: Memory | None = None) -> None:
        """`root` is `<dir>/<node>`; `memory` admits what is written where that is a tmpfs."""
        self.folder = root / job_id
        self.fence = Fence(self.folder)
        self._memory = memory

    def path(self, step: int, epoch: int, rank: int) -> Path:
        """Where the shard lies, whether it is there or not."""
        return self.folder / directory_name(step, epoch) / f"shard_{rank}"

    def steps(self) -> list[tuple[int, int]]:
        """(step, epoch) of which something is here. Raises OSError."""
        if not self.folder.is_dir():
            return []
        return sorted(number for path in self.folder.iterdir() if (number := parse_name(path.name)))

    def admit(self, nbytes: int) -> None:
        """In memory there must be room before anything is written. Raises OSError, CheckpointFault."""
        if self._memory is not None:
            self._memory.admit(nbytes)

    def prepare(self, attempt: int, epoch: int, step: int, rank: int) -> Path:
        """Raise the fence and make the shard's directory; its path. Raises OSError, CheckpointFault."""
        self.fence.raise_now(attempt, epoch)
        self.check_fence(attempt, epoch)
        path = self.path(step, epoch, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def check_fence(self, attempt: int, epoch: int) -> None:
        """Raises CheckpointFault for an epoch that is over, OSError."""
        if not self.fence.allows(attempt, epoch):
            raise CheckpointFault(f"epoch {epoch} is fenced on this node: {self.fence.current()} was here")

    def receive(self, shard_of: tuple[int, int, int], attempt: int | None, fill: Callable[[Path], None]) -> None:
        """Take a shard of (step, epoch, rank) in: `fill` writes the bytes, they are compared with
        their digest and with what was announced, then they get their name. `attempt` is the
        sender's, for the fence; None when this node fetches for itself, which is of an older
        epoch by nature. Raises OSError, CheckpointFault."""
        step, epoch, rank = shard_of
        path = self.path(step, epoch, rank)
        if attempt is not None:
            path = self.prepare(attempt, epoch, step, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{time.monotonic_ns()}.tmp")
        try:
            fill(draft)
            head = shard.check(draft)
            if (head.step, head.epoch, head.rank, head.job_id) != (step, epoch, rank, self.folder.name):
                raise CheckpointFault(f"shard {rank} of step {step} was announced, {head.rank} of {head.step} came")
            if attempt is not None:
                self.check_fence(attempt, epoch)
            draft.replace(path)
            sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)

    def oldest_kept(self, keep: int, complete: tuple[int, int]) -> tuple[int, int]:
        """(epoch, step) of the oldest that every node keeps once `complete` is; (0, 0) where too
        little is here to say, as on a node that came late. Raises OSError."""
        settled = sorted(_saved(item) for item in self.steps() if _saved(item) <= _saved(complete))
        return settled[-keep] if len(settled) >= keep else (0, 0)

    def prune(self, *, keep: int, complete: tuple[int, int] | None) -> None:
        """Raises OSError."""
        for step, epoch in plan(self.steps(), keep=keep, complete=complete):
            shutil.rmtree(self.folder / directory_name(step, epoch), ignore_errors=True)

    def forget_others(self) -> None:
        """Remove what jobs that nobody has heard of for long have left behind. Raises OSError."""
        if not self.folder.parent.is_dir():
            return
        limit_s = FORGOTTEN_S if self._memory is None else FORGOTTEN_IN_MEMORY_S
        for other in self.folder.parent.iterdir():
            if other != self.folder and time.time() - other.stat().st_mtime > limit_s:
                shutil.rmtree(other, ignore_errors=True)
