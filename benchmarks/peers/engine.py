"""The trainer's engine inside Megatron groups that somebody else has made.

Called by the peers' ranks, after `trainer.device.prepare_import`.
"""

from collections.abc import Iterable

import torch
from megatron.core import tensor_parallel

from controlplane.protocol.launch import TrainerConfig
from trainer.control.faults import Faults
from trainer.engine import Engine


def build_engine(config: TrainerConfig, device: torch.device) -> Engine:
    """The trainer's engine inside Megatron groups that the caller has made."""
    tensor_parallel.model_parallel_cuda_manual_seed(
        config.training.seed, inference_rng_tracker=True, force_reset_rng=True
    )
    return Engine(config, device, Faults(allowed=False))


def fill_engine(engine: Engine, tensors: Iterable[torch.Tensor], step: int) -> None:
    """Put a saved state (see `Engine.state`) and the schedule of `step` in place."""
    for mine, saved in zip(engine.state(), tensors, strict=True):
        mine.copy_(saved)
    engine.stand_at(step)
