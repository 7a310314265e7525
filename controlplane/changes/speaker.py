"""Who speaks of a rank, and which rank that is."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controlplane.changes.kinds import Count, RankKey
from controlplane.changes.rows import Rank, Rows
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.launch import RankRef


@dataclass(frozen=True, slots=True)
class Speaker:
    """The node that speaks, and when what it tells of happened, by the server's clock."""

    node_id: str
    node: str
    at_s: float


def rank_of(rows: Rows, ref: RankRef, speaker: Speaker) -> Rank:
    """Proved to be this node's. Raises IdentityMismatch."""
    rank = rows.rank(ref, speaker.node_id)
    if rank is None:
        raise IdentityMismatch(f"{ref} was never placed on this node")
    return rank


def moment(at_s: float) -> str:
    """As the API writes one."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def key_of(rank: Rank) -> RankKey:
    """Its name."""
    return RankKey(rank.attempt, rank.replica, rank.incarnation, rank.rank)


def place_of(rows: Rows, rank: Rank) -> dict[str, Any]:
    """Where a finding about the rank is."""
    return {
        "job_id": rows.job_id,
        "node_id": rank.node_id,
        "replica": rank.replica,
        "incarnation": rank.incarnation,
        "rank": rank.rank,
        "device_index": rank.device_index,
    }


def stale(rank: Rank, what: str, speaker: Speaker) -> Count:
    """It comes from a life that is out."""
    detail = f"rank {rank.rank} of replica {rank.replica}, incarnation {rank.incarnation}, is out"
    return Count(speaker.node, f"stale_{what}", detail)
