"""Where each rank of a world stands: data, tensor and pipeline coordinates. Pure.

The order is Megatron's own ("tp-cp-ep-dp-pp": the tensor coordinate changes fastest, the
pipeline coordinate slowest). All ranks with one data coordinate are one replica.
"""

import msgspec


class MeshRank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank of the world and its coordinates."""

    rank: int
    dp: int
    tp: int
    pp: int


class Mesh(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes, each at least 1: `dp` replicas of `tp` x `pp` ranks."""

    dp: int
    tp: int = 1
    pp: int = 1

    @property
    def size(self) -> int:
        """Ranks of the world."""
        return self.dp * self.tp * self.pp

    @property
    def replica_size(self) -> int:
        """Ranks of one replica."""
        return self.tp * self.pp

    def at(self, rank: int) -> MeshRank:
        """Coordinates of `rank`."""
        assert 0 <= rank < self.size, f"rank {rank} of {self.size}"
        tp = rank % self.tp
        dp = rank // self.tp % self.dp
        return MeshRank(rank, dp, tp, rank // (self.tp * self.dp))

    def rank_of(self, *, dp: int, tp: int, pp: int) -> int:
        """The inverse of `at`."""
        return tp + self.tp * (dp + self.dp * pp)

    def ranks(self) -> tuple[MeshRank, ...]:
        """All of them, by rank."""
        return tuple(self.at(rank) for rank in range(self.size))

    def replica(self, dp: int) -> tuple[int, ...]:
        """Ranks of one replica, ascending."""
        return tuple(place.rank for place in self.ranks() if place.dp == dp)

    def speakers(self) -> tuple[int, ...]:
        """The rank that answers for each replica, by data coordinate: tp 0 of the last
        pipeline stage, where logits, values and losses are."""
        return tuple(self.rank_of(dp=dp, tp=0, pp=self.pp - 1) for dp in range(self.dp))
