"""People's requests, asked and taken back; `request_rows` writes them.

What a person asks for is a row and a wake-up; a rule answers it (`policy.requests`), and its decision comes back
there through `commit`. Refusals that need no look at the world as a whole are told at once.
"""

from typing import Any

from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.changes.turn import answer
from controlplane.fleet.capable import node_acts, node_stands
from controlplane.fleet.models import Node
from controlplane.fleet.services import transition_node
from controlplane.jobs.capable import job_acts
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.jobs.services import wake_job
from controlplane.protocol.states import NodeState, RequestKind, RequestState
from controlplane.recovery import asked
from controlplane.recovery.capable import rank_acts, replica_acts
from controlplane.recovery.commit import commit
from controlplane.recovery.models import LIVE, Request
from controlplane.recovery.request_rows import ask, incarnation_of, take_back
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.locks import lock_row, lock_rows


def evict(job: Job, index: int, *, reason: str, actor: str, request_id: str = "") -> tuple[Request, bool]:
    """Ask that the replica leave, whose newest life is meant: (the request, whether it will wait for no other, as it
    does not train or was asked to leave before). Raises NotFound, Conflict when nothing of it runs."""
    with events.unit_of_work():
        job = _locked(job)
        replica = newest_replica(job, index)
        refuse(replica_acts(job, replica)["evict-replica"])
        access.audit(actor, "job.evict_replica", job.id, reason=reason, request_id=request_id, data={"replica": index})
        again = bool(replica.ordered_out) or _about(replica).exists() or replica.state != "active"
        return ask(RequestKind.EVICT, actor, reason, job=job, **incarnation_of(replica)), again


def checkpoint(job: Job, *, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask that the ranks save at their next step boundary. Raises Conflict when the job does not train."""
    with events.unit_of_work():
        job = _locked(job)
        refuse(job_acts([job])[job.pk]["checkpoint"])
        access.audit(actor, "job.checkpoint", job.id, reason=reason, request_id=request_id)
        return ask(RequestKind.CHECKPOINT, actor, reason, job=job)


def preempt(job: Job, *, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask that the job save, yield its devices and wait until it is resumed. Raises Conflict where it has none."""
    with events.unit_of_work():
        job = _locked(job)
        refuse(job_acts([job])[job.pk]["preempt"])
        access.audit(actor, "job.preempt", job.id, reason=reason, request_id=request_id)
        newest = job.attempts.order_by("-number").values_list("number", flat=True).first()
        return ask(RequestKind.PREEMPT, actor, reason, job=job, attempt=newest)


def resume(job: Job, *, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask that a job that a person preempted continue when there is room. Raises Conflict where none has."""
    with events.unit_of_work():
        job = _locked(job)
        refuse(job_acts([job])[job.pk]["resume"])
        access.audit(actor, "job.resume", job.id, reason=reason, request_id=request_id)
        return ask(RequestKind.RESUME, actor, reason, job=job)


def fault(rank: Rank, *, code: str, value: float, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask for a fault in this rank. Raises Conflict where the job does not allow it, or the rank does not run."""
    with events.unit_of_work():
        job = _locked(rank.replica.attempt.job)
        rank = Rank.objects.select_related("replica__attempt").get(pk=rank.pk)
        refuse(rank_acts(job, rank)["fault"])
        data = {"replica": rank.replica.index, "rank": rank.rank, "fault": code, "value": value}
        access.audit(actor, "job.fault", job.id, reason=reason, request_id=request_id, data=data)
        subject = {"rank": rank.rank, "code": code, "value": value} | incarnation_of(rank.replica)
        return ask(RequestKind.FAULT, actor, reason, job=job, **subject)


def drain(node_id: str, *, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask that the node be emptied: it takes no new work from now on. Asked twice it is the same request. Raises
    NotFound, Conflict."""
    with events.unit_of_work():
        homes = _homes(node_id)
        lock_rows(Job, homes)
        node = lock_row(Node, node_id)
        if node is None:
            raise NotFound(f"no node {node_id!r}")
        standing = asked.drains().filter(node=node, withdrawn_by="").last() if node_stands(node, "drain") else None
        if standing is not None:
            return standing
        refuse(node_acts(node)["drain"])
        for earlier in asked.drains().filter(node=node):
            # The node was returned meanwhile, and the fleet's pass has not looked since.
            why = f"{node.name} was returned meanwhile, and is drained again."
            rows = JobRows(None)
            commit(answer(rows, rows.request(earlier.pk), RequestState.WITHDRAWN, why), rows)
        before = node.state
        access.audit(
            actor, "node.drain", node.id, reason=reason, request_id=request_id,
            before={"state": before}, after={"state": str(NodeState.DRAINING)},
        )  # fmt: skip
        transition_node(node, NodeState.DRAINING, f"{reason} ({in_words(actor)})")
        row = ask(RequestKind.DRAIN, actor, reason, node=node, before=before)
        for job_id in homes:
            wake_job(job_id, sure=True)
    return row


def withdraw(row: Request, *, reason: str, actor: str, request_id: str = "") -> None:
    """Take it back: it is answered soon, with what could still be kept from happening. Twice is no error. Raises
    Conflict when it has ended."""
    with events.unit_of_work():
        if row.job_id is not None:
            lock_row(Job, row.job_id)
        held = lock_row(Request, row.pk)
        if held is None:
            raise NotFound(f"no request {row.pk!r}")
        refuse(asked.acts(held)["withdraw"])
        access.audit(actor, "request.withdraw", row.pk, reason=reason, request_id=request_id)
        take_back(held.pk, f"{in_words(actor)} ({reason})")


def newest_replica(job: Job, index: int) -> Replica:
    """The newest incarnation of a slot in the current attempt. Raises NotFound."""
    rows = Replica.objects.filter(attempt__job=job, index=index).select_related("attempt__job")
    found = rows.order_by("-attempt__number", "-incarnation").first()
    if found is None:
        raise NotFound(f"job {job.name!r} has no replica {index}")
    return found


def _about(replica: Replica) -> Any:
    life = {"job": replica.attempt.job, "kind": RequestKind.EVICT} | incarnation_of(replica)
    return Request.objects.filter(LIVE, **life)


def _homes(node_id: str) -> list[str]:
    """Every job with ranks there."""
    ranks = Rank.objects.filter(node_id=node_id, released_at=None)
    return sorted(set(ranks.values_list("replica__attempt__job_id", flat=True)))


def _locked(job: Job) -> Job:
    """As it is now, held until commit: one that is ending has ended, and is asked nothing. Raises NotFound."""
    held = lock_row(Job, job.pk)
    if held is None:
        raise NotFound(f"no job {job.pk!r}")
    return held
