"""Writing people's requests: asked, answered, taken back. The only writer of their rows.

What a person asks for is a row and a bell; a rule answers it (`policy.requests`), and its decision comes back
here through `apply` and `fleet_pass`. Refusals that need no look at the world as a whole are told at once.
"""

from datetime import timedelta
from typing import Any

import msgspec

from controlplane.access import services as access
from controlplane.dispatch import services as dispatch
from controlplane.fleet.capable import node_acts
from controlplane.fleet.models import Node
from controlplane.fleet.services import transition_node
from controlplane.jobs.capable import job_acts
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.jobs.services import ring_job
from controlplane.policy import plan
from controlplane.protocol.commands import InjectRankFault
from controlplane.protocol.plain import without_secrets
from controlplane.protocol.states import NodeState, RequestKind, RequestState
from controlplane.recovery import asked
from controlplane.recovery.capable import rank_acts, replica_acts
from controlplane.recovery.models import LIVE, Request
from controlplane.runtime import events, guard
from controlplane.runtime.clock import now
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row, lock_rows

VALID_S = {
    RequestKind.EVICT: 3600.0,
    RequestKind.CHECKPOINT: 600.0,
    RequestKind.DRAIN: 86_400.0,
    RequestKind.FAULT: 30.0,
}
"""For how long each may still begin; a checkpoint must be committed, a node be empty by then."""
FAULT_TTL_S = 15.0


def evict(job: Job, index: int, *, reason: str, actor: str, request_id: str = "") -> tuple[Request, bool]:
    """Ask that the replica leave, whose newest life is meant: (the request, whether it will wait for no other, as it
    does not train or was asked to leave before). Raises NotFound, Conflict when nothing of it runs."""
    with events.unit_of_work():
        job = _locked(job)
        replica = newest_replica(job, index)
        refuse(replica_acts(job, replica)["evict-replica"])
        access.audit(actor, "job.evict_replica", job.id, reason=reason, request_id=request_id, data={"replica": index})
        again = bool(replica.ordered_out) or _about(replica).exists() or replica.state != "active"
        return _ask(RequestKind.EVICT, actor, reason, job=job, **life_of(replica)), again


