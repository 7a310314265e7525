"""Context parallelism: each sequence is cut over ranks, and attention alone looks at all of it.

A sequence is cut into 2 x cp equal pieces, and rank i holds pieces i and 2 x cp - 1 - i, as
everywhere in Megatron: one early and one late, so that under a causal mask every rank has
equally many pairs of a query and a key before it. Megatron-core leaves attention between
these ranks to Transformer Engine, and its local attention refuses it. `ContextAttention` is
that local attention over the keys and values of the whole sequence, gathered in each layer as
in the training of Llama 3 (arXiv 2407.21783, section 3.3). Backward, what all ranks found for
a key is summed where the key came from.
"""

import copy
import dataclasses
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.utils import get_batch_on_this_cp_rank

from trainer.batches import Batch

CUT = ("tokens", "labels", "position_ids", "loss_mask")
"""Fields of a batch that are cut along the sequence."""


def held_pieces(rank: int, size: int) -> tuple[int, int]:
    """Which of a sequence's 2 x `size` pieces context rank `rank` of `size` holds, in its order."""
    return rank, 2 * size - 1 - rank


def local_part(batch: Batch) -> Batch:
    """This rank's pieces of each sequence of `batch`; the attention mask stays whole."""
    parts = get_batch_on_this_cp_rank({name: getattr(batch, name) for name in CUT})
    return dataclasses.replace(batch, **parts)


class ContextAttention(DotProductAttention):
    """Attention of this rank's queries [s / cp, b, heads, d] to the keys of all ranks."""

    def __init__(self, config: TransformerConfig, *, pg_collection: Any, **named: Any) -> None:
        alone = copy.copy(config)
        alone.context_parallel_size = 1  # Else Megatron's own refuses.
        super().__init__(alone, pg_collection=pg_collection, **named)
        self._context = pg_collection.cp

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **named: Any
    ) -> torch.Tensor:
        """`key`, `value`: [s / cp, b, groups, d], this rank's. `attention_mask`: [b, 1, s / cp, s],
        true where nothing may be seen; None: causal. Returns [s / cp, b, heads x d]."""
        key, value = whole_sequence(key, value, self._context)
        if attention_mask is not None:
            return super().forward(query, key, value, attention_mask, **named)
        answers = []
        mine = held_pieces(self._context.rank(), self._context.size())
        for piece, queries in zip(mine, query.chunk(2), strict=True):
            length = queries.size(0)
            start, end = piece * length, (piece + 1) * length
            # Later keys are left out instead of masked: that is what makes the ranks equal.
            later = torch.ones(length, end, dtype=torch.bool, device=query.device).triu(start + 1)
            answers.append(super().forward(queries, key[:end], value[:end], later, **named))
        return torch.cat(answers)


def whole_sequence(key: torch.Tensor, value: torch.Tensor, group: Any) -> tuple[torch.Tensor, ...]:
    """Keys and values of all ranks of `group`, in the order of the sequence: from [s / cp, ...]
    each to [s, ...] each, by one collective. Backward is the sum over the ranks."""
    gathered = tensor_parallel.gather_from_sequence_parallel_region(torch.stack([key, value], dim=1), group=group)
    early, late = gathered.unflatten(0, (group.size(), 2, -1)).unbind(1)
    return torch.cat([early, late.flip(0)]).flatten(0, 1).unbind(1)


class ContextBert(BertModel):
    """BERT of which each rank holds its pieces of a sequence. It is given those tokens, and
    which tokens of the whole sequence are there."""

    def _sanity_check_attention_and_get_attn_mask_dimension(self) -> str:
        """Megatron asks which attention it is, and knows its own only."""
        return "b1ss"

    def bert_extended_attention_mask(self, attention_mask: torch.Tensor) -> torch.Tensor:
        """`attention_mask`: [b, s], 1 where a token is. Returns [b, 1, s / cp, s]."""
        mine = _mine(attention_mask)
        return (mine.unsqueeze(2) * attention_mask.unsqueeze(1)).unsqueeze(1) < 1

    def bert_position_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """`token_ids`: [b, s / cp]. Returns their places in the sequence, [b, s / cp]."""
        size = parallel_state.get_context_parallel_world_size()
        positions = torch.arange(token_ids.size(1) * size, device=token_ids.device)
        return _mine(positions.unsqueeze(0)).expand_as(token_ids)


def _mine(whole: torch.Tensor) -> torch.Tensor:
    """This rank's pieces of [b, s]."""
    part: torch.Tensor = get_batch_on_this_cp_rank({"": whole})[""]
    return part
