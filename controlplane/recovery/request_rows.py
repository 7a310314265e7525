"""The rows of people's requests, and their words on recommendations: the only writer of them.

Called by who asks for people (`requests`) and by what a decision makes of it (`commit`).
"""

from datetime import timedelta
from typing import Any

from controlplane.access.actors import in_words
from controlplane.changes.kinds import CreatePreemption
from controlplane.jobs.models import Job, Replica
from controlplane.jobs.services import wake_job, wake_job_later
from controlplane.policy.titles import number_of
from controlplane.protocol.plain import without_secrets
from controlplane.protocol.states import RequestKind, RequestState
from controlplane.recovery import asked
from controlplane.recovery.models import Decision, Request
from controlplane.recovery.unseen import name_for
from controlplane.runtime import events, guard
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row

VALID_S = {
    RequestKind.EVICT: 3600.0,
    RequestKind.CHECKPOINT: 600.0,
    RequestKind.DRAIN: 86_400.0,
    RequestKind.FAULT: 30.0,
    RequestKind.PREEMPT: 600.0,
    RequestKind.RESUME: 600.0,
}
"""For how long each may still begin; a checkpoint must be committed, a node be empty by then."""
MAX_WORDS = 100
"""So many are kept with a decision, the newest."""
QUEUE = "queue"
"""Who asks for a preemption that makes room for a job of higher priority."""


def ask(
    kind: RequestKind, who: str, reason: str, *, job: Job | None = None, later: bool = False, **subject: Any
) -> Request:
    """The row, and a wake-up for whoever answers it; `later`: after the commit, as the job's row is not locked."""
    moment, who = now(), in_words(who)
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
        (wake_job_later if later else wake_job)(job.id, sure=True)
    return row


def add_word(row: Decision, word: dict[str, Any]) -> None:
    """What a person said of a recommendation, after what was said before."""
    row.verdict, row.verdicts = word["verdict"], [*row.verdicts, word][-MAX_WORDS:]
    row.save(update_fields=["verdict", "verdicts"])


def _words(row: Request) -> str:
    match row.kind:
        case RequestKind.EVICT:
            return f"evict replica {row.replica}"
        case RequestKind.FAULT:
            return f"{row.code} for rank {row.rank} of replica {row.replica}"
        case RequestKind.DRAIN:
            return f"drain {row.node.name}" if row.node is not None else "drain a node"
        case RequestKind.PREEMPT if row.gives and row.urgent is not None:
            return f"give {number_of(len(row.gives), 'replica')} to {name_for(row.job, row.urgent)}"
        case RequestKind.PREEMPT:
            if row.urgent is None:
                return "yield its devices and wait"
            return f"yield its devices to {name_for(row.job, row.urgent)}"
        case RequestKind.RESUME:
            return "continue"
    return "save a checkpoint"


def take_back(request_id: str, by: str) -> None:
    """Who answers it is told, once; a job after the commit, for the fleet's pass takes back under its lock."""
    row = Request.objects.select_related("node", "urgent").get(pk=request_id)
    if not row.withdrawn_by:
        Request.objects.filter(pk=row.pk).update(withdrawn_by=by[:200])
        row.withdrawn_by = by[:200]
        _publish(row, "request.withdrawing", f"{by} takes back: {_words(row)}.")
    if row.job_id is not None:
        wake_job_later(row.job_id, sure=True)


def move(request_id: str, to: str, *, decision_id: str, **columns: Any) -> None:
    """In its table, by what a decision makes of it. Raises LookupError, LostRace, IllegalTransition."""
    row = lock_row(Request, request_id)
    if row is None:
        raise LookupError(f"no request {request_id!r}")
    done_by = {"done_by": decision_id} if to == RequestState.TAKEN else {}
    guard.move(row, "request", to, decision_id=decision_id, **done_by, **columns)
    _publish(row, f"request.{to}", "")


def incarnation_of(replica: Replica) -> dict[str, int]:
    """The columns that name it as a subject."""
    number = replica.attempt.number
    return {"attempt": number, "replica": replica.index, "incarnation": replica.incarnation}


def ask_of_drain(replica: Replica, drain_id: str) -> None:
    """The next that leaves a node that is drained, in the name of whoever asked for that."""
    whole = Request.objects.select_related("node").get(pk=drain_id)
    where = whole.node.name if whole.node is not None else "its node"
    ask(
        RequestKind.EVICT, whole.who, f"{where} is drained: {whole.reason}",
        job=replica.attempt.job, drain=whole, **incarnation_of(replica),
    )  # fmt: skip


def ask_to_yield(urgent: Job, asks: CreatePreemption) -> None:
    """In the name of the queue. The victim's row is not locked by who asks, so it is woken after the commit."""
    ask(
        RequestKind.PREEMPT, QUEUE, asks.why,
        job=Job.objects.get(pk=asks.victim), later=True, urgent=urgent, attempt=asks.attempt, value=asks.lost_gpu_s,
        gives=[list(named) for named in asks.gives],
    )  # fmt: skip


def _publish(row: Request, kind: str, sentence: str) -> None:
    events.publish(
        kind,
        sentence,
        job_id=row.job_id or "",
        node_id=row.node_id or "",
        entity="request",
        entity_id=row.pk,
        patch=lambda: asked.view(Request.objects.select_related("job", "node", "urgent").get(pk=row.pk)),
    )
