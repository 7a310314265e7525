"""Jobs and what belongs to them: submit, cancel, transitions. The only writer of these rows
beside telemetry's observed columns."""

from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q

from controlplane.access import projects
from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.fleet.services import publish_device
from controlplane.jobs import environment
from controlplane.jobs.capable import job_acts
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.numbers import numbers_of
from controlplane.jobs.present import job_summary, rank_id, rank_summary, replica_id, replica_patch
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.states import AttemptState, JobState, RankState
from controlplane.runtime import events, guard, wakeup
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, NotFound, refuse
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared

TERMINAL = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
JOB: Prepared[Job] = Prepared(lambda job: Job.objects.filter(pk=job), job=TEXT)
_REPLICA: Prepared[Replica] = Prepared(
    lambda replica: Replica.objects.filter(pk=replica).select_related("attempt"), replica=NUMBER
)
_RANK: Prepared[Rank] = Prepared(
    lambda rank: Rank.objects.filter(pk=rank).select_related("replica__attempt", "node", "device", "speed"),
    rank=NUMBER,
)


def submit_job(spec: JobSpec, *, owner: str, actor: str, request_id: str = "") -> Job:
    """A pending job that the scheduler looks at at once. `spec` has been linted; whether the owner may submit to its
    project was asked before. Raises Invalid where that is no project or allows no such priority, Conflict when a live
    job of it has the name."""
    meta = spec.metadata
    try:
        with events.unit_of_work(), events.attempt():
            projects.check_priority(meta.project, spec.spec.scheduling.priority)
            job_id = new_id("job")
            job = Job.objects.create(
                id=job_id,
                name=meta.name,
                project=meta.project,
                owner=owner,
                spec=environment.sealed(msgspec.to_builtins(spec), job_id),
                priority=spec.spec.scheduling.priority,
            )
            access.audit(
                actor,
                "job.submit",
                job.id,
                request_id=request_id,
                data={"name": meta.name},
                after={"state": job.state, "spec": job.spec},
            )
            publish_job(job, "job.submitted", f"{in_words(actor)} submitted {meta.name}.")
            wake_job(job.id)
    except IntegrityError as error:
        raise Conflict(
            f"project {meta.project!r} has a live job {meta.name!r} already; choose another name, or cancel that one"
        ) from error
    return job


def cancel_job(job_id: str, *, reason: str, actor: str, request_id: str = "") -> Job:
    """Ask for the end; the policy carries it out. Asking twice is no error. Raises NotFound,
    Conflict when it has ended already."""
    with events.unit_of_work():
        job = get_locked(job_id)
        refuse(job_acts([job])[job_id]["cancel"])
        access.audit(
            actor, "job.cancel", job_id, reason=reason, request_id=request_id,
            before={"state": job.state, "cancel_requested": job.cancel_requested}, after={"cancel_requested": True},
        )  # fmt: skip
        if not job.cancel_requested:
            Job.objects.filter(pk=job_id).update(cancel_requested=True)
            publish_job(job, "job.cancel_requested", f"{in_words(actor)} asked to cancel {job.name}: {reason}")
        wake_job(job_id)
    return job


def get_locked(job_id: str) -> Job:
    """The job's row, held until commit. Raises NotFound."""
    job = lock_row(Job, job_id)
    if job is None:
        raise NotFound(f"no job {job_id!r}")
    return job


def wake_job(job_id: str, *, sure: bool = False) -> None:
    """Durably due now; the wake-up after the commit makes it fast. A job that is over is due too while its attempt has
    not ended: that ends in a pass. `sure`: see `Wakeups.wake`."""
    wake_jobs([job_id], sure=sure)


def wake_jobs(job_ids: Collection[str], *, sure: bool = False) -> None:
    """As `wake_job` of each, in one statement."""
    if not job_ids:
        return
    stopping = Attempt.objects.filter(job=OuterRef("pk"), state=AttemptState.STOPPING)
    Job.objects.filter(~Q(state__in=TERMINAL) | Exists(stopping), pk__in=job_ids).update(due_at=now())
    for job_id in job_ids:
        transaction.on_commit(partial(wakeup.wake, job_id, sure=sure))


