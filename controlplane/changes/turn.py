"""One decision being carried out, and what its acts share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from controlplane.changes.kinds import (
    AttemptKey,
    Change,
    Enqueue,
    Observe,
    ReplicaKey,
    RequestKey,
    Transition,
    Withdraw,
)
from controlplane.changes.launches import Launcher
from controlplane.changes.rows import Attempt, Home, Replica, Request, Rows
from controlplane.policy import plan
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.protocol.bounds import JobEnd
from controlplane.protocol.commands import Body, WarmHost
from controlplane.protocol.states import LIVE_REQUEST, AttemptState, ReplicaState, RequestKind, RequestState

ASK_TTL_S = 30.0
WARM_TTL_S = 240.0
"""A host that imports everything on a loaded machine takes minutes, and answers when it is up."""
OVER = (ReplicaState.EVICTED, ReplicaState.ENDED)


@dataclass(slots=True)
class Turn:
    """One decision that is being carried out. `launcher` once it starts replicas."""

    decision: plan.Decision
    rows: Rows
    launcher: Launcher | None = None

    @property
    def final(self) -> JobEnd:
        """How the job ends with this decision; "" if it does not."""
        ends = (str(a.to) for a in self.decision.actions if isinstance(a, plan.SetJobState) and a.to in TERMINAL_JOB)
        return cast(JobEnd, next(ends, ""))


def ended(rows: Rows, attempt: Attempt, why: str) -> Iterator[Change]:
    """It is over, and its replicas end with it; the reason for which it was stopped stands."""
    columns = {"ended_s": rows.now_s, "end_reason": attempt.end_reason or why}
    yield Transition(AttemptKey(attempt.number), AttemptState.ENDED, why, columns)
    for replica in rows.replicas(attempt.number):
        if replica.state not in OVER:
            yield moved(replica, ReplicaState.ENDED, f"attempt {attempt.number} is over")


def end_stopping(rows: Rows) -> list[Change]:
    """A stopping attempt ends when every process is proved gone, or its node out of reach and so
    fenced by its epoch."""
    stopping = [each for each in rows.unended_attempts() if each.state == AttemptState.STOPPING]
    if not stopping or rows.within_reach(stopping[0].number):
        return []
    return list(ended(rows, stopping[0], "every process is gone"))


def answer(rows: Rows, request: Request | None, to: RequestState, sentence: str) -> Iterator[Change]:
    """What becomes of a request. What was part of a drain that ends without an empty node ends too."""
    if request is None:
        return
    moment = {"taken_s" if to in LIVE_REQUEST else "ended_s": rows.now_s}
    yield Transition(RequestKey(request.id), to, sentence, {"answer": sentence} | moment)
    if request.kind == RequestKind.DRAIN and to not in LIVE_REQUEST:
        for part in rows.parts(request.id):
            yield Withdraw(part.id, f"the drain {request.id}, which is {to},")


def key_of(replica: Replica) -> ReplicaKey:
    """Its name."""
    return ReplicaKey(replica.attempt, replica.index, replica.incarnation)


def moved(replica: Replica, to: ReplicaState, why: str) -> Transition:
    """One that is over contributes no more."""
    return Transition(key_of(replica), to, why, {"contributing": False} if to in OVER else {})


def counting(replica: Replica, counts: bool, *, holds: bool) -> Iterator[Change]:
    """`holds` the state: a start that came so far has not failed."""
    columns = {"contributing": counts} | ({"contributed": True} if holds else {})
    if (replica.contributing, replica.contributed) != (counts, replica.contributed or holds):
        yield Observe(key_of(replica), columns, publish="job")


def to_all(body: Body, homes: Sequence[Home], attempt: int, ttl_s: float) -> Enqueue:
    """The same order to each of the nodes, once."""
    nodes = sorted({home.node_id for home in homes})
    return Enqueue(tuple((node, body) for node in nodes), attempt, ttl_s)


def warm(turn: Turn, attempt: int, nodes: Sequence[str]) -> Change:
    """Have the job's rank host started on these nodes; where one is up it waits longer."""
    job = turn.rows.job()
    body = WarmHost(job_id=job.id, attempt=attempt, user=job.owner)
    return Enqueue(tuple((node, body) for node in nodes), attempt, WARM_TTL_S)
