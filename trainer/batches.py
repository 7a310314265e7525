"""The micro-batches of one rank as tensors, and who of a replica computes which.

Inside a replica its data-parallel ranks deal the replica's micro-batches out round-robin.
Two schedules need more than a rank has got: all expert-parallel ranks must pass each MoE
layer equally often, and the interleaved schedule takes multiples of the pipeline's length.
They get *fillers*: tokens whose loss weighs nothing, so that no gradient comes of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Parallelism
from trainer.errors import MembershipViolated
from trainer.masking import mask_sample, predicted_count


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: b samples of s tokens, [b, s] each. Of a context-parallel rank (see
    `trainer.context.local_part`) all but `attention_mask` hold its s / cp tokens.

    `loss_mask` is 1 where the loss counts. `attention_mask` (1 where a token is, 0 where
    padding is) makes the model look both ways; None: causal. A `filler` weighs nothing.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    loss_mask: torch.Tensor
    attention_mask: torch.Tensor | None = None
    filler: bool = False


def inner_share(micro_batches: Sequence[int], index: int, size: int) -> tuple[int, ...]:
    """The part of a replica's `micro_batches` of its data-parallel rank `index` of `size`."""
    return tuple(sorted(micro_batches)[index::size])


def check_counts(counts: torch.Tensor, micro_batches: Sequence[int]) -> None:
    """`counts`: [cp, n], how often each of n micro-batches was computed, for each part of the
    sequences alone. Raises MembershipViolated unless each part has the replica's `micro_batches`
    once, and no other."""
    wanted = torch.bincount(torch.tensor(micro_batches, dtype=torch.long), minlength=counts.size(1)).to(counts)
    for part, found in enumerate(counts):
        if not torch.equal(found, wanted):
            held = [number for number, count in enumerate(found.tolist()) for _ in range(round(count))]
            of = f" of part {part} of the sequences" if len(counts) > 1 else ""
            raise MembershipViolated(f"the ranks of the replica computed {held}{of}, not {list(micro_batches)}")


def filler_count(micro_batches: Sequence[int], mine: int, layout: Parallelism) -> int:
    """Fillers that a data-parallel rank with `mine` of a replica's `micro_batches` runs as well."""
    calls = -(-len(micro_batches) // layout.replica_dp) if layout.ep > 1 else mine
    if layout.vp > 1:
        calls = -(-calls // layout.pp) * layout.pp
    return calls - mine


def counted_tokens(config: TrainerConfig) -> int:
    """Tokens of one micro-batch whose loss counts; the same for each."""
    length = config.model.sequence_length
    return config.training.micro_batch * (predicted_count(length) if config.model.family == "bert" else length)


def make_batch(
    config: TrainerConfig,
    samples: Sequence[NDArray[np.int64]],
    numbers: Sequence[int],
    device: torch.device,
    *,
    filler: bool = False,
) -> Batch:
    """`samples`: b arrays of [s + 1] tokens, with their global `numbers`."""
    text = np.stack(samples)
    if config.model.family == "bert":
        return _masked_batch(config, text[:, :-1], numbers, device, filler=filler)
    return Batch(
        tokens=torch.from_numpy(text[:, :-1].copy()).to(device),
        labels=torch.from_numpy(text[:, 1:].copy()).to(device),
        position_ids=_positions(config, device),
        loss_mask=torch.full((len(samples), config.model.sequence_length), 0.0 if filler else 1.0, device=device),
        filler=filler,
    )


def _masked_batch(
    config: TrainerConfig, text: NDArray[np.int64], numbers: Sequence[int], device: torch.device, *, filler: bool
) -> Batch:
    seed, vocab_size = config.training.seed, config.model.vocab_size
    masked = [
        mask_sample(row, number=number, seed=seed, vocab_size=vocab_size)
        for row, number in zip(text, numbers, strict=True)
    ]
    weight = 0.0 if filler else 1.0
    return Batch(
        tokens=torch.from_numpy(np.stack([sample.tokens for sample in masked])).to(device),
        labels=torch.from_numpy(np.stack([sample.labels for sample in masked])).to(device),
        position_ids=_positions(config, device),
        loss_mask=torch.from_numpy(np.stack([sample.predicted for sample in masked])).to(device) * weight,
        attention_mask=torch.from_numpy(np.stack([sample.present for sample in masked])).to(device),
        filler=filler,
    )


def _positions(config: TrainerConfig, device: torch.device) -> torch.Tensor:
    positions = torch.arange(config.model.sequence_length).unsqueeze(0)
    return positions.expand(config.training.micro_batch, -1).contiguous().to(device)
