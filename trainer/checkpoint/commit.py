"""From written files to a checkpoint: posts of all ranks, upload, fence, marker; then pruning.

Runs in the save's thread. `Board` is how the ranks of a replica tell each other what they
wrote, through the rendezvous store and not by a collective: training uses those meanwhile.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch.distributed as dist

from controlplane.protocol.launch import RankRef, TrainerConfig
from trainer.checkpoint import manifest, retention
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.part import Part
from trainer.checkpoint.storage import is_remote, storage_at, sync
from trainer.errors import CheckpointFault
from trainer.store.client import OwnClient

if TYPE_CHECKING:
    from trainer.checkpoint.strategy import Planned

UPLOADS_AT_ONCE = 8
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Order:
    """What the manifest says of the save."""

    step: int
    epoch: int
    kind: str


class Board:
    """Posts of the ranks of one replica, by the number of the save."""

    def __init__(self, store: dist.Store, ref: RankRef, world: int, *, timeout_s: float) -> None:
        self._store = OwnClient(store)
        self._prefix = f"save/{ref.job_id}/{ref.attempt}/{ref.replica}.{ref.incarnation}"
        self._rank, self._world, self._timeout_s = ref.rank, world, timeout_s

    def post(self, sequence: int, part: Part) -> None:
        """Say what this rank has written, or that it has not."""
        self._store.set(self._key(sequence, self._rank), msgspec.json.encode(part))

    def collect(self, sequence: int) -> list[Part]:
        """What the other ranks say, in order; one that stays silent counts as failed."""
        deadline_s = time.monotonic() + self._timeout_s
        return [self._await(self._key(sequence, rank), rank, deadline_s) for rank in range(1, self._world)]

    def _await(self, key: str, rank: int, deadline_s: float) -> Part:
        while not self._store.check([key]):
            if time.monotonic() > deadline_s:
                return Part(error=f"rank {rank} has not written its part within {self._timeout_s:.0f} s")
            time.sleep(POLL_S)
        part = msgspec.json.decode(self._store.get(key), type=Part)
        self._store.delete_key(key)
        return part

    def _key(self, sequence: int, rank: int) -> str:
        return f"{self._prefix}/{sequence}/{rank}"


class Committer:
    """Knows the storage and the fence; no collective, no engine."""

    def __init__(self, ref: RankRef, config: TrainerConfig, *, fence: Fence) -> None:
        self._ref, self._config, self._fence = ref, config, fence

    def upload(self, part: Part, folder: Path, address: str) -> Part:
        """Copy this rank's staged files to the object store, several at once; the error is in the answer."""
        try:
            target = storage_at(address)
            with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
                list(pool.map(lambda entry: target.upload(folder / entry.name, entry.name), part.files))
        except Exception as error:  # Drivers raise what they like; the save fails, training goes on.
            return Part(error=f"upload to {address}: {type(error).__name__}: {error}")
        return part

    def commit(
        self, order: Order, parts: list[Part], planned: "Planned", folder: Path, address: str
    ) -> manifest.Manifest:
        """The marker, last of all. Raises CheckpointFault, OSError."""
        faults = "; ".join(f"rank {rank}: {part.error}" for rank, part in enumerate(parts) if part.error)
        if faults:
            raise CheckpointFault(faults)
        planned.finish(folder, [list(part.written) for part in parts])
        theirs = tuple(entry for part in parts for entry in part.files)
        named = {entry.name for entry in theirs}
        # What rank 0 alone writes is all that no rank has told of. In a directory that all
        # ranks share, files of an earlier try at this step may lie about: they are not ours.
        shared = Part(files=manifest.describe_files(folder, only=lambda name: name not in named and _is_common(name)))
        if is_remote(address):
            shared = self.upload(shared, folder, address)
            if shared.error:
                raise CheckpointFault(shared.error)
        else:
            _settle(folder, shared)
        return self._mark(order, (*theirs, *shared.files), address)

    def _mark(self, order: Order, files: tuple[manifest.FileEntry, ...], address: str) -> manifest.Manifest:
        config, attempt = self._config, self._ref.attempt
        content = manifest.Manifest(
            job_id=self._ref.job_id,
            attempt=attempt,
            epoch=order.epoch,
            step=order.step,
            kind=order.kind,
            layout=manifest.layout_of(config),
            consumed_samples=order.step * config.training.global_batch,
            files=tuple(sorted(files, key=lambda entry: entry.name)),
        )
        if not self._fence.allows(attempt, order.epoch):
            raise CheckpointFault(f"epoch {order.epoch} is fenced: {self._fence.current()} was installed")
        manifest.write_marker(address, content)
        return content

    def survey(self, epoch: int, *, last: bool) -> retention.Plan:
        """What is too old now; behind the `last` save nothing is kept beyond that, unless a replica still
        computes from it. Never raises: the checkpoint stands whatever the storage says."""
        config = self._config
        try:
            if last:
                retention.let_go(config.checkpoint_dir, None)
            return retention.survey(config.checkpoint_dir, keep=config.checkpoint.keep, epoch=epoch)
        except OSError as error:
            print(f"checkpoint retention: {error}", flush=True)
            return retention.NOTHING

    def prune(self, planned: retention.Plan) -> None:
        """Remove it. Never raises: what stays is tried again after the next save."""
        try:
            retention.carry_out(self._config.checkpoint_dir, planned)
        except OSError as error:
            print(f"checkpoint retention: {error}", flush=True)

    def discard(self, address: str) -> None:
        """After a failure: what was written takes no space on a disk that may be full of it. Never
        raises: where the storage does not say whether it is committed, retention takes it later."""
        try:
            if manifest.read_marker(address) is None:
                storage_at(address).remove_all()
        except (OSError, ValueError) as error:
            print(f"checkpoint {address}: {error}", flush=True)


def _settle(folder: Path, common: Part) -> None:
    """Make durable what Megatron has only written, and the directory's own name."""
    for entry in common.files:
        sync(folder / entry.name)
    sync(folder.parent)


def _is_common(name: str) -> bool:
    """Files that rank 0 writes for all: common state, metadata and format."""
    return not name.startswith("__") and not name.startswith("rng_") and not name.endswith(".tmp")
