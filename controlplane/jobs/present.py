"""Jobs, attempts, replicas, ranks and steps as the API and the events' patches show them.

Reverse relations (checkpoints, incidents) are read through the job, so this app knows
nothing of the apps above it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from django.db.models import QuerySet, Subquery

from controlplane.changes.due.course import hashes_equal, ledger
from controlplane.changes.packing import ids_in_words, ids_of
from controlplane.jobs.models import Attempt, Job, Rank, RankSpeed, Replica, StepRecord
from controlplane.jobs.numbers import JobNumbers, numbers_of
from controlplane.jobs.numbers_of_many import numbers_of_many
from controlplane.protocol.spec import Parallelism, rank_coordinates, ranks_per_replica
from controlplane.protocol.states import ReplicaState
from controlplane.runtime.beside import beside
from controlplane.runtime.clock import iso
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared

Json = dict[str, Any]
MAX_RANKS_IN_A_PATCH = 64


_RANKS: Prepared[Rank] = Prepared(
    lambda replica: Rank.objects.filter(replica=replica)
    .select_related("node", "device", "replica__attempt", "speed").order_by("rank"),
    replica=NUMBER,
)  # fmt: skip
_MANY: Prepared[int] = Prepared(
    lambda replica: Rank.objects.filter(replica=replica)
    .order_by("rank").values_list("pk", flat=True)[MAX_RANKS_IN_A_PATCH : MAX_RANKS_IN_A_PATCH + 1],
    replica=NUMBER,
)  # fmt: skip
"""Its first rank above so many."""
_NEWEST: Prepared[int] = Prepared(
    lambda job, index: Replica.objects.filter(
        attempt=Subquery(Attempt.objects.filter(job_id=job).order_by("-number").values("pk")[:1]), index=index
    ).order_by("-incarnation").values_list("pk", flat=True)[:1],
    job=TEXT, index=NUMBER,
)  # fmt: skip


def job_summaries(jobs: Sequence[Job]) -> list[Json]:
    """`job_summary` of each, read for all of them at once."""
    added, numbers = beside("job", [job.id for job in jobs]), numbers_of_many(jobs)
    return [job_summary(job, numbers=numbers[job.id], added=added[job.id]) for job in jobs]


def job_summary(job: Job, *, numbers: JobNumbers | None = None, added: Json | None = None) -> Json:
    """One row of the job list. `added`: what apps above add to it, where that was read for many at once."""
    n = numbers or numbers_of(job)
    return {
        "id": job.id,
        "name": job.name,
        "project": job.project,
        "owner": job.owner,
        "state": job.state,
        "state_reason": job.state_reason,
        "state_since": iso(job.state_since),
        "priority": job.priority,
        "epoch": job.epoch,
        "committed_step": job.committed_step,
        "total_steps": n.total_steps,
        "progress": job.committed_step / n.total_steps if n.total_steps else 0.0,
        "step_time_s": n.step_time_s,
        "loss": n.loss,
        "eta_s": n.eta_s,
        "attempt": n.attempt,
        "restarts": n.restarts,
        "preemptions": n.preemptions,
        "evictions": n.evictions,
        "replicas_active": n.replicas_active,
        "replicas_total": n.replicas_total,
        "replicas_asked": n.replicas_asked,
        "last_checkpoint_step": n.last_checkpoint_step,
        "last_checkpoint_local": n.last_checkpoint_local,
        "stored_checkpoint_step": n.stored_checkpoint_step,
        "checkpoint_age_s": n.checkpoint_age_s,
        "learned_step_s": n.learned_step_s,
        "work_at_risk_s": n.work_at_risk_s,
        "work_at_risk_stored_s": n.work_at_risk_stored_s,
        "ettr": n.ettr,
        "ettr_basis": n.ettr_basis,
        "undisturbed_step_s": n.undisturbed_step_s,
        "wall": msgspec.to_builtins(n.wall),
        "productivity": n.productivity,
        "open_incident_id": n.open_incident_id,
        "created_at": iso(job.created_at),
        "finished_at": iso(job.finished_at),
        **(beside("job", [job.id])[job.id] if added is None else added),
    }


# Fields of a job summary that move without an event: pushed as pictures, polled slowly.
VOLATILE_JOB_FIELDS = frozenset(
    {
        "committed_step", "progress", "step_time_s", "loss", "eta_s", "checkpoint_age_s", "work_at_risk_s",
        "work_at_risk_stored_s", "ettr", "learned_step_s", "ettr_basis", "undisturbed_step_s", "productivity", "wall",
    }
)  # fmt: skip


def attempt_view(attempt: Attempt) -> Json:
    """A line of the attempt history."""
    return {
        "number": attempt.number,
        "state": attempt.state,
        "layout": attempt.layout,
        "replicas": attempt.replicas,
        "resume_step": attempt.resume_step,
        "started_at": iso(attempt.started_at),
        "ended_at": iso(attempt.ended_at),
        "end_reason": attempt.end_reason,
    }


def replica_id(replica: Replica) -> str:
    """<job>/<attempt>/<index>/<incarnation>"""
    attempt = replica.attempt
    return f"{attempt.job_id}/{attempt.number}/{replica.index}/{replica.incarnation}"


def rank_id(rank: Rank) -> str:
    """<replica id>/<rank>"""
    return f"{replica_id(rank.replica)}/{rank.rank}"


def replica_patch(replica: Replica) -> Json:
    """Its summary for an event; of one with many ranks without them, which a page has or reads."""
    many = _MANY.first(replica=replica.pk) is not None
    return _replica(replica, _newest_of(replica)) if many else replica_summary(replica)


def replica_summary(replica: Replica, *, live: Json | None = None) -> Json:
    """`current`: the newest incarnation of its slot in the newest attempt, unless another slot has taken its
    place. `live`: the hot
    picture of the job, field "<replica>.<incarnation>.<rank>"."""
    ranks = _RANKS(replica=replica.pk)
    return _replica(replica, _newest_of(replica)) | {"ranks": [rank_summary(rank, live=live) for rank in ranks]}


def _newest_of(replica: Replica) -> int | None:
    return _NEWEST.first(job=replica.attempt.job_id, index=replica.index)


def replica_summaries(replicas: QuerySet[Replica], *, live: Json | None = None, ranks: bool = True) -> list[Json]:
    """`replica_summary` of each of these of one job, in their sequence, in as many queries for thousands as for one.
    `ranks` False: without them."""
    rows = list(replicas)
    newest = {row["index"]: row["pk"] for row in _slots(rows)}
    views = [_replica(row, newest.get(row.index)) for row in rows]
    if not ranks:
        return views
    by_replica: dict[int, list[Rank]] = {row.pk: [] for row in rows}
    found = Rank.objects.filter(replica__in=replicas.order_by().values("pk")).defer("log_tail")
    for rank in found.select_related("node", "device", "replica__attempt", "speed").order_by("rank"):
        by_replica[rank.replica_id].append(rank)
    return [
        view | {"ranks": [rank_summary(rank, live=live) for rank in by_replica[row.pk]]}
        for view, row in zip(views, rows, strict=True)
    ]


def _slots(rows: Sequence[Replica]) -> QuerySet[Replica, Json]:
    """All incarnations in the newest attempt of the job that these are of, the newest last."""
    attempts = Attempt.objects.filter(job__in={row.attempt.job_id for row in rows}).order_by("-number")
    found = Replica.objects.filter(attempt=Subquery(attempts.values("pk")[:1]))
    return found.order_by("incarnation").values("pk", "index")


def _replica(replica: Replica, newest_pk: int | None) -> Json:
    return {
        "id": replica_id(replica),
        "attempt": replica.attempt.number,
        "index": replica.index,
        "incarnation": replica.incarnation,
        "state": replica.state,
        "state_since": iso(replica.state_since),
        "created_at": iso(replica.created_at),
        "contributing": replica.contributing,
        "committed_step": replica.committed_step,
        "caught_up": replica.caught_up,
        "current": newest_pk == replica.pk and not (replica.relieved and replica.state == ReplicaState.EVICTED),
    }


def rank_summary(rank: Rank, *, live: Json | None = None) -> Json:
    """One process. `live` None or unknown to it: the reading is null."""
    replica = rank.replica
    layout = msgspec.convert(replica.attempt.layout, Parallelism)
    place = rank_coordinates(layout, rank.rank)
    return {
        "id": rank_id(rank),
        "replica": replica.index,
        "incarnation": replica.incarnation,
        "rank": rank.rank,
        "global_rank": replica.index * ranks_per_replica(layout) + rank.rank,
        "tp": place.tp,
        "cp": place.cp,
        "ep": place.ep,
        "replica_dp": place.replica_dp,
        "pp": place.pp,
        "node_id": rank.node_id,
        "node_name": rank.node.name,
        "device_index": rank.device.index,
        "device_uuid": rank.device.uuid,
        "state": rank.state,
        "pid": rank.pid,
        "started_at": iso(rank.started_at),
        "joined_at": iso(rank.joined_at),
        "exit_code": rank.exit_code,
        "exit_signal": rank.exit_signal,
        "live": (live or {}).get(f"{replica.index}.{replica.incarnation}.{rank.rank}"),
        "speed": speed_view(getattr(rank, "speed", None)),
    }


def speed_view(speed: RankSpeed | None) -> Json | None:
    """A rank's scores and the medians they come from; None before its first window."""
    if speed is None:
        return None
    told = speed.told
    return {
        "relative": speed.relative,
        "individual": speed.individual,
        "straggler": speed.straggler,
        "cause": speed.cause,
        "compute_s": told["compute"]["median_s"],
        "data_s": told["data"]["median_s"],
        "exchange_s": told["exchange"]["median_s"],
        "optimizer_s": told["optimizer"]["median_s"],
        "spread": told.get("spread", 0.0),
        "steps": told["compute"]["count"],
        "at": iso(speed.reported_at),
    }


