"""A person asks that a replica leave: it is ordered out, and the request has ended when its processes have.

What comes of the order is decided by `swap` and `ordered_eviction`: another takes its place first, or the
others have a view without it; it ends last. Taken back, it stays, as long as the others count on it.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live, is_left_out, is_member
from controlplane.policy.plan import Decision, OrderOut
from controlplane.policy.relief import goes_at_once
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import answer, ended_early, of_kind
from controlplane.policy.snapshot import LIVE_REPLICA, JobSnapshot, ReplicaFact
from controlplane.protocol.states import ReplicaState, RequestKind, RequestState

RULE = "evict_request"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One answer to each that has come further."""
    answers = (_answer(snapshot, request) for request in of_kind(snapshot, RequestKind.EVICT))
    return tuple(found for found in answers if found is not None)


def _answer(snapshot: JobSnapshot, request: RequestFact) -> Decision | None:
    early = ended_early(snapshot, request, RULE)
    if early is not None:
        return early
    replica = _of(snapshot, request)
    if request.state is RequestState.TAKEN:
        return _taken(snapshot, request, replica)
    if replica is None or replica.state not in LIVE_REPLICA or not attempt_live(snapshot):
        return answer(RULE, request, RequestState.REFUSED, "It does not run any more.")
    return _take(snapshot, request, replica)


def _of(snapshot: JobSnapshot, request: RequestFact) -> ReplicaFact | None:
    """The life that it is about, unless a newer one has its slot."""
    attempt, replica = snapshot.attempt, snapshot.replica_by_index.get(request.replica or 0)
    same = attempt is not None and attempt.number == request.attempt and replica is not None
    return replica if same and replica is not None and replica.incarnation == request.incarnation else None


def _same(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[RequestFact, ...]:
    """All that are about this life and have not ended."""
    return tuple(r for r in of_kind(snapshot, RequestKind.EVICT) if _of(snapshot, r) is replica)


def _take(snapshot: JobSnapshot, request: RequestFact, replica: ReplicaFact) -> Decision:
    """Asked for again before it was looked at, the newest says how it leaves."""
    same = _same(snapshot, replica)
    if any(r.state is RequestState.OPEN and r.id > request.id and not r.withdrawn_by for r in same):
        return answer(RULE, request, RequestState.TAKEN, "It was asked for again since.")
    before = bool(replica.ordered_out) or any(r.id < request.id and not r.withdrawn_by for r in same)
    at_once = goes_at_once(replica.state, ordered_before=before)
    sentence = "It leaves once another has its place, or where none can be started beside it when a view is without it."
    if at_once:
        sentence = "It waits for no other: a view leaves it out, and its processes end last."
    order = OrderOut(
        replica=replica.index,
        incarnation=replica.incarnation,
        by=request.by,
        asked_s=request.asked_s,
        at_once=at_once,
    )
    return answer(RULE, request, RequestState.TAKEN, sentence, order)


def _taken(snapshot: JobSnapshot, request: RequestFact, replica: ReplicaFact | None) -> Decision | None:
    if replica is None:
        return answer(RULE, request, RequestState.DONE, "Its processes have ended.")
    if replica.state is ReplicaState.EVICTED or replica.state is ReplicaState.ENDED:
        return answer(RULE, request, RequestState.DONE, "Its processes have ended.") if replica.stopped else None
    if not replica.ordered_out:
        return answer(RULE, request, RequestState.REFUSED, "No agent could end its processes: it stays.")
    if request.withdrawn_by and any(r.id != request.id and not r.withdrawn_by for r in _same(snapshot, replica)):
        said = f"{request.withdrawn_by} has taken it back; it leaves all the same, as another request says."
        return answer(RULE, request, RequestState.WITHDRAWN, said)
    if request.withdrawn_by and is_member(snapshot, replica) and not is_left_out(snapshot, replica):
        stays = OrderOut(replica=replica.index, incarnation=replica.incarnation, by="")
        return answer(
            RULE, request, RequestState.WITHDRAWN, f"{request.withdrawn_by} has taken it back: it stays.", stays
        )
    return None
