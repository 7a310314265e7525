"""Orders of a person about one rank: a fault on purpose, or a look at it.

Commands in the current unit of work, each with its audit entry; the agents fence and
answer them like any other.
"""

from controlplane.access import services as access
from controlplane.api.capabilities import rank_acts
from controlplane.api.operations import newest_replica
from controlplane.api.problems import Kind, Problem
from controlplane.dispatch.models import Command
from controlplane.dispatch.services import enqueue
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.commands import CollectStacks, InjectRankFault
from controlplane.protocol.looks import LOOKS, MAX_PROFILE_S, PROFILE
from controlplane.protocol.rank_faults import FAULTS
from controlplane.protocol.rest import Told
from controlplane.runtime.errors import NotFound, refuse

FAULT_TTL_S = 15.0
LOOK_TTL_S = 30.0
DEFAULT_PROFILE_S = 2.0


def inject_fault(
    job: Job, replica: int, rank: int, *, fault: str, value: float, actor: str, reason: str = "", request_id: str = ""
) -> Command:
    """Break a rank of a job that allows it. Raises Problem, NotFound, Conflict."""
    if fault not in FAULTS:
        told = Told("/fault", f"{fault!r} is no fault of a rank", f"use {', '.join(sorted(FAULTS))}")
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    row = _rank(job, replica, rank)
    refuse(rank_acts(job, row)["fault"])
    data = {"replica": replica, "rank": rank, "fault": fault, "value": value}
    access.audit(actor, "job.fault", job.id, reason=reason, request_id=request_id, data=data)
    order = InjectRankFault(
        job_id=job.id, replica=replica, incarnation=row.replica.incarnation, rank=rank, fault=fault, value=value
    )
    return _order(job, row, order, FAULT_TTL_S)


def look_at(
    job: Job, replica: int, rank: int, *, look: str, duration_s: float | None, actor: str, reason: str, request_id: str
) -> Command:
    """Look at a rank; what it finds comes as a row (`recovery.looks`). One look at a rank at
    a time. Raises Problem, NotFound, Conflict."""
    if look not in LOOKS:
        told = Told("/look", f"{look!r} cannot be looked at", f"use {', '.join(LOOKS)}")
        raise Problem(Kind.INVALID, "The body is not valid.", errors=[told])
    row = _rank(job, replica, rank)
    refuse(rank_acts(job, row)["debug"])
    data = {"replica": replica, "rank": rank, "look": look}
    access.audit(actor, "job.debug", job.id, reason=reason, request_id=request_id, data=data)
    seconds = min(DEFAULT_PROFILE_S if duration_s is None else duration_s, MAX_PROFILE_S) if look == PROFILE else 0.0
    order = CollectStacks(
        job_id=job.id,
        replica=replica,
        incarnation=row.replica.incarnation,
        rank=rank,
        look=look,
        duration_s=seconds,
    )
    return _order(job, row, order, LOOK_TTL_S)


def _rank(job: Job, index: int, rank: int) -> Rank:
    """The rank's row in the newest incarnation of its replica. Raises NotFound."""
    replica = newest_replica(job, index)
    rows = replica.ranks.filter(rank=rank).select_related("node", "replica__attempt")
    row = rows.first()
    if row is None:
        raise NotFound(f"replica {index} of job {job.name!r} has no rank {rank}")
    return row


def _order(job: Job, row: Rank, body: InjectRankFault | CollectStacks, ttl_s: float) -> Command:
    number = row.replica.attempt.number
    return enqueue(body, node_id=row.node_id, job_id=job.id, attempt=number, epoch=job.epoch, ttl_s=ttl_s)
