"""Training state as a Megatron sharded state dict, and back, in any layout.

Every tensor is named by its place in the whole model, so that chunks of a pipeline, shards
of a tensor and experts find each other again in another layout. That holds for Adam's
moments too, which is why they are put beside the model's tensors here: Megatron's own
optimizer entry is numbered by parameter groups, and those differ once experts are spread.
Only the modules inside the DDP wrappers are saved (the wrapper's prefix does not load). The
random state lies beside it, one file a rank (`rng`).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, make_sharded_optimizer_tensor
from torch.distributed.checkpoint import CheckpointException

from trainer.checkpoint import rng
from trainer.checkpoint.reading import Marked, load_sharded
from trainer.checkpoint.strategy import CONTENT, Planner
from trainer.engine import Engine
from trainer.errors import CheckpointFault
from trainer.optimizer import adam_state, fill_adam_state
from trainer.shared_state import is_shared

OPTIMIZER_PREFIX = "optimizer.state"


def sharded_state(engine: Engine, step: int, *, loading: bool) -> dict[str, Any]:
    """`step` committed steps; the schedule and Adam's count are functions of it and need no
    entry. `loading`: the answer is to be filled; it holds the same tensors either way."""
    state: dict[str, Any] = {
        f"chunk{number}": chunk.module.sharded_state_dict(metadata=dict(CONTENT))
        for number, chunk in enumerate(engine.chunks)
    }
    state["optimizer"] = _optimizer_state(engine, state, loading=loading)
    state["trainer"] = {"step": step, "consumed_samples": step * engine.config.training.global_batch}
    return state


def _optimizer_state(engine: Engine, model: dict[str, Any], *, loading: bool) -> dict[str, dict[str, Any]]:
    """For each parameter its moments, and the fp32 original of one that is kept in bf16. Where
    data-parallel ranks share the state out, the owner of a parameter alone has an entry for it."""
    parameters = _parameters(engine)
    places = get_param_id_to_sharded_param_map(model, parameters)
    if len(places) != len(parameters):
        raise CheckpointFault(f"{len(parameters)} parameters, but {len(places)} have a place in the model")
    tensors = adam_state(engine.optimizer, parameters, empty=loading)
    if is_shared(engine.optimizer):
        # Megatron's (pipeline, tensor, data): there is no second of it among the data-parallel ranks.
        places = {number: replace(place, replica_id=(*place.replica_id[:2], 0)) for number, place in places.items()}
    return {
        str(number): {
            name: make_sharded_optimizer_tensor(place, tensors[number][name], f"{OPTIMIZER_PREFIX}.{name}")
            for name in sorted(tensors[number])
        }
        for number, place in sorted(places.items())
        if tensors[number]
    }


def _parameters(engine: Engine) -> list[torch.nn.Parameter]:
    return [parameter for chunk in engine.chunks for parameter in chunk.module.parameters()]


def save(engine: Engine, step: int, path: Path) -> None:
    """Write the state here and now, without a marker. All ranks of the replica call it
    together; it returns when all is written. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    planned = Planner().plan(sharded_state(engine, step, loading=False), path)
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, planned.write())
    if dist.get_rank() == 0:
        planned.write_common(path)
        planned.finish(path, [list(part.written) for part in parts])
    dist.barrier()


def load(engine: Engine, path: Path) -> int:
    """Fill `engine` from a committed checkpoint's directory; returns its step. All ranks of the
    replica call it together, once its tensors were compared with the marker (`manifest.verify`);
    the rest is compared here. Raises CheckpointFault, and OSError where the storage could not be read."""
    try:
        files = Marked(path)
        loaded = load_sharded(sharded_state(engine, 0, loading=True), files)
        for number, chunk in enumerate(engine.chunks):
            chunk.module.load_state_dict(loaded[f"chunk{number}"])
        step = int(loaded["trainer"]["step"])
        parameters = _parameters(engine)
        state = [loaded["optimizer"].get(str(number), {}) for number in range(len(parameters))]
        fill_adam_state(engine.optimizer, parameters, state, step)
        _load_rng(engine, files)
    # Megatron raises a dozen unrelated types for a damaged directory; torch's own is no Exception.
    except (Exception, CheckpointException) as error:
        if (said := _of_the_storage(error)) is not None:
            raise said from error
        raise CheckpointFault(f"{path}: {type(error).__name__}: {error}") from error
    engine.stand_at(step)
    return step


def _of_the_storage(error: BaseException) -> OSError | None:
    """What the storage itself said; torch wraps it, with the errors of all ranks. A file that is
    missing is the checkpoint's fault."""
    told = [wrapped[0] for wrapped in getattr(error, "failures", {}).values()]
    found = (one for one in (error, *told) if isinstance(one, OSError) and not isinstance(one, FileNotFoundError))
    return next(found, None)


def _load_rng(engine: Engine, files: Marked) -> None:
    """This rank's own, or rank 0's as the seed of a new one. Raises OSError, CheckpointFault,
    msgspec.DecodeError."""
    rank, layout = dist.get_rank(), engine.config.parallelism
    name = next((name for name in map(rng.file_name, (rank, 0)) if name in files), None)
    if name is not None:
        rng.restore(
            files.read(name, limit=rng.MAX_BYTES), rank=rank, world=dist.get_world_size(), tp=layout.tp, pp=layout.pp
        )
