"""What running jobs would lose if they were preempted now, and who is asked to yield: rows for `policy.queue.preempt`.

A few queries for all jobs together, grouped by job. Reads alone.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, F, Max, Min, Q, Window
from django.db.models.functions import RowNumber

from controlplane.changes.assembly.measured import RECENT
from controlplane.changes.assembly.queue import HOUR_S, Asks, Piece, Trained, stake_of
from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Attempt, Replica
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, LOCAL_KIND
from controlplane.policy.checkpoints import TRUSTED
from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue.rows import Stake
from controlplane.protocol.states import LIVE_REQUEST, AttemptState, ReplicaState, RequestKind, RequestState
from controlplane.recovery.models import LIVE, Request, ViewRow
from controlplane.runtime.clock import ago

TRAINS = (ReplicaState.ACTIVE, ReplicaState.SPARE)
CAME_TO_IT = [str(state) for state in (*LIVE_REQUEST, RequestState.DONE)]


def yielding() -> Mapping[str, str]:
    """Of each job that is asked to yield all its devices the id of the job that needs them, "" where a person asks."""
    rows = _asked().filter(LIVE, withdrawn_by="", gives=[])
    return {job_id: urgent or "" for job_id, urgent in rows.values_list("job_id", "urgent_id") if job_id}


def giving() -> Mapping[str, tuple[str, frozenset[tuple[int, int]]]]:
    """Of each job that gives replicas: (the job that needs them, index and incarnation of each)."""
    rows = _asked().filter(LIVE, withdrawn_by="").exclude(gives=[]).order_by("id")
    found: dict[str, tuple[str, frozenset[tuple[int, int]]]] = {}
    for job_id, urgent, lives in rows.values_list("job_id", "urgent_id", "gives"):
        before = found.get(job_id, ("", frozenset()))[1]
        found[job_id] = (urgent or "", before | {(index, incarnation) for index, incarnation in lives})
    return found


def pieces_of(held: Iterable[tuple[str, int, int]], job_ids: Collection[str]) -> Mapping[str, list[Piece]]:
    """The replicas of these jobs. `held`: (node, key of the replica's row, devices)."""
    rows = Replica.objects.filter(attempt__job__in=list(job_ids)).exclude(attempt__state=AttemptState.ENDED)
    columns = ("pk", "attempt__job_id", "index", "incarnation", "state", "ordered_out", "relieved")
    devices: dict[int, dict[str, int]] = defaultdict(dict)
    for node_id, replica, number in held:
        devices[replica][node_id] = number
    found: dict[str, list[Piece]] = defaultdict(list)
    for key, job_id, index, incarnation, state, leaves, relieved in rows.values_list(*columns):
        if key not in devices:
            continue
        trains = state in TRAINS and not leaves and not relieved
        found[job_id].append(Piece(index=index, incarnation=incarnation, devices=devices[key], trains=trains))
    return found


def expected(yielding_to: Collection[str]) -> Mapping[str, float]:
    """GPU-seconds that it was expected to cost each job that is asked to yield to one of these."""
    rows = _asked().filter(LIVE, urgent__in=list(yielding_to), withdrawn_by="")
    return {job_id: value for job_id, value in rows.values_list("job_id", "value") if job_id}


def preempted() -> Mapping[str, int]:
    """How often the queue has asked jobs of each project to yield within an hour, but for what came to nothing."""
    rows = _asked().filter(urgent__isnull=False, asked_at__gte=ago(HOUR_S), state__in=CAME_TO_IT).order_by()
    return dict(rows.values_list("job__project").annotate(number=Count("pk")).values_list("job__project", "number"))


def stakes_of(jobs: Mapping[str, tuple[int, Any]], policy: PolicyConfig) -> Mapping[str, Stake]:
    """Of those (committed step and pace by id) whose attempt runs."""
    rows = _attempts(jobs.keys())
    live = {job_id: (number, began) for job_id, (number, began, _) in rows.items()}
    kept, saves, views, asked = _kept(live), _saves(live), _first_views(live), _history(live)
    found: dict[str, Stake] = {}
    for job_id, (number, began) in live.items():
        step, pace = jobs[job_id]
        first = views.get((job_id, number))
        trained = Trained(
            attempt=number,
            begun_s=began.timestamp(),
            first_view_s=first.timestamp() if first is not None else None,
            step=step,
            kept=kept.get(job_id, 0),
            recent=recent_of(pace),
            saves=saves.get(job_id, ()),
            asks=asked.get(job_id, Asks()),
            grown_s=grown.timestamp() if (grown := rows[job_id][2]) is not None else None,
        )
        found[job_id] = stake_of(trained, policy)
    return found


def recent_of(pace: Mapping[str, Any] | None) -> Sequence[float]:
    """Seconds of a job's newest steps; () before it has any."""
    return (pace or {}).get("recent") or ()


def _asked() -> Any:
    return Request.objects.filter(kind=RequestKind.PREEMPT)


def _attempts(ids: Collection[str]) -> Mapping[str, tuple[int, datetime, datetime | None]]:
    """Of those whose attempt runs: its number, when it began, when it last grew."""
    rows = Attempt.objects.filter(job__in=list(ids), state=AttemptState.RUNNING)
    columns = ("job_id", "number", "started_at", "grown_at")
    return {job_id: (number, at, grown) for job_id, number, at, grown in rows.values_list(*columns)}


def _persistent(ids: Collection[str]) -> Any:
    return Checkpoint.objects.filter(job__in=list(ids)).exclude(kind=LOCAL_KIND)


def _kept(ids: Collection[str]) -> Mapping[str, int]:
    """The step of the newest checkpoint that outlives the job's devices."""
    rows = _persistent(ids).filter(state__in=[str(state) for state in TRUSTED]).order_by()
    return dict(rows.values_list("job_id").annotate(newest=Max("step")).values_list("job_id", "newest"))


def _saves(ids: Collection[str]) -> Mapping[str, list[float]]:
    """Seconds that the newest saves took."""
    rows = _persistent(ids).filter(state__in=COMMITTED_CHECKPOINTS, total_s__gt=0)
    place = Window(RowNumber(), partition_by=F("job_id"), order_by=[F("step").desc(), F("epoch").desc()])
    newest = rows.annotate(place=place).filter(place__lte=RECENT)
    found: dict[str, list[float]] = defaultdict(list)
    for job_id, total_s in newest.values_list("job_id", "total_s"):
        found[job_id].append(total_s)
    return found


def _first_views(live: Mapping[str, tuple[int, datetime]]) -> Mapping[tuple[str, int], datetime]:
    """When every rank of the attempt had come: by job and attempt."""
    rows = ViewRow.objects.filter(job__in=list(live)).order_by().values_list("job_id", "attempt")
    return {(job_id, number): at for job_id, number, at in rows.annotate(first=Min("announced_at"))}


def _history(ids: Collection[str]) -> Mapping[str, Asks]:
    """Of each job that was ever asked to yield: how often, and when that came to something and when to nothing."""
    over = [str(state) for state in (RequestState.WITHDRAWN, RequestState.REFUSED, RequestState.LAPSED)]
    by_queue = Q(urgent__isnull=False, asked_at__gte=ago(HOUR_S), state__in=CAME_TO_IT)
    rows = _asked().filter(job__in=list(ids)).order_by().values("job_id")
    counted = rows.annotate(
        number=Count("pk"),
        times=Count("pk", filter=by_queue),
        done=Max("ended_at", filter=Q(state=RequestState.DONE)),
        nothing=Max("ended_at", filter=Q(state__in=over)),
    )
    return {
        row["job_id"]: Asks(
            number=row["number"],
            times=row["times"],
            done_s=row["done"].timestamp() if row["done"] is not None else None,
            nothing_s=row["nothing"].timestamp() if row["nothing"] is not None else None,
        )
        for row in counted
    }
