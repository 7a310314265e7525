"""Training state as a Megatron sharded state dict, and back, in any layout.

Only the model inside the DDP wrapper is saved (the wrapper's prefix does not load). The
random state lies beside it, one file a rank (`rng`).
"""

from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing

from trainer.checkpoint import rng
from trainer.checkpoint.strategy import CONTENT, load_strategy
from trainer.engine import Engine
from trainer.errors import CheckpointFault


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
        loaded = dist_checkpointing.load(
            sharded_state(engine, 0, loading=True), str(path), sharded_strategy=load_strategy(str(path))
        )
        engine.model.module.load_state_dict(loaded["model"])
        engine.optimizer.load_state_dict(loaded["optimizer"])
        step = int(loaded["trainer"]["step"])
        _load_rng(engine, path)
    except Exception as error:  # Megatron raises a dozen unrelated types for a damaged directory.
        raise CheckpointFault(f"{path}: {type(error).__name__}: {error}") from error
    engine.stand_at(step)
    return step


def _load_rng(engine: Engine, path: Path) -> None:
    """This rank's own, or rank 0's as the seed of a new one. Raises OSError, msgspec.DecodeError."""
    rank, layout = dist.get_rank(), engine.config.parallelism
    mine = path / rng.file_name(rank)
    saved = mine if mine.is_file() else path / rng.file_name(0)
    if saved.is_file():
        rng.restore(saved.read_bytes(), rank=rank, world=dist.get_world_size(), tp=layout.tp, pp=layout.pp)
