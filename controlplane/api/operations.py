"""Orders of a person to a running job: to evict, as a fact that the policy answers at once; to save, as
commands in the current unit of work, with the fencing, the epoch and the evidence of the policy's own.
"""

from django.db.models import QuerySet

from controlplane.access import services as access
from controlplane.api.capabilities import replica_acts
from controlplane.dispatch.services import enqueue
from controlplane.jobs.capable import job_acts
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.jobs.selectors import current_attempt
from controlplane.jobs.services import ring_job
from controlplane.policy.relief import goes_at_once
from controlplane.protocol.commands import RequestSave
from controlplane.protocol.states import ReplicaState
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, NotFound, refuse


def save_now(job: Job, *, reason: str, actor: str, request_id: str = "") -> list[str]:
    """Order a manual save from every node of the job; ids of the commands. Raises Conflict
    when it does not train (`policy.capabilities`, as for every order here)."""
    attempt = current_attempt(job)
    nodes = sorted(set(live_ranks(job).values_list("node_id", flat=True)))
    refuse(job_acts([job])[job.pk]["checkpoint"])
    if attempt is None:
        raise Conflict(f"job {job.name!r} was never placed: it cannot save")
    access.audit(actor, "job.checkpoint", job.id, reason=reason, request_id=request_id)
    body = RequestSave(job_id=job.id, attempt=attempt.number, save_kind="manual", reason=reason)
    return [enqueue(body, node_id=node, job_id=job.id, attempt=attempt.number, epoch=job.epoch).id for node in nodes]


def evict_replica(job: Job, index: int, *, reason: str, actor: str, request_id: str = "") -> bool:
    """Have the replica leave, which the policy carries out: another is started beside it and takes its place
    in one view (`policy.rules.swap`). Where no device is free for one, where it does not train, or when it is
    ordered again, it leaves the view first and ends last (`policy.rules.ordered_eviction`). True: it waits for
    no other, as it does not train or was ordered out before. No budget is charged. Raises NotFound, or
    Conflict when nothing of it runs."""
    replica = newest_replica(job, index)
    refuse(replica_acts(job, replica)["evict-replica"])
    access.audit(actor, "job.evict_replica", job.id, reason=reason, request_id=request_id, data={"replica": index})
    said = f"{actor}: {reason}"
    at_once = goes_at_once(ReplicaState(replica.state), ordered_before=bool(replica.ordered_out))
    relieved = "" if at_once else said
    Replica.objects.filter(pk=replica.pk).update(ordered_out=said, ordered_at=now(), relieved=relieved)
    ring_job(job.id, sure=True)
    return at_once


def newest_replica(job: Job, index: int) -> Replica:
    """The newest incarnation of a slot in the current attempt. Raises NotFound."""
    rows = Replica.objects.filter(attempt__job=job, index=index).select_related("attempt")
    found = rows.order_by("-attempt__number", "-incarnation").first()
    if found is None:
        raise NotFound(f"job {job.name!r} has no replica {index}")
    return found


def live_ranks(job: Job) -> QuerySet[Rank]:
    """Ranks of the job that still hold a device."""
    return Rank.objects.filter(replica__attempt__job=job, released_at=None)
