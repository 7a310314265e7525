"""Megatron's torch_dist format, split where a save may fail.

`Planner.plan` is the collective half, and does no I/O: sharding, the plan, the tensors on
the host. What it returns writes itself without any collective: `Planned.write` (and beside it
`write_common`) in a forked writer of each rank, `Planned.finish` on rank 0 once every rank has
written. So a full disk on one rank is an error message and never a hang of the others.

Tensors that data-parallel ranks hold alike are shared out among them (fully parallel), for
saving and for loading. The plan of an unchanged model is made twice and then reused.
"""

import io
import os
import queue
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.core import CONFIG_FNAME, CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from torch.distributed.checkpoint.filesystem import SerializationFormat, _StorageInfo, _write_item
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult
from torch.serialization import set_crc32_options

from controlplane.protocol import digests
from trainer.checkpoint.manifest import FileEntry
from trainer.checkpoint.part import Part, Written
from trainer.checkpoint.storage import storage_at, sync
from trainer.checkpoint.stream import DurableStream

BACKEND = "torch_dist"
VERSION = 1
FILES_PER_RANK = max(2, min(8, (os.cpu_count() or 1) // 8))
"""Each has a thread that writes and digests it; a node's ranks share its cores."""
CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One save of this rank, on the host, not yet written. `common` is empty but on rank 0."""

    writer: FileSystemWriterAsync
    metadata: Metadata | None
    buckets: list[Any]
    common: bytes

    def write(self) -> Part:
        """This rank's files, durable. Raises OSError. Runs in the forked writer: a thread a file,
        which digests what it writes (both let go of the interpreter)."""
        if not self.buckets:
            return Part()
        # The marker has a better digest of each file than the archives' own sums.
        set_crc32_options(False)
        with ThreadPoolExecutor(len(self.buckets)) as pool:
            done = list(pool.map(self._write_file, self.buckets))
        return Part(files=tuple(entry for entry, _ in done), written=tuple(item for _, items in done for item in items))

    def _write_file(self, bucket: Any) -> tuple[FileEntry, list[Written]]:
        path, name, (blobs, tensors) = bucket
        with open(path, "wb", buffering=0) as file:
            stream = DurableStream(file)
            try:
                items = [
                    _write_item(self.writer.transforms, stream, data, item, name, SerializationFormat.TORCH_SAVE)
                    for item, data in (*blobs, *tensors)
                ]
            except RuntimeError as error:
                # Torch's archive writer hides what the disk has said behind its own state.
                raise stream.fault or error from error
            stream.sync()
        return FileEntry(name, stream.tell(), digests.named(stream.hashed)), [_told(item) for item in items]

    def write_common(self, folder: Path) -> frozenset[str]:
        """Rank 0's files that hold no tensor and are known before one is written, durable; their
        names. Nothing on the others. Raises OSError."""
        if not self.common:
            return frozenset()
        storage_at(folder).write(COMMON_STATE_FNAME, self.common)
        save_config(CheckpointingConfig(BACKEND, VERSION), str(folder))
        sync(folder / CONFIG_FNAME)
        return frozenset({COMMON_STATE_FNAME, CONFIG_FNAME})

    def finish(self, folder: Path, parts: list[list[Written]]) -> None:
        """Rank 0, when all ranks have written: the metadata. Raises OSError."""
        assert self.metadata is not None, "rank 0 holds the global metadata"
        self.writer.finish(self.metadata, [[_result(item) for item in part] for part in parts])


class Planner:
    """Keeps the strategy, and with it the plans that may be reused. All ranks of the replica
    call `plan` in the same order."""

    def __init__(self) -> None:
        # Megatron would spawn a manager process for a queue that this module does not use.
        filesystem_async._results_queue = queue.SimpleQueue()
        self._torch = _Capturing(BACKEND, VERSION, thread_count=FILES_PER_RANK, cached_metadata=True)
        group = data_parallel_group()
        self._strategy = (
            FullyParallelSaveStrategyWrapper(self._torch, group, do_cache_distribution=True) if group else self._torch
        )
        self._planned_before = False

    def plan(self, sharded: dict[str, Any], folder: Path) -> Planned:
        """The collective half: everything that is needed to write `sharded` to `folder`."""
        sharded["content_metadata"] = dict(CONTENT)
        shards, common = save_preprocess(sharded, not self._planned_before)
        request = self._strategy.async_save(shards, folder)
        self._planned_before = True
        assert self._torch.captured is not None, "async_save has just planned"
        writer, metadata = self._torch.captured
        buckets = request.preload_fn() if request.preload_fn else []
        stream = io.BytesIO()
        if torch.distributed.get_rank() == 0:
            torch.save(common, stream)
        return Planned(writer, metadata, buckets, stream.getvalue())


class _Capturing(TorchDistSaveShardedStrategy):
    """Megatron's strategy, which hands its plan out instead of finishing it by collectives."""

    captured: tuple[FileSystemWriterAsync, Metadata | None] | None = None

    def _get_save_and_finalize_callbacks(self, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
        self.captured = (writer, planned[1])
        _, preload, _ = writer.get_save_function_and_args()
        return AsyncRequest(None, (), [], preload_fn=preload)


def data_parallel_group() -> Any | None:
    """Ranks of this replica that hold the same parameters; None where each is alone."""
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return group if torch.distributed.get_world_size(group) > 1 else None


def _told(result: WriteResult) -> Written:
    index, stored = result.index, result.storage_data
    offset = None if index.offset is None else tuple(index.offset)
    return Written(
        index.fqn, offset, index.index, result.size_in_bytes, stored.relative_path, stored.offset, stored.length
    )


def _result(told: Written) -> WriteResult:
    return WriteResult(
        index=MetadataIndex(told.fqn, told.offset, told.index),
        size_in_bytes=told.bytes,
        storage_data=_StorageInfo(told.path, told.start, told.length),
    )
