"""Replicas of an attempt as `changes.assembly` takes them: what `recovery.load` reads of a job's ranks.

Jobs have a hundred thousand ranks. Where a life's ranks are is written once, at its start, and so read once by each
process (`runtime.lasting`); how many of them joined, ended and left their devices the database counts at each
load. No query's text grows with a job. Reads alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from django.db.models import Count, Q, QuerySet

from controlplane.changes.assembly.replicas import Readings, reading_key
from controlplane.changes.assembly.rows import Incarnation, Ranks, Reading, Slot
from controlplane.jobs.models import Attempt, Rank, Replica
from controlplane.jobs.selectors import device_index
from controlplane.policy.snapshot import Placement
from controlplane.protocol.states import RankState, ReplicaState
from controlplane.runtime.lasting import Lasting
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOST, NUMBER, Prepared, Several

REPLICAS_A_QUERY = MOST
MAX_RANKS_KEPT = 500_000
_places: Lasting[tuple[Placement, ...]] = Lasting(MAX_RANKS_KEPT)


_REPLICAS = Prepared(
    lambda attempt: Replica.objects.filter(attempt=attempt).order_by("index", "-incarnation"), attempt=NUMBER
)


def slots_of(attempt: Attempt | None, readings: Mapping[str, Reading]) -> list[Slot]:
    """By index."""
    if attempt is None:
        return []
    slots: dict[int, list[Replica]] = defaultdict(list)
    for row in _REPLICAS(attempt=attempt.pk):
        slots[row.index].append(row)
    rows = [lives[0] for _, lives in sorted(slots.items())]
    counts = _counts(rows)
    places = _placements(attempt, rows, counts)
    released = _released(counts)
    return [
        Slot(
            lives=[_incarnation(each) for each in slots[row.index]],
            ranks=counts[row.pk],
            placements=places[row.pk],
            readings=_readings(row, places[row.pk], readings),
            released=released.get(row.pk, ()),
        )
        for row in rows
    ]


def ranks_of(lives: QuerySet[Replica]) -> QuerySet[Rank]:
    """Those of these replicas. Few are named: a look into one index, where a join of all their ranks takes twice as
    long."""
    named = list(lives.order_by().values_list("pk", flat=True)[: REPLICAS_A_QUERY + 1])
    few = len(named) <= REPLICAS_A_QUERY
    return Rank.objects.filter(replica_id__in=named) if few else Rank.objects.filter(replica__in=lives.order_by())


def _incarnation(row: Replica) -> Incarnation:
    return Incarnation(
        index=row.index,
        incarnation=row.incarnation,
        state=ReplicaState(row.state),
        state_since_s=row.state_since.timestamp(),
        contributing=row.contributing,
        contributed=row.contributed,
        role=(row.caught_up or {}).get("role", ""),
        committed_step=row.committed_step,
        times_out=row.times_out,
        out_s=row.out_at.timestamp() if row.out_at else None,
        asked_out=row.ordered_out,
        asked_s=row.ordered_at.timestamp() if row.ordered_at else None,
        refused=row.refused,
        relieved=row.relieved,
    )


def _readings(row: Replica, placements: Sequence[Placement], readings: Mapping[str, Reading]) -> Readings:
    if not readings:
        return []
    prefix = reading_key(row.index, row.incarnation, None).removesuffix("None")
    return [readings.get(prefix + str(place.rank)) for place in placements]


def _counted(lives: object) -> QuerySet[Rank, tuple[int, ...]]:
    exited = Q(state=RankState.EXITED)
    asked = {
        "world_size": Count("pk"),
        "joined": Count("joined_at", filter=~exited),
        "exited": Count("pk", filter=exited),
        "released": Count("released_at"),
    }
    ranks = Rank.objects.filter(replica_id__in=lives).order_by().values_list("replica_id")
    return ranks.annotate(**asked).values_list("replica_id", *Ranks._fields)


_COUNTED = Prepared(_counted, lives=Several(NUMBER))


def _counts(rows: Iterable[Replica]) -> Mapping[int, Ranks]:
    """By replica row. They are named, so that the plan is a look into one index: told as "whose newer life
    does not exist", this read once outlasted PostgreSQL's limit of 15 s."""
    found = {row.pk: Ranks() for row in rows}
    for some in batched(found.copy(), REPLICAS_A_QUERY):
        for pk, *numbers in _COUNTED(lives=some):
            found[pk] = Ranks(*numbers)
    return found


def _left(lives: object) -> QuerySet[Rank, tuple[int, int]]:
    rows = Rank.objects.filter(replica_id__in=lives).exclude(released_at=None).order_by("rank")
    return rows.values_list("replica_id", "rank")


_LEFT = Prepared(_left, lives=Several(NUMBER))


def _released(counts: Mapping[int, Ranks]) -> Mapping[int, tuple[int, ...]]:
    """Ranks that hold no device any more, of lives of which others do."""
    partly = [pk for pk, ranks in counts.items() if 0 < ranks.released < ranks.world_size]
    found: dict[int, list[int]] = defaultdict(list)
    for some in batched(partly, REPLICAS_A_QUERY):
        for pk, rank in _LEFT(lives=some):
            found[pk].append(rank)
    return {pk: tuple(ranks) for pk, ranks in found.items()}


def _places_of(lives: object) -> QuerySet[Rank, tuple[int, int, str, int]]:
    rows = Rank.objects.filter(replica_id__in=lives).order_by("replica_id", "rank")
    return rows.values_list("replica_id", "rank", "node_id", device_index())


_PLACES = Prepared(_places_of, lives=Several(NUMBER))


def _placements(
    attempt: Attempt, rows: Iterable[Replica], counts: Mapping[int, Ranks]
) -> Mapping[int, tuple[Placement, ...]]:
    """Where the ranks of these lives are, in order, by replica row."""
    slot = (attempt.job_id, attempt.number)
    keys = {row.pk: (*slot, row.index, row.incarnation, row.created_at, counts[row.pk].world_size) for row in rows}
    found = {pk: kept for pk, key in keys.items() if (kept := _places.get(key)) is not None}
    read: dict[int, list[Placement]] = defaultdict(list)
    for some in batched((pk for pk in keys if pk not in found), REPLICAS_A_QUERY):
        for pk, rank, node_id, index in _PLACES(lives=some):
            read[pk].append(Placement(rank=rank, node_id=node_id, device_index=index))
        for pk in some:
            found[pk] = tuple(read.pop(pk, ()))
            _places.keep(keys[pk], found[pk], size=len(found[pk]))
    return found
