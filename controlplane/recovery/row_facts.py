"""Rows of the database as the write side's core sees them, one by one (`changes.rows`). Reads nothing else."""

import msgspec
from django.conf import settings

from controlplane.changes import rows as facts
from controlplane.changes.answers import Answered
from controlplane.changes.launches import trainer_config
from controlplane.changes.turn import OVER
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.commands import Body
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import (
    AttemptState,
    CommandState,
    JobState,
    RankState,
    ReplicaState,
    RequestKind,
    RequestState,
)
from controlplane.recovery.models import MarkedLines, RankLook, Request
from controlplane.recovery.row_queries import HOLDER


def is_fenced(row: Rank) -> bool:
    """Its incarnation is out, or its attempt over."""
    return row.replica.state in OVER or row.replica.attempt.state == AttemptState.ENDED


def job_of(row: Job) -> facts.Job:
    """As the core sees a job."""
    return facts.Job(
        id=row.id,
        name=row.name,
        owner=row.owner,
        state=JobState(row.state),
        epoch=row.epoch,
        spec=spec_of(row).spec,
        inspections=row.looks_taken,
    )


def attempt_of(row: Attempt) -> facts.Attempt:
    """As the core sees an attempt."""
    return facts.Attempt(
        number=row.number,
        state=AttemptState(row.state),
        layout=msgspec.convert(row.layout, Parallelism),
        replicas=row.replicas,
        resume_step=row.resume_step,
        resume_path=row.resume_path,
        checkpoint_dir=row.checkpoint_dir,
        max_contributors=row.max_contributors,
        yielded=row.yielded,
        end_reason=row.end_reason,
    )


def replica_of(row: Replica) -> facts.Replica:
    """As the core sees one incarnation."""
    return facts.Replica(
        attempt=row.attempt.number,
        index=row.index,
        incarnation=row.incarnation,
        state=ReplicaState(row.state),
        contributing=row.contributing,
        contributed=row.contributed,
        times_out=row.times_out,
        out_s=row.out_at.timestamp() if row.out_at else None,
        leaving=bool(row.ordered_out or row.relieved),
        caught_up=row.caught_up is not None,
    )


def rank_of(row: Rank) -> facts.Rank:
    """As the core sees one process."""
    replica = row.replica
    return facts.Rank(
        *(replica.attempt.number, replica.index, replica.incarnation, row.rank),
        node_id=row.node_id,
        device_index=row.device.index,
        state=RankState(row.state),
        started=row.started_at is not None,
        joined=row.joined_at is not None,
        replica_state=ReplicaState(replica.state),
        fenced=is_fenced(row),
    )


def device_of(row: Device) -> facts.Device:
    """As the core sees one, with the job whose rank is on it."""
    holder = HOLDER.first(device=row.pk)
    return facts.Device(
        uuid=row.uuid,
        reset_wanted=row.reset_wanted_at is not None,
        model=row.model,
        works=row.present and row.healthy,
        holder=str(holder or ""),
    )


def request_of(row: Request) -> facts.Request:
    """As the core sees what was asked for."""
    return facts.Request(row.pk, RequestKind(row.kind), RequestState(row.state))


def marked_of(row: MarkedLines) -> facts.Marked:
    """As the core sees what the timeline has not told."""
    said_s = row.told_at.timestamp() if row.told_at is not None else None
    return facts.Marked(row.marker, row.lines, row.reports, row.last, said_s)


def diagnostic_of(row: RankLook) -> facts.Diagnostic:
    """As the core sees what one found."""
    named = (row.command_id, row.replica, row.incarnation, row.rank)
    said = (row.look, row.method, row.place, row.text)
    return facts.Diagnostic(*named, *said, row.at.timestamp(), row.incident_id or "")


def config_of(job: Job, attempt: Attempt) -> TrainerConfig:
    """What the attempt's ranks compute by, for who computes it again; nothing is resumed from."""
    terms = facts.Terms(settings.STORE_ADDRESS, "", settings.OUTER_TIMEOUT_S, (), {})
    config = trainer_config(job_of(job), attempt_of(attempt), terms)
    return msgspec.structs.replace(config, resume=None)


def answered_of(command: Command, body: Body | None) -> Answered:
    """As the core sees a command; `body` as far as it is ours."""
    return Answered(
        id=command.id,
        node_id=command.node_id,
        node=command.node.name,
        kind=command.kind,
        body=body,
        state=CommandState(command.state),
        detail=command.detail,
        data=command.data,
        ttl_s=command.ttl_s,
        job_id=command.job_id,
        decided=bool(command.decision_id),
    )
