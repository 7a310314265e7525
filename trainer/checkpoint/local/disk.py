"""What one node keeps of one job: `<dir>/<node>/<job>/step_00000120-e7/shard_3`.

A shard has its name only when it is whole (`shard.write`, `receive`). The fence is the
node's own: a rank of an older epoch writes nothing here, and no peer sends it here.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.checkpoint.fence import Fence
from trainer.checkpoint.local import shard
from trainer.checkpoint.manifest import directory_name, parse_name
from trainer.checkpoint.storage import sync_directory
from trainer.errors import CheckpointFault

FORGOTTEN_S = 7 * 86400.0
"""A job's folder that nobody touched for so long is removed when another job starts."""


def plan(found: Sequence[tuple[int, int]], *, keep: int, complete: tuple[int, int] | None) -> list[tuple[int, int]]:
    """Which (step, epoch) may go: all older than the `keep` newest up to the newest `complete`
    one. What is newer than that may yet become complete, and nothing goes before a first one is."""
    if complete is None:
        return []
    settled = sorted((item for item in found if item <= complete), reverse=True)
    return sorted(settled[max(1, keep) :])


class LocalDisk:
    """One node's folder of one job. Shared by the node's ranks; each writes its own shards."""

    def __init__(self, root: Path, job_id: str) -> None:
        """`root` is `<dir>/<node>`."""
        self.folder = root / job_id
        self.fence = Fence(self.folder)

    def path(self, step: int, epoch: int, rank: int) -> Path:
        """Where the shard lies, whether it is there or not."""
        return self.folder / directory_name(step, epoch) / f"shard_{rank}"

    def steps(self) -> list[tuple[int, int]]:
        """(step, epoch) of which something is here. Raises OSError."""
        if not self.folder.is_dir():
            return []
        return sorted(number for path in self.folder.iterdir() if (number := parse_name(path.name)))

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
            sync_directory(path.parent)
        finally:
            draft.unlink(missing_ok=True)

    def prune(self, *, keep: int, complete: tuple[int, int] | None) -> None:
        """Raises OSError."""
        for step, epoch in plan(self.steps(), keep=keep, complete=complete):
            shutil.rmtree(self.folder / directory_name(step, epoch), ignore_errors=True)

    def forget_others(self) -> None:
        """Remove what jobs that nobody has heard of for long have left behind. Raises OSError."""
        if not self.folder.parent.is_dir():
            return
        for other in self.folder.parent.iterdir():
            if other != self.folder and time.time() - other.stat().st_mtime > FORGOTTEN_S:
                shutil.rmtree(other, ignore_errors=True)
