"""Which data-parallel rank keeps which part of a parameter's optimizer state. Pure.

Megatron's distributed optimizer lays the parameters out in buckets and gives each rank one
of as many equal parts of a bucket, wherever the parameters begin and end.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [first, stop) of a flattened parameter, kept by data-parallel rank `rank`."""

    rank: int
    first: int
    stop: int


def cut(first: int, stop: int, *, shard: int) -> tuple[Piece, ...]:
    """The pieces of a parameter that takes elements [first, stop) of its bucket, of which
    rank r keeps [r x shard, (r + 1) x shard)."""
    found = []
    for rank in range(first // shard, -(-stop // shard)):
        begin, end = max(first, rank * shard), min(stop, (rank + 1) * shard)
        found.append(Piece(rank, begin - first, end - first))
    return tuple(found)


def owner_of(pieces: Sequence[Piece]) -> int:
    """The rank that keeps most of a parameter, the first of equals."""
    return max(pieces, key=lambda piece: (piece.stop - piece.first, -piece.rank)).rank
