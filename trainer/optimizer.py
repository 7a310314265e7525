"""Adam and its schedule, on the *reduced* gradient.

The non-distributed optimizer: every replica holds the whole state, which is what makes
a peer a donor. The schedule is a pure function of the number of committed steps.
"""

from collections.abc import Iterator, Sequence

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from controlplane.protocol.spec import Training


def build_optimizer(training: Training, chunks: list[DistributedDataParallel]) -> MegatronOptimizer:
    """Adam with its state already there, so that a joiner can be filled before its first step."""
    dtype = torch.bfloat16 if training.dtype == "bf16" else torch.float32
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=training.learning_rate,
            min_lr=training.min_learning_rate,
            weight_decay=training.weight_decay,
            clip_grad=training.clip_grad,
            bf16=dtype is torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=False,
        ),
        chunks,
        use_gloo_process_groups=False,
    )
    for inner in torch_optimizers(optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                inner.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter.data),
                    "exp_avg_sq": torch.zeros_like(parameter.data),
                }
    return optimizer


def build_schedule(training: Training, optimizer: MegatronOptimizer) -> OptimizerParamScheduler:
    """Linear warm-up, cosine decay to `min_learning_rate` at the last step."""
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=training.learning_rate,
        min_lr=training.min_learning_rate,
        lr_warmup_steps=training.warmup_steps,
        lr_decay_steps=training.steps,
        lr_decay_style="cosine",
        start_wd=training.weight_decay,
        end_wd=training.weight_decay,
        wd_incr_steps=training.steps,
        wd_incr_style="constant",
    )


def set_schedule(schedule: OptimizerParamScheduler, step: int) -> None:
    """Stand at `step`. The scheduler's own load adds to what it has, so it is set to zero first."""
    schedule.num_steps = 0
    schedule.step(increment=step)


def torch_optimizers(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    """The torch optimizers inside Megatron's wrappers."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part.optimizer for part in chained if part.optimizer is not None]


def adam_state(optimizer: MegatronOptimizer, parameters: Sequence[torch.nn.Parameter]) -> list[dict[str, torch.Tensor]]:
    """For each of the model's `parameters`, by reference: `exp_avg`, `exp_avg_sq`, and
    `fp32_param` where the optimizer works on an fp32 copy."""
    states = {key: state for inner in torch_optimizers(optimizer) for key, state in inner.state.items()}
    found = []
    for parameter in parameters:
        main = getattr(parameter, "main_param", parameter)
        named = {name: states[main][name] for name in ("exp_avg", "exp_avg_sq")}
        if main is not parameter:
            named["fp32_param"] = main
        found.append(named)
    return found


def state_tensors(optimizer: MegatronOptimizer) -> Iterator[torch.Tensor]:
    """Main parameters and moments, in an order that is the same in every replica."""
    for inner in torch_optimizers(optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                yield parameter.data
                state = inner.state[parameter]
                yield from (state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor))
