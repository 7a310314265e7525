"""All ranks of a job at once, as columns (`runtime.columns`) by their place in its layout, from a query for each
table however many ranks there are.

Shown are the newest attempt's slots, each by the newest incarnation that it has there, but for those whose place
another slot has taken: what `jobs.present` calls current. `heartbeat_age_s` and `step_s` are null where nobody has
said: before a rank's first heartbeat and its first window of timings, and after its end.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

import msgspec
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Rank, RankSpeed, Replica
from controlplane.jobs.numbers import NEWEST_ATTEMPT
from controlplane.jobs.selectors import device_index, live_ranks
from controlplane.protocol.spec import Parallelism, rank_coordinates, ranks_per_replica
from controlplane.protocol.states import RankState, ReplicaState
from controlplane.runtime.columns import worded
from controlplane.runtime.plain_rows import plain

SIZES = ("pp", "tp", "cp", "ep", "replica_dp")
"""Coordinates inside a replica; one of which the layout has but one has no column."""
PLACES = ("replica", "incarnation", "rank", "global_rank", *SIZES)
WORDS = frozenset({"state", "phase", "node_name"})
FIELDS = (*PLACES, "state", "phase", "step", "step_s", "heartbeat_age_s", "node_name", "device_index")
WORST = 10
DIGITS = 4
Json = dict[str, Any]
Place = tuple[int, int]
"""Replica and rank: the sequence of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One rank."""

    replica: int
    incarnation: int
    rank: int
    state: str
    node_name: str
    device_index: int
    phase: str | None
    step: int | None
    step_s: float | None
    heartbeat_age_s: float | None


class _Step(msgspec.Struct):
    median_s: float


class _Timings(msgspec.Struct):
    """Of a window of timings (`protocol.rank.TimingReport`) what is shown."""

    step: _Step


_timings = msgspec.json.Decoder(_Timings).decode


def mesh(job: Job, fields: Collection[str], *, after: Place | None = None, limit: int) -> Json:
    """The ranks behind `after`, at most `limit` of them; layout, replicas and worst are of the whole job. `last`: the
    place of the last one where more follow."""
    attempt = NEWEST_ATTEMPT.first(job=job.pk)
    if attempt is None:
        return _answer(None, [], [], fields, [], None)
    layout = msgspec.convert(attempt.layout, Parallelism)
    current = _current(attempt)
    replicas = list(current.order_by("index").values("index", "incarnation", "state", "contributing", "committed_step"))
    lines = _lines(job, current)
    behind = lines if after is None else [line for line in lines if (line.replica, line.rank) > after]
    shown = behind[:limit]
    last = (shown[-1].replica, shown[-1].rank) if len(behind) > limit else None
    sizes = {"dp": attempt.replicas, **{name: getattr(layout, name) for name in SIZES}}
    return _answer((attempt.number, layout, sizes), replicas, lines, fields, shown, last)


def _answer(
    of: tuple[int, Parallelism, Json] | None,
    replicas: list[Json],
    lines: list[Line],
    fields: Collection[str],
    shown: list[Line],
    last: Place | None,
) -> Json:
    number, layout, sizes = of or (None, Parallelism(), None)
    return {
        "attempt": number,
        "layout": sizes,
        "replicas": replicas,
        "ranks": len(lines),
        "rows": len(shown),
        "columns": _columns(shown, layout, fields),
        "slowest": _worst(lines, layout, lambda line: line.step_s),
        "most_silent": _worst(lines, layout, lambda line: line.heartbeat_age_s),
        "last": last,
    }


def _current(attempt: Attempt) -> QuerySet[Replica]:
    later = Replica.objects.filter(attempt=attempt, index=OuterRef("index"), incarnation__gt=OuterRef("incarnation"))
    current = Replica.objects.filter(~Exists(later), attempt=attempt)
    return current.exclude(~Q(relieved=""), state=ReplicaState.EVICTED)


def _lines(job: Job, current: QuerySet[Replica]) -> list[Line]:
    """By replica and rank."""
    ids = current.order_by().values("pk")
    name = Subquery(Node.objects.filter(pk=OuterRef("node_id")).values("name")[:1])
    rows = Rank.objects.filter(replica__in=ids).annotate(index_=device_index(), name_=name).order_by()
    found = plain(rows.values_list("pk", "replica__index", "replica__incarnation", "rank", "state", "name_", "index_"))
    speeds = RankSpeed.objects.filter(rank__replica__in=ids).order_by().values_list("rank_id", "told")
    step_s = {rank_id: round(_timings(told).step.median_s, DIGITS) for rank_id, told in plain(speeds)}
    live = live_ranks(job.id)
    lines = []
    for rank_id, replica, incarnation, rank, state, node_name, index in found:
        ended = state == RankState.EXITED
        said = {} if ended else live.get(f"{replica}.{incarnation}.{rank}") or {}
        lines.append(
            Line(
                replica=replica,
                incarnation=incarnation,
                rank=rank,
                state=state,
                node_name=node_name,
                device_index=index,
                phase=said.get("phase"),
                step=said.get("step"),
                step_s=None if ended else step_s.get(rank_id),
                heartbeat_age_s=said.get("silent_s"),
            )
        )
    return sorted(lines, key=lambda line: (line.replica, line.rank))


def _columns(lines: Sequence[Line], layout: Parallelism, fields: Collection[str]) -> Json:
    places = {rank: _places(layout, rank) for rank in {line.rank for line in lines}}
    columns: Json = {}
    for name in FIELDS:
        if name not in fields or (name in SIZES and getattr(layout, name) == 1):
            continue
        if name in SIZES:
            columns[name] = [places[line.rank][name] for line in lines]
        elif name == "global_rank":
            each = ranks_per_replica(layout)
            columns[name] = [line.replica * each + line.rank for line in lines]
        else:
            values = [getattr(line, name) for line in lines]
            columns[name] = worded(values) if name in WORDS else values
    return columns


def _places(layout: Parallelism, rank: int) -> Mapping[str, int]:
    place = rank_coordinates(layout, rank)
    return {name: getattr(place, name) for name in SIZES}


def _worst(lines: Sequence[Line], layout: Parallelism, of: Callable[[Line], float | None]) -> list[Json]:
    """The ten with the largest value, of those that have one; of equal ones the first by its place."""
    measured = [(-value, line.replica, line.rank, line) for line in lines if (value := of(line)) is not None]
    each = ranks_per_replica(layout)
    return [
        {
            "global_rank": line.replica * each + line.rank,
            **_places(layout, line.rank),
            **{name: getattr(line, name) for name in Line.__slots__},
        }
        for *_, line in nsmallest(WORST, measured, key=lambda one: one[:3])
    ]
