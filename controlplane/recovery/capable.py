"""What may be done to the replicas and ranks of a job now: rows as facts for `policy.capabilities`.

Called before each order about one is carried out, and by the answers that show them with `capabilities`.
"""

from typing import Any

from django.db.models import Prefetch

from controlplane.changes.outbox import LIVE
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.jobs.numbers import spec_of
from controlplane.policy import capabilities
from controlplane.policy.capabilities import Acts, RankFacts, ReplicaFacts

EVERY_RANK = -1


def replica_acts(job: Job, replica: Replica) -> Acts:
    """Of the newest incarnation of a slot: what an order names."""
    return _replica(job, replica, placed=replica.ranks.filter(released_at=None).exists(), newest=True)


def rank_acts(job: Job, rank: Rank) -> Acts:
    """Of a rank of the newest incarnation of a slot."""
    return _rank(_Shared(job), rank, rank.replica, newest=True)


def with_acts(views: list[dict[str, Any]], job: Job) -> list[dict[str, Any]]:
    """The list of replicas (`jobs.selectors.replicas`), each with what may be done to it and to its ranks."""
    ranks = Prefetch("ranks", queryset=Rank.objects.defer("log_tail"))
    attempts, slots = {view["attempt"] for view in views}, {view["index"] for view in views}
    rows = Replica.objects.filter(attempt__job=job, attempt__number__in=attempts, index__in=slots)
    rows = rows.select_related("attempt")
    found = {(row.attempt.number, row.index, row.incarnation): row for row in rows.prefetch_related(ranks)}
    lives = Replica.objects.filter(attempt__job=job).values_list("attempt__number", "index", "incarnation")
    last, shared = _last(list(lives)), _Shared(job)
    for view in views:
        key = (view["attempt"], view["index"], view["incarnation"])
        row, newest = found[key], key in last
        by_number = {rank.rank: rank for rank in row.ranks.all()}
        placed = any(rank.released_at is None for rank in by_number.values())
        view["capabilities"] = _replica(job, row, placed=placed, newest=newest)
        for shown in view["ranks"]:
            shown["capabilities"] = _rank(shared, by_number[shown["rank"]], row, newest=newest)
    return views


def ranks_with_acts(views: list[dict[str, Any]], node_id: str) -> list[dict[str, Any]]:
    """What runs on a node (`jobs.selectors.ranks_on_node`), each with what may be done to it."""
    rows = Rank.objects.filter(node_id=node_id, released_at=None).select_related("replica__attempt__job")
    acts: dict[tuple[str, int, int, int], Acts] = {}
    for job in {row.replica.attempt.job_id: row.replica.attempt.job for row in rows}.values():
        lives = Replica.objects.filter(attempt__job=job).values_list("attempt__number", "index", "incarnation")
        last, shared = _last(list(lives)), _Shared(job)
        for row in rows:
            replica = row.replica
            if replica.attempt.job_id == job.pk:
                newest = (replica.attempt.number, replica.index, replica.incarnation) in last
                key = (job.pk, replica.index, replica.incarnation, row.rank)
                acts[key] = _rank(shared, row, replica, newest=newest)
    names = ("job_id", "replica", "incarnation", "rank")
    return [view | {"capabilities": acts.get(tuple(view[name] for name in names), {})} for view in views]


def _last(lives: list[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    """The newest life of each slot, of lives as attempt, index and incarnation."""
    last: dict[int, tuple[int, int, int]] = {}
    for number, index, incarnation in lives:
        last[index] = max(last.get(index, (0, index, -1)), (number, index, incarnation))
    return set(last.values())


def _replica(job: Job, row: Replica, *, placed: bool, newest: bool) -> Acts:
    facts = ReplicaFacts(
        index=row.index, state=row.state, job=job.name, job_state=job.state, placed=placed, newest=newest
    )
    return capabilities.replica(facts)


def _rank(shared: "_Shared", row: Rank, replica: Replica, *, newest: bool) -> Acts:
    asked = {(row.node_id, replica.index, row.rank), (row.node_id, replica.index, EVERY_RANK)}
    facts = RankFacts(
        rank=row.rank,
        index=replica.index,
        state=row.state,
        job=shared.name,
        released=row.released_at is not None,
        newest=newest,
        allow_faults=shared.allow_faults,
        looked_at=bool(asked & shared.looks),
    )
    return capabilities.rank(facts)


class _Shared:
    """What the ranks of a job have in common, read once. `looks` under way: node, replica and rank, or
    `EVERY_RANK` of it."""

    def __init__(self, job: Job) -> None:
        self.name = job.name
        self.allow_faults = spec_of(job).spec.resiliency.allow_faults
        rows = Command.objects.filter(job=job, kind="collect_stacks", state__in=LIVE)
        self.looks = {(row.node_id, row.body["replica"], row.body.get("rank", EVERY_RANK)) for row in rows}
