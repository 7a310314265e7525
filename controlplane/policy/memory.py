"""What one device must hold under a layout, as an estimate (S2.6).

Used to leave out layouts that cannot fit when a job is re-planned for fewer devices: fewer
ranks mean more parameters on each. What the user asked for is never refused by an estimate.

State is what the trainer keeps for a parameter: the parameter, its gradient in fp32, two
moments of Adam and, in bf16, an fp32 original; while a step is exchanged also the raw
gradient, the finished one and the vector that travels. With the distributed optimizer the
moments, the original and these two vectors are shared out among the data-parallel ranks that
hold the same parameters, which for experts are fewer. Activations follow Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198,
equations 2 and 4), without recomputation, with the scores of unfused attention, for the
first stage of the 1F1B schedule, which holds a micro-batch for each stage. Biases, norms,
workspace and fragmentation are not counted: `HEADROOM` stands for them.
"""

from controlplane.protocol.spec import Model, Parallelism, Training

HEADROOM = 1.1
_HELD_BYTES = {"fp32": 4 + 4 + 4, "bf16": 2 + 4 + 4}
_SHARED_BYTES = {"fp32": 8 + 8, "bf16": 4 + 8 + 8}
_VALUE_BYTES = {"fp32": 4, "bf16": 2}


def parameters_per_device(model: Model, layout: Parallelism) -> int:
    """Weights of the fullest rank: the first stage's, with the embedding."""
    return _dense(model, layout) + _experts(model, layout)


def state_bytes(model: Model, layout: Parallelism, training: Training) -> int:
    """Parameters, gradients, optimizer and the exchange's copies on the fullest rank."""
    dense, experts = _dense(model, layout), _experts(model, layout)
    shared = dense + experts
    if layout.distributed_optimizer:
        ranks = layout.replica_dp * layout.cp
        shared = dense // ranks + experts * layout.ep // ranks
    return (dense + experts) * _HELD_BYTES[training.dtype] + shared * _SHARED_BYTES[training.dtype]


def activation_bytes(model: Model, layout: Parallelism, training: Training) -> int:
    """Of all micro-batches that the first stage holds at a time."""
    tp, scale = layout.tp, _VALUE_BYTES[training.dtype] / 2
    tokens = training.micro_batch * model.sequence_length // layout.cp
    width = tokens * model.hidden
    whole = 1 / tp if layout.sequence_parallel else 1.0
    spread = (model.ffn_hidden or 4 * model.hidden) / (4 * model.hidden)
    times = model.experts_per_token if model.family == "moe" else 1
    attention = width * (3 * whole + 8 / tp) + 5 * model.heads * model.sequence_length * tokens / tp
    layer = attention + width * 4 * whole + width * (3 * whole + 16 / tp * spread) * times
    held = layout.pp if layout.vp == 1 else layout.pp + (layout.pp - 1) / layout.vp
    logits = 4 * tokens * model.vocab_size / tp if layout.pp == 1 else 0.0
    return int(scale * layer * (model.layers / layout.pp) * held + logits)


def device_bytes(model: Model, layout: Parallelism, training: Training) -> int:
    """What the fullest rank needs, with `HEADROOM`."""
    return int(HEADROOM * (state_bytes(model, layout, training) + activation_bytes(model, layout, training)))


def _dense(model: Model, layout: Parallelism) -> int:
    """The first stage's, without its experts."""
    return _embedding(model, layout) + (model.layers // layout.pp) * _layer(model, layout)


def _embedding(model: Model, layout: Parallelism) -> int:
    """The words; the untied output of a mixture too where one stage has both."""
    words = model.vocab_size * model.hidden // layout.tp
    return words * 2 if model.family == "moe" and layout.pp == 1 else words


def _layer(model: Model, layout: Parallelism) -> int:
    hidden, groups = model.hidden, model.kv_heads or model.heads
    attention = 2 * hidden * hidden + 2 * hidden * hidden * groups // model.heads
    if model.family != "moe":
        return (attention + 2 * hidden * _feed_forward(model)) // layout.tp
    return attention // layout.tp + hidden * model.experts


def _experts(model: Model, layout: Parallelism) -> int:
    """Those of the first stage that lie on one rank."""
    if model.family != "moe":
        return 0
    one = 3 * model.hidden * _feed_forward(model) // layout.tp
    return (model.layers // layout.pp) * one * model.experts // layout.ep


def _feed_forward(model: Model) -> int:
    return model.ffn_hidden or 4 * model.hidden
