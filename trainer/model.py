"""The GPT that a job trains: Megatron-core's local layer spec, nothing of ours inside.

Losses are sums over tokens (`calculate_per_token_loss`), so that gradients of any split
of the global batch add up; the division by the token count happens once, after the
reduction over the replicas.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

from controlplane.protocol.launch import TrainerConfig

Batch = dict[str, torch.Tensor]
TIED_EMBEDDINGS = True


def build_model(config: TrainerConfig, device: torch.device) -> DistributedDataParallel:
    """This rank's part of the model, wrapped by Megatron's gradient buffers."""
    torch.manual_seed(config.training.seed)
    transformer = _transformer_config(config)
    dtype = transformer.params_dtype
    model = GPTModel(
        transformer,
        get_gpt_layer_local_spec(),
        vocab_size=config.model.vocab_size,
        max_sequence_length=config.model.sequence_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=TIED_EMBEDDINGS,
        position_embedding_type="rope",
    )
    buffers = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=False,
        check_for_nan_in_grad=False,
    )
    return DistributedDataParallel(transformer, buffers, model.to(dtype).to(device))


def _transformer_config(config: TrainerConfig) -> TransformerConfig:
    model, layout = config.model, config.parallelism
    dtype = torch.bfloat16 if config.training.dtype == "bf16" else torch.float32
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        # The CPU generator draws the weights on every device: one seed, one model.
        use_cpu_initialization=True,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        calculate_per_token_loss=True,
        deterministic_mode=False,
    )


def forward_step(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """Megatron's forward-step function: one micro-batch, loss as a sum over its tokens."""
    batch = next(batches)
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])

    def loss_sum(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total = losses.float().sum()
        count = torch.tensor(losses.numel(), dtype=torch.int, device=losses.device)
        return total, count, total.detach().clone()

    return output, loss_sum
