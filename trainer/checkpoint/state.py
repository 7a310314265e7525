"""Training state as a Megatron sharded state dict, and back, in any layout.

Every tensor is named by its place in the whole model, so that chunks of a pipeline, shards
of a tensor and experts find each other again in another layout. That holds for Adam's
moments too, which is why they are put beside the model's tensors here: Megatron's own
optimizer entry is numbered by parameter groups, and those differ once experts are spread.
Only the modules inside the DDP wrappers are saved (the wrapper's prefix does not load).
"""

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, make_sharded_optimizer_tensor

from trainer.engine import Engine
from trainer.errors import CheckpointFault
from trainer.optimizer import adam_state, torch_optimizers

CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}
OPTIMIZER_PREFIX = "optimizer.state"


def sharded_state(engine: Engine, step: int, *, loading: bool) -> dict[str, Any]:
    """`step` committed steps; the schedule and Adam's count are functions of it and need no
    entry. `loading`: the answer is to be filled; it holds the same tensors either way."""
    state: dict[str, Any] = {
        f"chunk{number}": chunk.module.sharded_state_dict(metadata=dict(CONTENT))
        for number, chunk in enumerate(engine.chunks)
    }
    state["optimizer"] = _optimizer_state(engine, state)
    state["trainer"] = {"step": step, "consumed_samples": step * engine.config.training.global_batch}
    return state


def _optimizer_state(engine: Engine, model: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """For each parameter its moments, and the fp32 original of one that is kept in bf16."""
    parameters = [parameter for chunk in engine.chunks for parameter in chunk.module.parameters()]
    places = get_param_id_to_sharded_param_map(model, parameters)
    if len(places) != len(parameters):
        raise CheckpointFault(f"{len(parameters)} parameters, but {len(places)} have a place in the model")
    tensors = adam_state(engine.optimizer, parameters)
    return {
        str(number): {
            name: make_sharded_optimizer_tensor(place, tensors[number][name], f"{OPTIMIZER_PREFIX}.{name}")
            for name in sorted(tensors[number])
        }
        for number, place in sorted(places.items())
    }


def save(engine: Engine, step: int, path: Path) -> None:
    """Write the state here and now, without a marker; All ranks
    of the replica call it together."""
    path.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(sharded_state(engine, step, loading=False), str(path), content_metadata=dict(CONTENT))


def load(engine: Engine, path: Path) -> int:
    """Fill `engine` from a checkpoint directory; returns its step. All ranks of the replica
    call it together. Raises CheckpointFault."""
    try:
        loaded = dist_checkpointing.load(sharded_state(engine, 0, loading=True), str(path))
        for number, chunk in enumerate(engine.chunks):
            chunk.module.load_state_dict(loaded[f"chunk{number}"])
        step = int(loaded["trainer"]["step"])
        _fill_optimizer(engine, loaded["optimizer"], step)
    except Exception as error:  # Megatron raises a dozen unrelated types for a damaged directory.
        raise CheckpointFault(f"{path}: {type(error).__name__}: {error}") from error
    engine.stand_at(step)
    return step


@torch.no_grad()
def _fill_optimizer(engine: Engine, loaded: dict[str, dict[str, torch.Tensor]], step: int) -> None:
    parameters = [parameter for chunk in engine.chunks for parameter in chunk.module.parameters()]
    for number, mine in enumerate(adam_state(engine.optimizer, parameters)):
        for name, tensor in loaded.get(str(number), {}).items():
            mine[name].copy_(tensor)
    for inner in torch_optimizers(engine.optimizer):
        for state in inner.state.values():
            state["step"].fill_(float(step))
