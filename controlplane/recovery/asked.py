"""Reading people's requests: as the policy sees them, and as the API and the page show them. Writes nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from django.db.models import Q, QuerySet

from controlplane.changes.assembly.snapshot import carried
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank
from controlplane.policy import capabilities
from controlplane.policy.request_facts import RequestFact
from controlplane.protocol.states import RequestKind, RequestState
from controlplane.recovery.models import LIVE, Request
from controlplane.recovery.unseen import name_for
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import NotFound
from controlplane.runtime.prepared import TEXT, Prepared

Json = dict[str, Any]


def drains() -> QuerySet[Request]:
    """Of nodes, that have not ended; oldest first."""
    return Request.objects.filter(LIVE, kind=RequestKind.DRAIN, node__isnull=False).order_by("id")


def _of_job(job: Any, or_else: Q | None = None) -> QuerySet[Request]:
    of_it = Q(job=job) if or_else is None else Q(job=job) | or_else
    return Request.objects.filter(LIVE, of_it).select_related("job", "urgent")


_DRAINS = Prepared(lambda: drains().values_list("pk", flat=True)[:1])
_OF_JOB = Prepared(_of_job, job=TEXT)


def of_job(job: Job) -> tuple[RequestFact, ...]:
    """What is asked of the job and has not ended, and drains of nodes on which ranks of it are; oldest first."""
    if not _DRAINS():
        return _as_seen(_OF_JOB(job=job.id))
    homes = Rank.objects.filter(replica__attempt__job=job, released_at=None).values("node_id")
    return _as_seen(_of_job(job, Q(kind=RequestKind.DRAIN, node_id__in=homes)))


def facts(rows: QuerySet[Request]) -> tuple[RequestFact, ...]:
    """As the policy sees them, oldest first."""
    return _as_seen(rows.select_related("job", "urgent"))


def _as_seen(rows: Iterable[Request]) -> tuple[RequestFact, ...]:
    found = sorted(rows, key=lambda row: row.id)
    done = _carried({row.done_by for row in found if row.done_by})
    kept = _kept({row.id for row in found if row.kind == RequestKind.DRAIN})
    made = (_fact(row, done.get(row.done_by, "")) for row in found)
    return tuple(msgspec.structs.replace(each, kept=tuple(kept.get(each.id, ()))) for each in made)


def _kept(drains: set[str]) -> Mapping[str, list[tuple[int, int, int]]]:
    """Of each drain the lives whose eviction for it ended without their leaving."""
    ended = (RequestState.WITHDRAWN, RequestState.REFUSED, RequestState.LAPSED)
    found: dict[str, list[tuple[int, int, int]]] = {}
    if not drains:
        return found
    rows = Request.objects.filter(drain_id__in=drains, state__in=ended)
    for drain_id, *named in rows.order_by("id").values_list("drain_id", "attempt", "replica", "incarnation"):
        found.setdefault(drain_id, []).append((named[0], named[1], named[2]))
    return found


def _carried(decisions: set[str]) -> Mapping[str, str]:
    """What became of the orders of each decision."""
    if not decisions:
        return {}
    rows = Command.objects.filter(decision_id__in=decisions)
    told: dict[str, list[tuple[str, str]]] = {}
    for decision_id, state, detail in rows.order_by("id").values_list("decision_id", "state", "detail"):
        told.setdefault(decision_id, []).append((state, detail))
    return {decision_id: carried(commands) for decision_id, commands in told.items()}


def _fact(row: Request, done: str) -> RequestFact:
    return RequestFact(
        id=row.id,
        kind=RequestKind(row.kind),
        state=RequestState(row.state),
        who=row.who,
        reason=row.reason,
        asked_s=row.asked_at.timestamp(),
        valid_until_s=row.valid_until.timestamp(),
        attempt=row.attempt,
        replica=row.replica,
        incarnation=row.incarnation,
        rank=row.rank,
        node_id=row.node_id,
        fault=row.code,
        value=row.value,
        drain=row.drain_id or "",
        withdrawn_by=row.withdrawn_by,
        carried=done,
        before=row.before,
        urgent=name_for(row.job, row.urgent) if row.urgent is not None else "",
        taken_s=row.taken_at.timestamp() if row.taken_at is not None else None,
        gives=tuple((index, incarnation) for index, incarnation in row.gives),
    )


def requests(
    *, kinds: Iterable[str] = (), states: Iterable[str] = (), job_id: str = "", node_id: str = "", drain: str = ""
) -> QuerySet[Request]:
    """Those that match all that is given."""
    rows = Request.objects.select_related("job", "node", "urgent")
    wanted = {"kind__in": list(kinds), "state__in": list(states), "job_id": job_id, "node_id": node_id}
    return rows.filter(**{name: value for name, value in (wanted | {"drain_id": drain}).items() if value})


def one(request_id: str) -> Request:
    """Raises NotFound."""
    row = Request.objects.select_related("job", "node", "urgent").filter(pk=request_id).first()
    if row is None:
        raise NotFound(f"no request {request_id!r}")
    return row


def acts(row: Request) -> capabilities.Acts:
    """What may be done to it now."""
    return capabilities.request(capabilities.RequestFacts(id=row.id, state=row.state))


def view(row: Request) -> Json:
    """One request as the API shows it."""
    return {
        "id": row.id,
        "kind": row.kind,
        "state": row.state,
        "job_id": row.job_id,
        "job_name": row.job.name if row.job else None,
        "node_id": row.node_id,
        "node_name": row.node.name if row.node else None,
        "replica": row.replica,
        "rank": row.rank,
        "fault": row.code,
        "drain": row.drain_id,
        "urgent_id": row.urgent_id,
        "urgent_name": row.urgent.name if row.urgent else None,
        "lost_gpu_s": row.value if row.urgent_id else None,
        "who": row.who,
        "reason": row.reason,
        "asked_at": iso(row.asked_at),
        "valid_until": iso(row.valid_until),
        "withdrawn_by": row.withdrawn_by,
        "answer": row.answer,
        "decision_id": row.decision_id or None,
        "ended_at": iso(row.ended_at),
        "capabilities": acts(row),
    }
