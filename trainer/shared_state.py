"""Adam's state where the data-parallel ranks of a replica share it out.

Megatron's distributed optimizer lays a rank's parameters out in buckets and gives each
data-parallel rank one contiguous part of every bucket. A parameter is therefore kept by one
rank, or in pieces by several where it lies across a boundary. A checkpoint holds whole
tensors, so that any layout can load it: `gather` hands a parameter's whole state to its
*owner*, the rank that keeps most of it, and `scatter` brings it back to those who keep it.
Only the pieces of parameters that lie across a boundary travel, between two ranks at a time
and in one order everywhere; the rest is handed out by reference.

Megatron saves this state itself, but its load asserts on what only Transformer Engine's or
Apex's Adam has (megatron-core 0.16.1).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from trainer.pieces import Piece, cut, owner_of

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "fp32_param"
"""The fp32 original of a parameter that is kept in bf16."""

State = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """One parameter of the model, as rank `rank` of the data-parallel `group` sees it. `mine`:
    its piece of the state, flat, by reference; None where it keeps none of it."""

    parameter: torch.nn.Parameter
    pieces: tuple[Piece, ...]
    mine: State | None
    rank: int
    group: Any

    @property
    def owner(self) -> int:
        """Who has the whole of it in a checkpoint."""
        return owner_of(self.pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """What the state consists of; the same on every rank of the group."""
        return MOMENTS if self.parameter.dtype is torch.float32 else (*MOMENTS, MASTER)


def is_shared(optimizer: MegatronOptimizer) -> bool:
    """Each data-parallel rank keeps a part of the state only."""
    return any(True for _ in _parts(optimizer))


def own_parts(buffer: Any) -> list[torch.Tensor]:
    """What this rank steps of a gradient buffer of Megatron's, by reference: all of it, or its
    part of each bucket."""
    if not buffer.ddp_config.use_distributed_optimizer:
        return [buffer.grad_data]
    rank, size = dist.get_rank(buffer.data_parallel_group), buffer.data_parallel_world_size
    return [bucket.grad_data.view(size, -1)[rank] for bucket in buffer.buckets]


@torch.no_grad()
def gather(optimizer: MegatronOptimizer, *, empty: bool) -> dict[torch.nn.Parameter, State]:
    """The state of each parameter that this rank owns, in the parameter's shape, by reference
    where it keeps all of it. All data-parallel ranks call it together; with `empty` it only
    makes room, and is no collective. Raises RuntimeError when one of them is gone."""
    found: dict[torch.nn.Parameter, State] = {}
    for kept in _all_kept(optimizer):
        if kept.rank == kept.owner:
            shape = kept.parameter.shape
            found[kept.parameter] = {name: _whole(kept, name, empty=empty).view(shape) for name in kept.names}
        elif kept.mine is not None and not empty:
            for name in kept.names:
                dist.send(kept.mine[name], group=kept.group, group_dst=kept.owner)
    return found


@torch.no_grad()
def scatter(optimizer: MegatronOptimizer, owned: Mapping[torch.nn.Parameter, State]) -> None:
    """Take over the state that the owners have, of the parameters and shapes that `gather`
    gives. All data-parallel ranks call it together. Raises RuntimeError when one of them is gone."""
    for kept in _all_kept(optimizer):
        for name in kept.names:
            if kept.rank == kept.owner:
                _hand_out(kept, name, owned[kept.parameter][name].reshape(-1))
            elif kept.mine is not None:
                dist.recv(kept.mine[name], group=kept.group, group_src=kept.owner)


def _whole(kept: _Kept, name: str, *, empty: bool) -> torch.Tensor:
    """At the owner: [elements of the parameter]."""
    assert kept.mine is not None, "the owner keeps most of it"
    if len(kept.pieces) == 1:
        return kept.mine[name]
    flat = torch.empty(kept.parameter.numel(), dtype=kept.mine[name].dtype, device=kept.mine[name].device)
    for piece in () if empty else kept.pieces:
        part = flat[piece.first : piece.stop]
        if piece.rank == kept.owner:
            part.copy_(kept.mine[name])
        else:
            dist.recv(part, group=kept.group, group_src=piece.rank)
    return flat


def _hand_out(kept: _Kept, name: str, flat: torch.Tensor) -> None:
    """The owner gives each rank, itself included, its piece of [elements of the parameter]."""
    assert kept.mine is not None, "the owner keeps most of it"
    for piece in kept.pieces:
        part = flat[piece.first : piece.stop]
        if piece.rank == kept.owner:
            kept.mine[name].copy_(part)
        else:
            dist.send(part.to(kept.mine[name]), group=kept.group, group_dst=piece.rank)


def _parts(optimizer: MegatronOptimizer) -> Iterator[DistributedOptimizer]:
    """Megatron keeps one for the parameters that all have and one for the experts."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if isinstance(part, DistributedOptimizer) and not part.is_stub_optimizer:
            yield part


def _all_kept(optimizer: MegatronOptimizer) -> Iterator[_Kept]:
    """Every parameter, in an order that is the same on all ranks of a group."""
    for part in _parts(optimizer):
        group = part.data_parallel_group
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        mine = _own_pieces(part)
        for buffer in part.buffers:
            for parameter, (first, stop, number) in buffer.param_index_map.items():
                bucket = buffer.buckets[number]
                pieces = cut(first - bucket.offset, stop - bucket.offset, shard=bucket.grad_data.numel() // size)
                yield _Kept(parameter=parameter, pieces=pieces, mine=mine.get(parameter), rank=rank, group=group)


def _own_pieces(part: DistributedOptimizer) -> dict[torch.nn.Parameter, State]:
    """Of the parameters that this rank keeps something of: its flat piece of their state."""
    models = (*part.model_fp32_groups, *part.model_float16_groups)
    shards = (*part.shard_fp32_groups, *part.shard_fp32_from_float16_groups)
    found = {}
    for group, kept in zip(models, shards, strict=True):
        for parameter, main in zip(group, kept, strict=True):
            found[parameter] = {name: part.optimizer.state[main][name] for name in MOMENTS} | {MASTER: main.data}
    return found