def wake_job_later(job_id: str, *, sure: bool = False) -> None:
    """As `wake_job`, once this unit is committed: for who holds the fleet's or a node's lock and not the job's, which
    comes before them. What is lost with this process costs the time until the job's next pass."""
    transaction.on_commit(partial(wake_job, job_id, sure=sure), robust=True)


def wake_live_jobs(*, project: str | None = None) -> None:
    """Every job (of a project, where one is named) that is not over is due, once: what each is decided by has
    changed."""
    among = Q() if project is None else Q(project=project)
    Job.objects.filter(among).exclude(state__in=TERMINAL).update(due_at=now())


def transition_job(job: Job, to: str, reason: str) -> None:
    """Move the job in its table. One that is over has a pass more, which sees its attempt's end to it. Raises
    IllegalTransition, LostRace."""
    before = job.state
    columns: dict[str, Any] = {"state_reason": reason}
    if to in TERMINAL:
        columns |= {"finished_at": now(), "due_at": now()}
    guard.move(job, "job", to, **columns)
    publish_job(job, "job.state", f"{job.name}: {before} -> {to}. {reason}")


def transition_attempt(attempt: Attempt, to: str, reason: str, **columns: Any) -> None:
    """Move the attempt in its table; what ends with it is the caller's (`changes.turn.ended`)."""
    before = attempt.state
    guard.move(attempt, "attempt", to, **columns)
    publish_job(attempt.job, "attempt.state", f"Attempt {attempt.number}: {before} -> {to}. {reason}")


def transition_replica(replica: Replica, to: str, reason: str, **columns: Any) -> None:
    """Move the replica in its table."""
    before = replica.state
    guard.move(replica, "replica", to, **columns)
    publish_replica(replica, "replica.state", f"Replica {replica.index}: {before} -> {to}. {reason}")


def transition_rank(rank: Rank, to: str, reason: str, **columns: Any) -> None:
    """Move the rank in its table. EXITED releases its device: the process is proved gone."""
    before = rank.state
    releases = to == RankState.EXITED and rank.released_at is None
    if releases:
        columns.setdefault("released_at", now())
    guard.move(rank, "rank", to, **columns)
    if releases:
        publish_device(rank.device, "device.released", "", job_id=rank.replica.attempt.job_id)
    publish_rank(rank, "rank.state", f"Rank {rank.rank} of replica {rank.replica.index}: {before} -> {to}. {reason}")


def publish_job(job: Job, kind: str, sentence: str, data: dict[str, Any] | None = None) -> None:
    """An event with the job's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        job_id=job.id,
        entity="job",
        entity_id=job.id,
        patch=lambda: _patch(job.pk),
        data=data,
    )


def refresh_job(job_id: str) -> None:
    """The job's summary changed through something that belongs to it."""
    events.publish(
        "job.refreshed",
        "",
        job_id=job_id,
        entity="job",
        entity_id=job_id,
        patch=lambda: _patch(job_id),
    )


def publish_replica(replica: Replica, kind: str, sentence: str) -> None:
    """An event with the replica's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        job_id=replica.attempt.job_id,
        entity="replica",
        entity_id=replica_id(replica),
        patch=lambda: replica_patch(_REPLICA.get(replica=replica.pk)),
    )
    refresh_job(replica.attempt.job_id)


def publish_rank(rank: Rank, kind: str, sentence: str) -> None:
    """An event with the rank's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        job_id=rank.replica.attempt.job_id,
        node_id=rank.node_id,
        entity="rank",
        entity_id=rank_id(rank),
        patch=lambda: rank_summary(_RANK.get(rank=rank.pk)),
    )


def _patch(job_id: str) -> dict[str, Any]:
    """A job's summary for an event, which leaves out what moves without one."""
    job = JOB.get(job=job_id)
    return job_summary(job, numbers=numbers_of(job))
