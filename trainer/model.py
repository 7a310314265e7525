"""The models that a job may train, cut into this rank's chunks of the pipeline.

`build_model` gives one chunk, or `vp` of them under the interleaved schedule; chunk i of
stage p holds the layers that Megatron numbers for virtual stage i. Losses are sums over
tokens (`calculate_per_token_loss`), so that gradients of any split of the global batch
add up; the division by the token count happens once, after the reduction over the replicas.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig

from controlplane.protocol.launch import TrainerConfig
from trainer import layers
from trainer.batches import Batch
from trainer.context import ContextBert

Chunk = DistributedDataParallel


def build_model(config: TrainerConfig, device: torch.device) -> list[Chunk]:
    """This rank's chunks of the model, each wrapped by Megatron's gradient buffers."""
    torch.manual_seed(config.training.seed)
    transformer = layers.transformer_config(config)
    vp = config.parallelism.vp
    modules = [_build_module(config, transformer, stage if vp > 1 else None) for stage in range(vp)]
    buffers = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=config.parallelism.distributed_optimizer,
        check_for_nan_in_grad=False,
    )
    for module in modules:
        _spread_experts(module, config.training.seed)
    dtype = transformer.params_dtype
    return [Chunk(transformer, buffers, module.to(dtype).to(device)) for module in modules]


def _build_module(config: TrainerConfig, transformer: TransformerConfig, vp_stage: int | None) -> torch.nn.Module:
    model = config.model
    common: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "max_sequence_length": model.sequence_length,
        "pre_process": parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        "post_process": parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        "share_embeddings_and_output_weights": model.family != "moe",
        "vp_stage": vp_stage,
    }
    if model.family == "bert":
        bert = ContextBert if config.parallelism.cp > 1 else BertModel
        return bert(
            transformer,
            num_tokentypes=0,
            transformer_layer_spec=layers.encoder_block(transformer),
            add_binary_head=False,
            **common,
        )
    spec = layers.decoder_block(transformer, vp_stage)
    return GPTModel(transformer, spec, position_embedding_type="rope", **common)


def _spread_experts(module: torch.nn.Module, seed: int) -> None:
    """Experts with one local number draw the same weights on each expert-parallel rank;
    shuffle them, or the layer would begin with copies of few experts."""
    rank = parallel_state.get_expert_model_parallel_rank()
    generator = torch.Generator().manual_seed(seed + rank)
    for parameter in module.parameters():
        if rank > 0 and not getattr(parameter, "allreduce", True):
            values = parameter.data.view(-1)
            values.copy_(values[torch.randperm(values.numel(), generator=generator)])


def forward_step(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """Megatron's forward-step function: one micro-batch, loss as a sum over the tokens whose
    loss counts. A filler counts nothing, and balances no experts either."""
    batch = next(batches)
    with layers.balancing(model, counts=not batch.filler):
        if batch.attention_mask is None:
            output = model(batch.tokens, batch.position_ids, None, labels=batch.labels)
        else:
            output = model(batch.tokens, batch.attention_mask, lm_labels=batch.labels)
    if isinstance(output, tuple):  # BERT answers with its losses and those of a head it has not.
        output = output[0]

    def loss_sum(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total = (losses.float() * batch.loss_mask).sum()
        count = batch.loss_mask.sum().to(torch.int)
        return total, count, total.detach().clone()

    return output, loss_sum
