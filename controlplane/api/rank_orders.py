"""What a person orders about one rank: a fault on purpose, which is a request that the policy answers, or a
look at it or a command to it, each a command in the current unit of work with its audit entry.
"""

from controlplane.access import services as access
from controlplane.api import bodies
from controlplane.api.problems import Kind, Problem
from controlplane.dispatch.models import Command
from controlplane.dispatch.services import enqueue
from controlplane.jobs.models import Job, Rank
from controlplane.protocol import rank_commands
from controlplane.protocol.commands import CollectStacks, CommandRank
from controlplane.protocol.diagnostics import BY_NAME, LOOKS, MAX_PROFILE_S
from controlplane.protocol.rank_faults import FAULTS
from controlplane.protocol.rest import FieldError
from controlplane.recovery import requests
from controlplane.recovery.capable import rank_acts
from controlplane.recovery.models import Request
from controlplane.runtime.errors import NotFound, refuse

DEFAULT_PROFILE_S = 2.0


def inject_fault(
    job: Job, replica: int, rank: int, *, fault: str, value: float, actor: str, reason: str = "", request_id: str = ""
) -> Request:
    """Ask for a fault in a rank of a job that allows it. Raises Problem, NotFound, Conflict."""
    if fault not in FAULTS:
        told = FieldError("/fault", f"{fault!r} is no fault of a rank", f"use {', '.join(sorted(FAULTS))}")
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    return requests.fault(
        _placed(job, replica, rank), code=fault, value=value, reason=reason, actor=actor, request_id=request_id
    )


def look_at(
    job: Job,
    replica: int,
    rank: int,
    *,
    diagnostic: str,
    duration_s: float | None,
    actor: str,
    reason: str,
    request_id: str,
) -> Command:
    """Look at a rank; what it finds comes as a row (`recovery.diagnostics`). One look at a rank at
    a time. Raises Problem, NotFound, Conflict."""
    if diagnostic not in BY_NAME:
        told = FieldError("/diagnostic", f"unknown diagnostic {diagnostic!r}", f"use {', '.join(LOOKS)}")
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    row = _placed(job, replica, rank)
    refuse(rank_acts(job, row)["debug"])
    data = {"replica": replica, "rank": rank, "diagnostic": diagnostic}
    access.audit(actor, "job.debug", job.id, reason=reason, request_id=request_id, data=data)
    asked = BY_NAME[diagnostic]
    seconds = min(DEFAULT_PROFILE_S if duration_s is None else duration_s, MAX_PROFILE_S) if asked.timed else 0.0
    order = CollectStacks(
        job_id=job.id,
        replica=replica,
        incarnation=row.replica.incarnation,
        rank=rank,
        look=diagnostic,
        duration_s=seconds,
    )
    return _order(job, row, order, asked.ttl_s)


def command_rank(job: Job, asked: bodies.CommandRank, *, actor: str, request_id: str) -> Command:
    """Have a rank do something of the table; its answer ends the command. Raises NotFound, Conflict."""
    name, fields = rank_commands.apart(asked.command)
    row = _placed(job, asked.replica, asked.rank)
    refuse(rank_acts(job, row)["command-rank"])
    data = {"replica": asked.replica, "rank": asked.rank, "command": name, "fields": fields}
    access.audit(actor, "job.command_rank", job.id, reason=asked.reason, request_id=request_id, data=data)
    body = CommandRank(
        job_id=job.id,
        attempt=row.replica.attempt.number,
        replica=asked.replica,
        incarnation=row.replica.incarnation,
        rank=asked.rank,
        name=name,
        fields=fields,
    )
    return _order(job, row, body, rank_commands.TTL_S)


def _placed(job: Job, index: int, rank: int) -> Rank:
    """The rank's row in the newest incarnation of its replica. Raises NotFound."""
    replica = requests.newest_replica(job, index)
    row = replica.ranks.filter(rank=rank).select_related("node", "replica__attempt__job").first()
    if row is None:
        raise NotFound(f"replica {index} of job {job.name!r} has no rank {rank}")
    return row


def _order(job: Job, row: Rank, body: CollectStacks | CommandRank, ttl_s: float) -> Command:
    number = row.replica.attempt.number
    return enqueue(body, node_id=row.node_id, job_id=job.id, attempt=number, epoch=job.epoch, ttl_s=ttl_s)
