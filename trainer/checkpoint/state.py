"""Training state as a Megatron sharded state dict, and back, in any layout.

The non-distributed optimizer: with the distributed one a load needs Apex or Transformer
Engine. Only the model inside the DDP wrapper is saved (the wrapper's prefix does not load).
"""

from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing

from trainer.engine import Engine
from trainer.errors import CheckpointFault

CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": False,
    "chained_optim_avoid_prefix": True,
}


def sharded_state(engine: Engine, step: int, *, loading: bool) -> dict[str, Any]:
    """`step` committed steps; the schedule is a function of it and needs no entry."""
    model = engine.model.module.sharded_state_dict(metadata=dict(CONTENT))
    return {
        "model": model,
        "optimizer": engine.optimizer.sharded_state_dict(model, is_loading=loading, metadata=dict(CONTENT)),
        "trainer": {"step": step, "consumed_samples": step * engine.config.training.global_batch},
    }


def load(engine: Engine, path: Path) -> int:
    """Fill `engine` from a checkpoint directory; returns its step. All ranks of the replica
    call it together. Raises CheckpointFault."""
    try:
        loaded = dist_checkpointing.load(sharded_state(engine, 0, loading=True), str(path))
        engine.model.module.load_state_dict(loaded["model"])
        engine.optimizer.load_state_dict(loaded["optimizer"])
        step = int(loaded["trainer"]["step"])
    except Exception as error:  # Megatron raises a dozen unrelated types for a damaged directory.
        raise CheckpointFault(f"{path}: {type(error).__name__}: {error}") from error
    engine.stand_at(step)
    return step
