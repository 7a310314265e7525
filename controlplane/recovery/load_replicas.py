"""Replicas of an attempt as the policy sees them: what `recovery.load` reads of a job's ranks.

Jobs have a hundred thousand ranks: no query's text grows with them, and of a rank comes what a
decision asks for. Reads alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice, takewhile
from typing import Any, NamedTuple

from controlplane.jobs.models import Attempt, Rank, Replica
from controlplane.jobs.selectors import device_index
from controlplane.policy import snapshot as facts
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.states import WAITING_PHASES, Phase, RankState, ReplicaState
from controlplane.recovery import sight
from controlplane.recovery.models import ViewRow

REPLICAS_A_QUERY = 500
WAITING = frozenset(str(phase) for phase in WAITING_PHASES)


def replica_facts(
    attempt: Attempt | None, view: ViewRow | None, hot_ranks: dict[str, Any] | None
) -> tuple[facts.ReplicaFact, ...]:
    """The newest incarnation of each slot, by index."""
    if attempt is None:
        return ()
    members = {(m["replica"], m["incarnation"]) for m in view.view["members"]} if view else set()
    slots: dict[int, list[Replica]] = defaultdict(list)
    for row in attempt.replica_rows.order_by("index", "-incarnation"):
        slots[row.index].append(row)
    ranks = _placed(lives[0].pk for lives in slots.values())
    return tuple(
        _replica_fact(lives[0], ranks[lives[0].pk], members, hot_ranks, *_failed_starts(lives))
        for _, lives in sorted(slots.items())
    )


class _Placed(NamedTuple):
    """A rank's row, without what no decision asks for."""

    replica_id: int
    rank: int
    node_id: str
    device_index: int
    joined_at: datetime | None
    state: str
    released_at: datetime | None


def _placed(replicas: Iterable[int]) -> Mapping[int, list[_Placed]]:
    """Ranks of these replica rows, in order, by replica. They are named, so that the plan is a look into one
    index: told as "whose newer life does not exist", this read once outlasted PostgreSQL's limit of 15 s."""
    found: dict[int, list[_Placed]] = defaultdict(list)
    wanted = iter(sorted(replicas))
    rows = Rank.objects.annotate(device_index=device_index()).order_by("replica_id", "rank")
    while some := tuple(islice(wanted, REPLICAS_A_QUERY)):
        for values in rows.filter(replica_id__in=some).values_list(*_Placed._fields):
            found[values[0]].append(_Placed(*values))
    return found


def _failed_starts(lives: list[Replica]) -> tuple[int, int]:
    """(incarnations in a row, newest first, that ended before they ever contributed, how many of
    them a node refused); what a person ordered out says nothing about its start."""
    young = takewhile(lambda life: not life.contributed, lives)
    failed = [life for life in young if life.state == ReplicaState.EVICTED and not life.ordered_out]
    return len(failed), sum(life.refused for life in failed)


def _replica_fact(
    row: Replica,
    ranks: list[_Placed],
    members: set[tuple[int, int]],
    hot_ranks: dict[str, Any] | None,
    failed: int,
    refused: int,
) -> facts.ReplicaFact:
    return facts.ReplicaFact(
        index=row.index,
        incarnation=row.incarnation,
        state=ReplicaState(row.state),
        state_since_s=row.state_since.timestamp(),
        world_size=len(ranks),
        placements=tuple(
            facts.Placement(rank=rank.rank, node_id=rank.node_id, device_index=rank.device_index) for rank in ranks
        ),
        joined_ranks=sum(rank.joined_at is not None and rank.state != RankState.EXITED for rank in ranks),
        exited_ranks=sum(rank.state == RankState.EXITED for rank in ranks),
        in_view=(row.index, row.incarnation) in members,
        contributing=row.contributing,
        standby=not row.contributing and (row.caught_up or {}).get("role") == MemberRole.STANDBY,
        committed_step=row.committed_step,
        waiting=_waits(row, ranks, hot_ranks),
        saving=_saves(row, ranks, hot_ranks),
        silent_s=sight.silence_of_ranks(row.index, row.incarnation, len(ranks), hot_ranks),
        working_since_s=sight.working_since_s(row.index, row.incarnation, len(ranks), hot_ranks),
        times_out=row.times_out,
        out_s=row.out_at.timestamp() if row.out_at else None,
        stopped=all(rank.released_at is not None for rank in ranks),
        failed_starts=failed,
        ordered_out=row.ordered_out,
        ordered_s=row.ordered_at.timestamp() if row.ordered_at else None,
        refused=row.refused,
        refused_starts=refused,
        relieved=row.relieved,
    )


def _waits(row: Replica, ranks: list[_Placed], hot_ranks: dict[str, Any] | None) -> bool:
    """Every rank sits in a phase that waits for others. A rank nobody hears waits for
    nobody, as far as we know."""
    if not hot_ranks or not ranks:
        return False
    seen = [hot_ranks.get(f"{row.index}.{row.incarnation}.{rank.rank}") for rank in ranks]
    return all(live is not None and live["phase"] in WAITING and live["silent_s"] < sight.FRESH_S for live in seen)


def _saves(row: Replica, ranks: list[_Placed], hot_ranks: dict[str, Any] | None) -> bool:
    """A rank that is heard of sits in a save."""
    seen = [(hot_ranks or {}).get(f"{row.index}.{row.incarnation}.{rank.rank}") for rank in ranks]
    return any(live and live["phase"] == Phase.SAVING and live["silent_s"] < sight.FRESH_S for live in seen)
