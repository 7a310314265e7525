"""Adam and its schedule, on the *reduced* gradient.

Every replica holds the whole state, which is what makes a peer a donor: each of its ranks
all that belongs to its coordinate, or, with Megatron's distributed optimizer, the
data-parallel ranks a part each, which is the same part in every replica (`shared_state`).
The schedule is a pure function of the number of committed steps.
"""

from collections.abc import Iterator, Sequence

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from controlplane.protocol.spec import Training
from trainer import shared_state


def build_optimizer(training: Training, chunks: list[DistributedDataParallel]) -> MegatronOptimizer:
    """Adam with its state already there, so that a joiner can be filled before its first step.
    Whether data-parallel ranks share it out is what the chunks were built for."""
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
            use_distributed_optimizer=chunks[0].ddp_config.use_distributed_optimizer,
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


def adam_state(
    optimizer: MegatronOptimizer, parameters: Sequence[torch.nn.Parameter], *, empty: bool = False
) -> list[dict[str, torch.Tensor]]:
    """For each of the model's `parameters`, in its shape: `exp_avg`, `exp_avg_sq`, and
    `fp32_param` where the optimizer works on an fp32 copy. By reference, or where data-parallel
    ranks share the state out as `shared_state.gather` has it: nothing at all but at the owner,
    with `empty` no values, else a collective."""
    if shared_state.is_shared(optimizer):
        owned = shared_state.gather(optimizer, empty=empty)
        return [owned.get(parameter, {}) for parameter in parameters]
    states = {key: state for inner in torch_optimizers(optimizer) for key, state in inner.state.items()}
    found = []
    for parameter in parameters:
        main = getattr(parameter, "main_param", parameter)
        named = {name: states[main][name] for name in shared_state.MOMENTS}
        if main is not parameter:
            named[shared_state.MASTER] = main
        found.append(named)
    return found


@torch.no_grad()
def fill_adam_state(
    optimizer: MegatronOptimizer,
    parameters: Sequence[torch.nn.Parameter],
    loaded: Sequence[dict[str, torch.Tensor]],
    step: int,
) -> None:
    """Take over what `adam_state` has given for the same `parameters`, after `step` steps. All
    data-parallel ranks call it together."""
    if shared_state.is_shared(optimizer):
        shared_state.scatter(optimizer, dict(zip(parameters, loaded, strict=True)))
    else:
        for mine, theirs in zip(adam_state(optimizer, parameters), loaded, strict=True):
            for name, tensor in theirs.items():
                mine[name].copy_(tensor)
    for inner in torch_optimizers(optimizer):
        for state in inner.state.values():
            state["step"].fill_(float(step))


def state_tensors(optimizer: MegatronOptimizer) -> Iterator[torch.Tensor]:
    """Main parameters and moments, in an order that is the same in every replica. What the
    distributed optimizer only sees through a window of the model's parameter is left out."""
    for inner in torch_optimizers(optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                if parameter._base is None:
                    yield parameter.data
                state = inner.state[parameter]
                yield from (state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor))
