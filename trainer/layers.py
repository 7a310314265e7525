"""What the models are made of: Megatron's local layers, and the two pieces they lack.

Local layers need neither Transformer Engine nor Apex, so the same model runs on the CPU
and on a GPU. Megatron's plain norm refuses sequence parallelism only because torch's norm
marks no parameter for the reduction over the tensor-parallel ranks: `SequenceParallelNorm`
marks them.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.utils import get_model_config

from controlplane.protocol.launch import TrainerConfig
from trainer.context import ContextAttention

AUX_LOSS_COEFF = 0.01
"""Weight of the experts' balance in the loss, as in Megatron's own Mixtral script."""

if not hasattr(moe_utils, "te_general_gemm"):
    # Megatron-core 0.16.1 reads the name also where Transformer Engine is absent.
    moe_utils.te_general_gemm = None


def transformer_config(config: TrainerConfig) -> TransformerConfig:
    """Megatron's configuration of the job's model in the job's layout."""
    model, layout = config.model, config.parallelism
    dtype = torch.bfloat16 if config.training.dtype == "bf16" else torch.float32
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn_hidden or 4 * model.hidden,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vp if layout.vp > 1 else None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        sequence_parallel=layout.sequence_parallel,
        # With Megatron's defaults the interleaved schedule gives wrong gradients on gloo.
        overlap_p2p_comm=layout.vp > 1,
        batch_p2p_comm=layout.vp == 1,
        # The CPU generator draws the weights on every device: one seed, one model.
        use_cpu_initialization=True,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        calculate_per_token_loss=True,
        deterministic_mode=False,
        **(_mixture(config) if model.family == "moe" else {}),
    )


def _mixture(config: TrainerConfig) -> dict[str, Any]:
    """Mixtral's block: RMS norms, gated experts without biases, top-k then softmax."""
    model, layout = config.model, config.parallelism
    return {
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "num_moe_experts": model.experts,
        "moe_router_topk": model.experts_per_token,
        # One expert alone has the weight 1 behind a softmax over the chosen: its router would learn nothing.
        "moe_router_pre_softmax": model.experts_per_token == 1,
        "moe_ffn_hidden_size": model.ffn_hidden or 4 * model.hidden,
        "moe_router_load_balancing_type": "aux_loss",
        # Megatron weighs the balance by a rank's own tokens, which these two divide.
        "moe_aux_loss_coeff": AUX_LOSS_COEFF * layout.cp * (layout.tp if layout.sequence_parallel else 1),
        # Its alltoall dispatcher needs CUDA streams.
        "moe_token_dispatcher_type": "allgather",
        "expert_tensor_parallel_size": layout.tp,
    }


def decoder_block(transformer: TransformerConfig, vp_stage: int | None) -> ModuleSpec | TransformerBlockSubmodules:
    """The layers of one chunk of a GPT or of a mixture of experts."""
    layer = get_gpt_layer_local_spec(num_experts=transformer.num_moe_experts, normalization=transformer.normalization)
    if transformer.context_parallel_size > 1:
        layer.submodules.self_attention.submodules.core_attention = ContextAttention
    if not transformer.sequence_parallel:
        return layer
    layer.submodules.input_layernorm = SequenceParallelNorm
    layer.submodules.pre_mlp_layernorm = SequenceParallelNorm
    count = get_num_layers_to_build(transformer, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=SequenceParallelNorm)


def encoder_block(transformer: TransformerConfig) -> ModuleSpec:
    """One layer of BERT."""
    layer = copy.deepcopy(bert_layer_local_spec)
    if transformer.context_parallel_size > 1:
        layer.submodules.self_attention.submodules.core_attention = ContextAttention
    return layer


class SequenceParallelNorm:
    """Torch's norm over [s / tp, b, h]; its parameters' gradients are summed over TP."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(normalized_shape=hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = True  # type: ignore[attr-defined]
        return norm


@contextlib.contextmanager
def balancing(model: Any, *, counts: bool) -> Iterator[None]:
    """Without the experts' auxiliary loss when `counts` is false."""
    config = get_model_config(model)
    kept = config.moe_aux_loss_coeff
    config.moe_aux_loss_coeff = kept if counts else 0.0
    try:
        yield
    finally:
        config.moe_aux_loss_coeff = kept
