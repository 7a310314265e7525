"""Reading jobs, attempts, replicas, ranks and steps."""

from typing import Any

from django.db.models import Count, F, Max, Min, Q, QuerySet

from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepRecord
from controlplane.jobs.numbers import spec_of
from controlplane.jobs.present import rank_summary, replica_summary, step_point
from controlplane.protocol.spec import micro_batch_count
from controlplane.protocol.states import JobState
from controlplane.runtime import bus
from controlplane.runtime.errors import NotFound


def jobs(*, state: str | None = None, q: str = "") -> QuerySet[Job]:
    """Newest first; `q` is a part of the name or project."""
    rows = Job.objects.order_by("-created_at", "-id")
    if state:
        rows = rows.filter(state=state)
    return rows.filter(Q(name__icontains=q) | Q(project__icontains=q)) if q else rows


def job(job_id: str) -> Job:
    """By id, or by the name of the newest job that has it. Raises NotFound."""
    row = Job.objects.filter(pk=job_id).first() or Job.objects.filter(name=job_id).order_by("-created_at").first()
    if row is None:
        raise NotFound(f"no job {job_id!r}")
    return row


def counts_by_state() -> dict[str, int]:
    """Every state is present, zeros too."""
    found = dict(Job.objects.values_list("state").annotate(n=Count("pk")).values_list("state", "n"))
    return {state.value: found.get(state.value, 0) for state in JobState}


def attempts(row: Job) -> list[Attempt]:
    """Oldest first."""
    return list(row.attempts.order_by("number"))


def current_attempt(row: Job) -> Attempt | None:
    """The newest."""
    return row.attempts.order_by("-number").first()


def replicas(row: Job, *, attempt: int | None = None) -> list[dict[str, Any]]:
    """Every incarnation with its ranks and their live readings, newest attempt first."""
    rows = Replica.objects.filter(attempt__job=row).select_related("attempt")
    if attempt is not None:
        rows = rows.filter(attempt__number=attempt)
    live = hot_ranks(row.id)
    return [replica_summary(r, live=live) for r in rows.order_by("-attempt__number", "index", "-incarnation")]


def hot_ranks(job_id: str) -> dict[str, Any]:
    """The sentinel's picture; empty when it is not known."""
    return bus.read_hot(f"job:{job_id}") or {}


def ranks_on_node(node_id: str) -> list[dict[str, Any]]:
    """Unreleased ranks of a node, each with its job."""
    rows = Rank.objects.filter(node_id=node_id, released_at=None).select_related("replica__attempt", "node", "device")
    found = []
    for row in rows.order_by("device__index"):
        job_id = row.replica.attempt.job_id
        found.append({**rank_summary(row, live=hot_ranks(job_id)), "job_id": job_id})
    return found


def steps(
    row: Job, *, since_step: int = 0, attempt: int | None = None, limit: int = 2000, points: int | None = None
) -> list[dict[str, Any]]:
    """Committed steps from `since_step` on, in order; the newest attempt unless told. `points`:
    at most so many of all of them, evenly spread, and the newest."""
    number = attempt if attempt is not None else _newest_number(row)
    rows = StepRecord.objects.filter(job=row, attempt=number, step__gte=since_step).order_by("step")
    if points is not None:
        rows, limit = _spread(rows, points), points
    wanted = micro_batch_count(spec_of(row).spec)
    return [step_point(step, micro_batches=wanted) for step in rows[:limit]]


def _spread(rows: QuerySet[StepRecord], points: int) -> QuerySet[StepRecord]:
    """Every n-th step, by its own number, so that the same ones are chosen while the job goes on."""
    ends = rows.aggregate(low=Min("step"), high=Max("step"))
    if ends["low"] is None or ends["high"] - ends["low"] < points:
        return rows
    stride = -(-(ends["high"] - ends["low"] + 1) // (points - 1))
    return rows.annotate(place=F("step") % stride).filter(Q(place=0) | Q(step=ends["high"]))


def log_tail(row: Job, *, replica: int, rank: int) -> str:
    """What was kept with the newest exit of that rank; empty if it never ended."""
    found = Rank.objects.filter(replica__attempt__job=row, replica__index=replica, rank=rank).exclude(log_tail="")
    newest = found.order_by("-replica__attempt__number", "-replica__incarnation").first()
    return newest.log_tail if newest else ""


def _newest_number(row: Job) -> int:
    return row.attempts.order_by("-number").values_list("number", flat=True).first() or 1
