"""Loading a torch_dist checkpoint without running anything that it holds.

Megatron's own loading unpickles three kinds of file: `.metadata`, `common.pt` and the objects
among the shards. Here the first goes through `trainer.checkpoint.metadata`; the other two, as
the tensors, through torch's reader of weights, which refuses every name but those of tensors
and of Megatron's own plain types. What is parsed as a whole is compared with the commit
marker first, as the very bytes that are parsed then. Called by `trainer.checkpoint.state` and
the PPO workload; reads no checkpoint without a marker.
"""

import io
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies import torch as megatron_torch
from megatron.core.dist_checkpointing.strategies.base import LoadShardedStrategy
from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME, TorchCommonLoadStrategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelLoadStrategyWrapper
from torch.distributed import checkpoint
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint._nested_dict import set_element

from controlplane.protocol import digests
from trainer.checkpoint import manifest, metadata
from trainer.checkpoint.strategy import data_parallel_group
from trainer.errors import CheckpointFault

METADATA = ".metadata"
MAX_COMMON_BYTES = 64 << 20


class Marked:
    """The small files of a committed checkpoint, each compared with its marker when it is read.
    Raises CheckpointFault without a marker, OSError where the storage does not say."""

    def __init__(self, folder: Path) -> None:
        content = manifest.read_marker(folder)
        if content is None:
            raise CheckpointFault(f"{manifest.MARKER} is absent or no marker")
        self.folder = folder
        self._files = {entry.name: entry for entry in content.files}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, *, limit: int) -> bytes:
        """Raises CheckpointFault for a file of more than `limit` bytes, or that is not what was
        committed; OSError."""
        entry = self._files.get(name)
        if entry is None:
            raise CheckpointFault(f"{name} is not named by the marker")
        if entry.bytes > limit:
            raise CheckpointFault(f"{name} has {entry.bytes} bytes, {limit} is the most that is read")
        with (self.folder / name).open("rb") as file:
            content = file.read(entry.bytes + 1)
        if not digests.matches(digests.committed(entry.digest, entry.blake2b), [content]):
            raise CheckpointFault(f"{name}: content differs from what was committed")
        return content


def load_weights(content: io.BytesIO) -> Any:
    """What torch can read as weights; anything else raises pickle.UnpicklingError, and nothing of it was run."""
    return torch.load(content, map_location="cpu", weights_only=True)


def load_sharded(state: dict[str, Any], files: Marked, *, alone: bool = False) -> dict[str, Any]:
    """`dist_checkpointing.load` of the checkpoint in `files`. All ranks of the replica call it together
    and read each shard once per data-parallel group, where there is one; `alone`: this rank loads while
    the others do something else. Raises what Megatron and torch raise, CheckpointFault, OSError."""
    strategy: LoadShardedStrategy = _Sharded(files)
    if not alone and (group := data_parallel_group()) is not None:
        strategy = FullyParallelLoadStrategyWrapper(strategy, group)
    loaded: dict[str, Any] = dist_checkpointing.load(
        state,
        str(files.folder),
        sharded_strategy=strategy,
        common_strategy=_Common(files),
        validate_access_integrity=not alone,
    )
    return loaded


class _Common(TorchCommonLoadStrategy):
    """What is the same on all ranks."""

    def __init__(self, files: Marked) -> None:
        super().__init__()
        self._files = files

    def load_common(self, checkpoint_dir: Any) -> Any:
        return load_weights(io.BytesIO(self._files.read(COMMON_STATE_FNAME, limit=MAX_COMMON_BYTES)))

    def load_sharded_objects(self, sharded_objects_state_dict: Any, checkpoint_dir: Any) -> Any:
        raise CheckpointFault("objects in files of their own are of a format that is not read")


class _Reader(FileSystemReader):
    """Torch's, with metadata that was parsed already."""

    def __init__(self, files: Marked) -> None:
        super().__init__(files.folder)
        self._metadata = metadata.parse(files.read(METADATA, limit=metadata.MAX_BYTES))
        for place in self._metadata.storage_data.values():
            if place.relative_path not in files:
                raise CheckpointFault(f"its metadata names the file {place.relative_path!r}, and its marker does not")

    def read_metadata(self, *_args: Any, **_named: Any) -> Metadata:
        return self._metadata


class _Planner(megatron_torch.MCoreLoadPlanner):
    """Megatron's; torch's own reads an object as any pickle."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        found, name = load_weights(value), read_item.dest_index.fqn
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], found)
        else:
            self.state_dict[name] = found


class _Sharded(megatron_torch.TorchDistLoadShardedStrategy):
    """Megatron's load with the reader and the planner of this module: its own makes both itself
    (megatron/core/dist_checkpointing/strategies/torch.py, `load`)."""

    def __init__(self, files: Marked) -> None:
        super().__init__()
        self._files = files

    def load(self, sharded_state_dict: Any, checkpoint_dir: Path) -> Any:
        tensors = [one for one in nested_values(sharded_state_dict) if isinstance(one, ShardedTensor)]
        renamed, flat, names = megatron_torch._replace_state_dict_keys_with_sharded_keys(sharded_state_dict)
        state: dict[str, Any] = megatron_torch.mcore_to_pyt_state_dict(renamed, True)
        reader = _Reader(self._files)
        checkpoint.load_state_dict(
            state,
            reader,
            planner=_Planner(
                shapes_validation_sharded_tensors=[one for one in tensors if not one.allow_shape_mismatch],
                allow_shape_mismatch_sharded_tensors={one.key: one for one in tensors if one.allow_shape_mismatch},
            ),
        )
        self.cached_global_metadata = reader.read_metadata()
        unwrapped = {key: megatron_torch._unwrap_pyt_sharded_tensor(value) for key, value in state.items()}
        found = megatron_torch._replace_sharded_keys_with_state_dict_keys(unwrapped, flat, names)
        megatron_torch._restore_dict_types(found, sharded_state_dict)
        return found
