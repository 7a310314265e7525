"""Which models fit which layouts: one list for submit, for re-planning and for the trainer.

A rule reads model, layout and training and yields faults. `SHAPE_RULES` hold for whatever
program trains; `BUILT_IN_RULES` for the built-in trainer alone, which runs Megatron-core's
local layers, with neither Transformer Engine nor Apex: what needs those is refused here
with the reason instead of failing inside Megatron. Each rule is paired with the pointers
it reads.
"""

from collections.abc import Callable, Iterator

from controlplane.protocol.spec import Model, Parallelism, Training
from controlplane.protocol.spec_fault import Fault

Rule = Callable[[Parallelism, Model, Training], Iterator[Fault]]
Rules = tuple[tuple[Rule, tuple[str, ...]], ...]

_TP, _PP, _VP, _CP, _EP, _INNER = (f"/spec/parallelism/{name}" for name in ("tp", "pp", "vp", "cp", "ep", "replica_dp"))
_SEQUENCE, _DISTRIBUTED = "/spec/parallelism/sequence_parallel", "/spec/parallelism/distributed_optimizer"
_FAMILY, _LAYERS, _LENGTH = "/spec/model/family", "/spec/model/layers", "/spec/model/sequence_length"
_NUMERICS = "/spec/training/numerics"
_EXPERTS, _PER_TOKEN = "/spec/model/experts", "/spec/model/experts_per_token"