def step_point(step: StepRecord, *, micro_batches: int | None = None) -> Json:
    """A point of the step chart; of a step in parts as far as they were read. `micro_batches`: ids 0..n-1 that a step
    must hold exactly once; None leaves `samples_exact` to what is there."""
    exact, equal = _verdicts(step, micro_batches)
    return {
        "attempt": step.attempt,
        "step": step.step,
        "epoch": step.epoch,
        "at": iso(step.at),
        "loss": step.loss,
        "grad_norm": step.grad_norm,
        "step_time_s": step.step_time_s,
        "exchange_s": step.exchange_s,
        "stall_s": step.stall_s,
        "tokens": step.tokens,
        "contributors": step.contributors,
        "samples_exact": exact,
        "hashes_equal": equal,
        "steps": 1,
    }


def _verdicts(step: StepRecord, micro_batches: int | None) -> tuple[bool, bool | None]:
    """Of a step that is packed as it was judged then: its charts unpack nothing."""
    if step.packed is not None and not step.in_parts:
        held, equal = step.packed["held"], step.packed["equal"]
        wanted = ids_in_words(range(micro_batches) if micro_batches is not None else sorted(set(ids_of(held))))
        return held == wanted, equal
    seen = ledger(step)
    held_once = list(range(micro_batches)) if micro_batches is not None else sorted(set(seen))
    return seen == held_once, hashes_equal(step)