def checkpoint(job: Job, *, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask that the ranks save at their next step boundary. Raises Conflict when the job does not train."""
    with events.unit_of_work():
        job = _locked(job)
        refuse(job_acts([job])[job.pk]["checkpoint"])
        access.audit(actor, "job.checkpoint", job.id, reason=reason, request_id=request_id)
        return _ask(RequestKind.CHECKPOINT, actor, reason, job=job)


def fault(rank: Rank, *, code: str, value: float, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask for a fault in this rank. Raises Conflict where the job does not allow it, or the rank does not run."""
    with events.unit_of_work():
        job = _locked(rank.replica.attempt.job)
        rank = Rank.objects.select_related("replica__attempt").get(pk=rank.pk)
        refuse(rank_acts(job, rank)["fault"])
        data = {"replica": rank.replica.index, "rank": rank.rank, "fault": code, "value": value}
        access.audit(actor, "job.fault", job.id, reason=reason, request_id=request_id, data=data)
        subject = {"rank": rank.rank, "code": code, "value": value} | life_of(rank.replica)
        return _ask(RequestKind.FAULT, actor, reason, job=job, **subject)


def drain(node_id: str, *, reason: str, actor: str, request_id: str = "") -> Request:
    """Ask that the node be emptied: it takes no new work from now on. Raises NotFound, Conflict."""
    with events.unit_of_work():
        homes = _homes(node_id)
        lock_rows(Job, homes)
        node = lock_row(Node, node_id)
        if node is None:
            raise NotFound(f"no node {node_id!r}")
        refuse(node_acts(node)["drain"])
        for earlier in asked.drains().filter(node=node):
            # The node was returned meanwhile, and the fleet's pass has not looked since.
            over = plan.AnswerRequest(request=earlier.pk, to=RequestState.WITHDRAWN)
            answer(over, f"{node.name} was returned meanwhile, and is drained again.", "")
        before = node.state
        access.audit(
            actor, "node.drain", node.id, reason=reason, request_id=request_id,
            before={"state": before}, after={"state": str(NodeState.DRAINING)},
        )  # fmt: skip
        transition_node(node, NodeState.DRAINING, f"{reason} ({actor})")
        row = _ask(RequestKind.DRAIN, actor, reason, node=node, before=before)
        for job_id in homes:
            ring_job(job_id, sure=True)
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
        _take_back(held, f"{actor} ({reason})")


def life_of(replica: Replica) -> dict[str, int]:
    """The columns that name it as a subject."""
    number = replica.attempt.number
    return {"attempt": number, "replica": replica.index, "incarnation": replica.incarnation}


def newest_replica(job: Job, index: int) -> Replica:
    """The newest incarnation of a slot in the current attempt. Raises NotFound."""
    rows = Replica.objects.filter(attempt__job=job, index=index).select_related("attempt__job")
    found = rows.order_by("-attempt__number", "-incarnation").first()
    if found is None:
        raise NotFound(f"job {job.name!r} has no replica {index}")
    return found


def ask_of_drain(replica: Replica, drain_id: str) -> None:
    """The next that leaves a node that is drained, in the name of whoever asked for that."""
    whole = Request.objects.select_related("node").get(pk=drain_id)
    where = whole.node.name if whole.node is not None else "its node"
    _ask(
        RequestKind.EVICT, whole.who, f"{where} is drained: {whole.reason}",
        job=replica.attempt.job, drain=whole, **life_of(replica),
    )  # fmt: skip


def answer(act: plan.AnswerRequest, sentence: str, decision_id: str) -> None:
    """What a decision makes of it. What was part of a drain that ends without an empty node ends too."""
    row = lock_row(Request, act.request)
    if row is None:
        return
    columns: dict[str, Any] = {"answer": sentence, "decision_id": decision_id}
    if act.to == RequestState.TAKEN:
        columns["done_by"] = decision_id
    else:
        columns["ended_at"] = now()
    guard.move(row, "request", act.to, **columns)
    _publish(row, f"request.{act.to}", "")
    if row.kind == RequestKind.DRAIN and row.ended_at is not None:
        for part in row.evictions.filter(LIVE, withdrawn_by=""):
            _take_back(part, f"the drain {row.pk}, which is {row.state},")


def end_with(job: Job, decision_id: str) -> None:
    """The job is over, and all that was asked of it."""
    for row in job.requests.filter(LIVE).order_by("id"):
        left = row.kind == RequestKind.EVICT and row.state == RequestState.TAKEN
        to = RequestState.DONE if left else RequestState.REFUSED
        answer(plan.AnswerRequest(request=row.pk, to=to), f"The job is {job.state}.", decision_id)


def inject(replica: Replica, act: plan.InjectFault, sentence: str, decision_id: str) -> None:
    """Order the fault to the rank's agent. What a person asked for was written to the audit log then."""
    job = replica.attempt.job
    body = InjectRankFault(
        job_id=job.id,
        replica=act.replica,
        incarnation=act.incarnation,
        rank=act.rank,
        fault=act.fault,
        value=act.value,
    )
    if not act.request:
        data = msgspec.to_builtins(act)
        access.audit("schedule", "job.fault", job.id, reason=sentence, decision_id=decision_id, data=data)
    for rank in replica.ranks.filter(released_at=None, rank=act.rank):
        dispatch.enqueue(
            body, node_id=rank.node_id, job_id=job.id, attempt=replica.attempt.number, epoch=job.epoch,
            decision_id=decision_id, ttl_s=FAULT_TTL_S,
        )  # fmt: skip


def _ask(kind: RequestKind, who: str, reason: str, *, job: Job | None = None, **subject: Any) -> Request:
    """The row, and a bell for whoever answers it."""
    moment = now()
    row = Request.objects.create(
        id=new_id("ask"),
        kind=kind,
        job=job,
        who=who[:200],
        reason=without_secrets(reason),
        asked_at=moment,
        valid_until=moment + timedelta(seconds=VALID_S[kind]),
        **subject,
    )
    _publish(row, "request.asked", f"{who} asks: {_words(row)}. {reason}")
    if job is not None:
        ring_job(job.id, sure=True)
    return row


def _words(row: Request) -> str:
    match row.kind:
        case RequestKind.EVICT:
            return f"evict replica {row.replica}"
        case RequestKind.FAULT:
            return f"{row.code} for rank {row.rank} of replica {row.replica}"
        case RequestKind.DRAIN:
            return f"drain {row.node.name}" if row.node is not None else "drain a node"
    return "save a checkpoint"


def _take_back(row: Request, by: str) -> None:
    if not row.withdrawn_by:
        Request.objects.filter(pk=row.pk).update(withdrawn_by=by[:200])
        row.withdrawn_by = by[:200]
        _publish(row, "request.withdrawing", f"{by} takes back: {_words(row)}.")
    if row.job_id is not None:
        ring_job(row.job_id, sure=True)


def _about(replica: Replica) -> Any:
    life = {"job": replica.attempt.job, "kind": RequestKind.EVICT} | life_of(replica)
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


def _publish(row: Request, kind: str, sentence: str) -> None:
    events.publish(
        kind,
        sentence,
        job_id=row.job_id or "",
        node_id=row.node_id or "",
        entity="request",
        entity_id=row.pk,
        patch=lambda: asked.view(Request.objects.select_related("job", "node").get(pk=row.pk)),
    )
