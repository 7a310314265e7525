"""Actor and critic: Megatron-core GPTs of one shape; the critic ends in one number a token."""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from controlplane.protocol.launch import TrainerConfig
from trainer import layers
from trainer.model import build_model
from trainer.optimizer import build_optimizer, build_schedule, state_tensors

CRITIC_SEED_OFFSET = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model with what trains it. `name` is the prefix of its keys in a checkpoint."""

    name: str
    model: DistributedDataParallel
    optimizer: MegatronOptimizer
    schedule: OptimizerParamScheduler

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and optimizer state, by reference, in an order that is the same on
        every rank of the same coordinates."""
        return [*(parameter.data for parameter in self.model.parameters()), *state_tensors(self.optimizer)]


class ValueHead(torch.nn.Module):
    """Hidden state to one number, the same on every tensor rank. Stands where GPTModel has
    its output layer, and is called like it. Starts at zero: no value is known yet."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden))

    def forward(self, states: torch.Tensor, **_options: Any) -> tuple[torch.Tensor, None]:
        """[sequence, batch, hidden] -> [sequence, batch, 1]."""
        return torch.nn.functional.linear(states, self.weight), None


def build_actor(config: TrainerConfig, device: torch.device) -> Trained:
    """The trainer's own GPT."""
    (whole_stage,) = build_model(config, device)
    return _trained("actor", whole_stage, config)


def build_critic(actor: Trained, config: TrainerConfig, device: torch.device) -> Trained:
    """A GPT like the actor, of another draw, with a value head."""
    torch.manual_seed(config.training.seed + CRITIC_SEED_OFFSET)
    transformer = layers.transformer_config(config)
    model = GPTModel(
        transformer,
        layers.decoder_block(transformer, None),
        vocab_size=config.model.vocab_size,
        max_sequence_length=config.model.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    if model.post_process:
        model.output_layer = ValueHead(transformer.hidden_size)
    placed = model.to(transformer.params_dtype).to(device)
    return _trained("critic", DistributedDataParallel(transformer, actor.model.ddp_config, placed), config)


def _trained(name: str, model: DistributedDataParallel, config: TrainerConfig) -> Trained:
    optimizer = build_optimizer(config.training, [model])
    return Trained(name=name, model=model, optimizer=optimizer, schedule=build_schedule(config.training, optimizer))
