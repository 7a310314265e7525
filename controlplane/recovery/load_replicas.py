"""Replicas of an attempt as the policy sees them: what `recovery.load` reads of a job's ranks.

Jobs have a hundred thousand ranks. Where a life's ranks are is written once, at its start, and so read once by each
process (`runtime.lasting`); how many of them joined, ended and left their devices the database counts at each
load. No query's text grows with a job. Reads alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from django.db.models import Count, Q

from controlplane.jobs.models import Attempt, Rank, Replica
from controlplane.jobs.selectors import device_index
from controlplane.policy import snapshot as facts
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.states import WAITING_PHASES, Phase, RankState, ReplicaState
from controlplane.recovery import health_gate
from controlplane.recovery.models import ViewRow
from controlplane.runtime.lasting import Lasting
from controlplane.runtime.pieces import batched

REPLICAS_A_QUERY = 500
WAITING = frozenset(str(phase) for phase in WAITING_PHASES)
MAX_RANKS_KEPT = 500_000
_places: Lasting[tuple[facts.Placement, ...]] = Lasting(MAX_RANKS_KEPT)
Live = dict[str, Any] | None
"""The sentinel's reading of one rank; None: there is none."""


def replica_facts(
    attempt: Attempt | None, view: ViewRow | None, live_ranks: dict[str, Any] | None
) -> tuple[facts.ReplicaFact, ...]:
    """The newest incarnation of each slot, by index."""
    if attempt is None:
        return ()
    members = {(m["replica"], m["incarnation"]) for m in view.view["members"]} if view else set()
    slots: dict[int, list[Replica]] = defaultdict(list)
    for row in attempt.replica_rows.order_by("index", "-incarnation"):
        slots[row.index].append(row)
    rows = [lives[0] for _, lives in sorted(slots.items())]
    counts = _counts(rows)
    places = _placements(attempt, rows, counts)
    return tuple(
        _replica_fact(row, places[row.pk], counts[row.pk], members, live_ranks, slots[row.index]) for row in rows
    )


class _Counts(NamedTuple):
    """Of a life's ranks: how many there are, are up, are gone, and hold no device any more."""

    world_size: int = 0
    joined: int = 0
    exited: int = 0
    released: int = 0


def _counts(rows: Iterable[Replica]) -> Mapping[int, _Counts]:
    """By replica row. They are named, so that the plan is a look into one index: told as "whose newer life
    does not exist", this read once outlasted PostgreSQL's limit of 15 s."""
    exited = Q(state=RankState.EXITED)
    asked = {
        "world_size": Count("pk"),
        "joined": Count("joined_at", filter=~exited),
        "exited": Count("pk", filter=exited),
        "released": Count("released_at"),
    }
    found = {row.pk: _Counts() for row in rows}
    for some in batched(found.copy(), REPLICAS_A_QUERY):
        ranks = Rank.objects.filter(replica_id__in=some).order_by().values_list("replica_id")
        for pk, *numbers in ranks.annotate(**asked).values_list("replica_id", *_Counts._fields):
            found[pk] = _Counts(*numbers)
    return found


def _placements(
    attempt: Attempt, rows: Iterable[Replica], counts: Mapping[int, _Counts]
) -> Mapping[int, tuple[facts.Placement, ...]]:
    """Where the ranks of these lives are, in order, by replica row."""
    slot = (attempt.job_id, attempt.number)
    keys = {row.pk: (*slot, row.index, row.incarnation, row.created_at, counts[row.pk].world_size) for row in rows}
    found = {pk: kept for pk, key in keys.items() if (kept := _places.get(key)) is not None}
    read: dict[int, list[facts.Placement]] = defaultdict(list)
    ranks = Rank.objects.order_by("replica_id", "rank")
    for some in batched((pk for pk in keys if pk not in found), REPLICAS_A_QUERY):
        columns = ranks.filter(replica_id__in=some).values_list("replica_id", "rank", "node_id", device_index())
        for pk, rank, node_id, index in columns:
            read[pk].append(facts.Placement(rank=rank, node_id=node_id, device_index=index))
        for pk in some:
            found[pk] = tuple(read.pop(pk, ()))
            _places.keep(keys[pk], found[pk], size=len(found[pk]))
    return found


def _failed_starts(lives: list[Replica]) -> tuple[int, int]:
    """(incarnations in a row, newest first, that ended before they ever contributed, how many of
    them a node refused); what a person ordered out says nothing about its start."""
    young = takewhile(lambda life: not life.contributed, lives)
    failed = [life for life in young if life.state == ReplicaState.EVICTED and not life.ordered_out]
    return len(failed), sum(life.refused for life in failed)


def _replica_fact(
    row: Replica,
    placements: tuple[facts.Placement, ...],
    counts: _Counts,
    members: set[tuple[int, int]],
    live_ranks: dict[str, Any] | None,
    lives: list[Replica],
) -> facts.ReplicaFact:
    failed, refused = _failed_starts(lives)
    seen = _seen(row, placements, live_ranks)
    return facts.ReplicaFact(
        index=row.index,
        incarnation=row.incarnation,
        state=ReplicaState(row.state),
        state_since_s=row.state_since.timestamp(),
        world_size=counts.world_size,
        placements=placements,
        joined_ranks=counts.joined,
        exited_ranks=counts.exited,
        in_view=(row.index, row.incarnation) in members,
        contributing=row.contributing,
        standby=not row.contributing and (row.caught_up or {}).get("role") == MemberRole.STANDBY,
        committed_step=row.committed_step,
        waiting=_waits(seen),
        saving=_saves(seen),
        silent_s=health_gate.silence_of_ranks(seen),
        working_since_s=health_gate.working_since_s(seen),
        times_out=row.times_out,
        out_s=row.out_at.timestamp() if row.out_at else None,
        stopped=counts.released == counts.world_size,
        failed_starts=failed,
        ordered_out=row.ordered_out,
        ordered_s=row.ordered_at.timestamp() if row.ordered_at else None,
        refused=row.refused,
        refused_starts=refused,
        relieved=row.relieved,
    )


def _seen(row: Replica, placements: tuple[facts.Placement, ...], live_ranks: dict[str, Any] | None) -> list[Live]:
    """What the sentinel reads of each of its ranks; [] where it reads nothing of the job."""
    if not live_ranks:
        return []
    prefix = f"{row.index}.{row.incarnation}."
    return [live_ranks.get(prefix + str(place.rank)) for place in placements]


def _waits(seen: list[Live]) -> bool:
    """Every rank sits in a phase that waits for others. A rank nobody hears waits for
    nobody, as far as we know."""
    return bool(seen) and all(
        live is not None and live["phase"] in WAITING and live["silent_s"] < health_gate.FRESH_S for live in seen
    )


def _saves(seen: list[Live]) -> bool:
    """A rank that is heard of sits in a save."""
    return any(live and live["phase"] == Phase.SAVING and live["silent_s"] < health_gate.FRESH_S for live in seen)