def check_virtual_stages(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """Every chunk of every stage holds equally many layers. (The micro-batches of a share
    need not divide by pp: the trainer fills the interleaved schedule up.)"""
    if layout.vp == 1:
        return
    if layout.pp == 1:
        yield Fault(_VP, f"vp = {layout.vp} without a pipeline: there is one stage", "set vp to 1, or pp to 2 or more")
    elif model.layers % layout.pp == 0 and model.layers % (layout.pp * layout.vp):
        yield Fault(
            _VP,
            f"layers = {model.layers} is not divisible by pp x vp = {layout.pp * layout.vp}",
            f"choose vp so that it divides the {model.layers // layout.pp} layers of a stage",
        )


def _only_of_experts(name: str) -> tuple[Rule, tuple[str, ...]]:
    """The rule that a field of a mixture of experts is left out of other models."""
    usual = getattr(Model(), name)

    def check(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
        if model.family != "moe" and getattr(model, name) != usual:
            yield Fault(f"/spec/model/{name}", f"a {model.family} has no experts", "leave it out, or set family to moe")

    return check, (_FAMILY, f"/spec/model/{name}")


def check_no_experts(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """Experts to spread belong to a mixture of experts."""
    if model.family != "moe" and layout.ep > 1:
        yield Fault(_EP, f"a {model.family} has no experts to spread", "set ep to 1, or family to moe")


def check_chosen_experts(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """A token chooses among those there are."""
    if model.family == "moe" and model.experts_per_token > model.experts:
        yield Fault(
            _PER_TOKEN,
            f"experts_per_token = {model.experts_per_token} of experts = {model.experts}",
            f"set it to {model.experts} or less",
        )


def check_spread_experts(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """They are spread evenly."""
    if model.family == "moe" and model.experts % layout.ep:
        yield Fault(
            _EP,
            f"experts = {model.experts} is not divisible by ep = {layout.ep}",
            f"choose ep so that it divides {model.experts}",
        )


def check_expert_ranks(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """Over a replica's context and data-parallel ranks."""
    inner = layout.replica_dp * layout.cp
    if model.family == "moe" and inner % layout.ep:
        yield Fault(
            _EP,
            f"ep = {layout.ep} does not divide replica_dp x cp = {inner}: experts are spread over a replica's"
            " context and data-parallel ranks",
            f"set replica_dp to a multiple of {layout.ep}, or ep to a divisor of {inner}",
        )


def check_context_parallel(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """Each rank holds two pieces of a sequence, one from either end, all of them equal."""
    pieces = 2 * layout.cp
    if layout.cp > 1 and model.sequence_length % pieces:
        yield Fault(
            _CP,
            f"sequence_length = {model.sequence_length} cannot be cut into 2 x cp = {pieces} equal pieces",
            f"make sequence_length a multiple of {pieces}, or change cp",
        )


def check_distributed_optimizer(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """It shares the optimizer's state out among the data-parallel ranks of a replica."""
    if layout.distributed_optimizer and layout.replica_dp * layout.cp == 1:
        yield Fault(
            _DISTRIBUTED,
            "a replica has one data-parallel rank: nobody to share the optimizer's state with (replicas each hold all"
            " of it, so that a lost one is rebuilt from the others)",
            "set replica_dp to 2 or more, or leave it out (false)",
        )


def check_sequence_parallel(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """It splits what tensor parallelism leaves whole, along the sequence."""
    if layout.sequence_parallel and layout.tp == 1:
        yield Fault(_SEQUENCE, "tp = 1 leaves nothing to split along the sequence", "leave it out (false), or raise tp")


def check_sequence_of_experts(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """A mixture of experts under tensor parallelism needs it."""
    if model.family == "moe" and layout.tp > 1 and not layout.sequence_parallel:
        yield Fault(
            _SEQUENCE,
            f"Megatron-core trains a mixture of experts with tp = {layout.tp} only with sequence parallelism",
            "set sequence_parallel to true, or tp to 1",
        )


def check_sequence_pieces(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """The pieces are equally long."""
    if layout.sequence_parallel and model.sequence_length % (layout.tp * layout.cp):
        by = "tp x cp" if layout.cp > 1 else "tp"
        yield Fault(
            _SEQUENCE,
            f"sequence_length = {model.sequence_length} is not divisible by {by} = {layout.tp * layout.cp}",
            f"make sequence_length a multiple of {layout.tp * layout.cp}",
        )


def check_sequence_of_bert(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """Not every model can be split so."""
    if layout.sequence_parallel and model.family == "bert":
        yield Fault(
            _SEQUENCE,
            "Megatron-core's BERT refuses it without Apex: the norm before its output layer cannot be split",
            "leave it out (false), or bring your own entrypoint",
        )


def check_rerun(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """All ranks of a replica take the same batches again, of one feed each."""
    if training.numerics.rerun != "disabled" and (layout.vp > 1 or layout.replica_dp > 1):
        yield Fault(
            f"{_NUMERICS}/rerun",
            "all ranks of a replica must compute again together, which they do with vp = 1 and replica_dp = 1",
            "leave it out, or set both to 1",
        )


def check_feed_forward(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """Every tensor-parallel rank has equally many rows of the feed-forward layer."""
    if model.ffn_hidden is not None and model.ffn_hidden % layout.tp:
        yield Fault(
            "/spec/model/ffn_hidden",
            f"ffn_hidden = {model.ffn_hidden} is not divisible by tp = {layout.tp}",
            f"make ffn_hidden a multiple of {layout.tp}, or change tp",
        )


def check_inner_batch(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
    """Each data-parallel rank of a replica needs work."""
    if training.global_batch % training.micro_batch:
        return
    count = training.global_batch // training.micro_batch
    if count < layout.replica_dp:
        yield Fault(
            _INNER,
            f"{count} micro-batches a step cannot keep {layout.replica_dp} data-parallel ranks busy",
            f"raise global_batch to at least {layout.replica_dp * training.micro_batch}, or lower replica_dp",
        )


def _divisible(pointer: str, by_pointer: str) -> tuple[Rule, tuple[str, ...]]:
    """The rule that one field is a multiple of another (None: nothing to divide)."""

    def check(layout: Parallelism, model: Model, training: Training) -> Iterator[Fault]:
        sections: dict[str, Parallelism | Model | Training] = {
            "parallelism": layout,
            "model": model,
            "training": training,
        }
        value, by = _at(sections, pointer), _at(sections, by_pointer)
        name, by_name = pointer.rpartition("/")[2], by_pointer.rpartition("/")[2]
        if value is not None and by is not None and value % by:
            yield Fault(
                pointer,
                f"{name} = {value} is not divisible by {by_name} = {by}",
                f"make {name} a multiple of {by}, or change {by_name}",
            )

    return check, (pointer, by_pointer)


def _at(sections: dict[str, Parallelism | Model | Training], pointer: str) -> int | None:
    """The whole number (or None) at /spec/<section>/<field>."""
    _, _, section, field = pointer.split("/")
    value = getattr(sections[section], field)
    assert value is None or isinstance(value, int)
    return value


SHAPE_RULES: Rules = (
    # Every shard of the model has the same shape.
    _divisible("/spec/model/hidden", "/spec/model/heads"),
    _divisible("/spec/model/heads", _TP),
    _divisible("/spec/model/heads", "/spec/model/kv_heads"),
    _divisible("/spec/model/kv_heads", _TP),
    _divisible("/spec/model/vocab_size", _TP),
    _divisible("/spec/model/layers", _PP),
    _divisible("/spec/training/global_batch", "/spec/training/micro_batch"),
    (check_feed_forward, ("/spec/model/ffn_hidden", _TP)),
    (check_virtual_stages, (_VP, _PP, _LAYERS)),
    _only_of_experts("experts"),
    _only_of_experts("experts_per_token"),
    (check_no_experts, (_FAMILY, _EP)),
    (check_chosen_experts, (_FAMILY, _EXPERTS, _PER_TOKEN)),
    (check_spread_experts, (_FAMILY, _EXPERTS, _EP)),
    (check_expert_ranks, (_FAMILY, _EP, _CP, _INNER)),
    (check_inner_batch, (_INNER, "/spec/training/global_batch", "/spec/training/micro_batch")),
)
BUILT_IN_RULES: Rules = (
    (check_context_parallel, (_CP, _LENGTH)),
    (check_distributed_optimizer, (_DISTRIBUTED, _INNER, _CP)),
    (check_sequence_parallel, (_SEQUENCE, _TP)),
    (check_sequence_of_experts, (_SEQUENCE, _TP, _FAMILY)),
    (check_sequence_pieces, (_SEQUENCE, _TP, _CP, _LENGTH)),
    (check_sequence_of_bert, (_SEQUENCE, _FAMILY)),
    (check_rerun, (f"{_NUMERICS}/rerun", _VP, _INNER)),
)


def layout_faults(layout: Parallelism, model: Model, training: Training, *, built_in: bool) -> Iterator[Fault]:
    """All faults of a model in a layout; `built_in`: the built-in trainer is to run it."""
    for rule, _reads in (*SHAPE_RULES, *(BUILT_IN_RULES if built_in else ())):
        yield from rule(layout, model, training)
