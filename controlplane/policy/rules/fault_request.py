"""A person asks for a fault in a rank, to rehearse: it is given where the job allows it, and told when it was."""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live
from controlplane.policy.plan import Decision, InjectFault
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import SUCCEEDED, answer, ended_early, of_kind
from controlplane.policy.snapshot import LIVE_REPLICA, JobSnapshot
from controlplane.protocol.states import RequestKind, RequestState

RULE = "fault_request"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One answer to each that has come further."""
    answers = (_answer(snapshot, request) for request in of_kind(snapshot, RequestKind.FAULT))
    return tuple(found for found in answers if found is not None)


def why_not(snapshot: JobSnapshot, request: RequestFact) -> str:
    """Why the rank gets no fault, in words that end a sentence; "" where it may have it."""
    if not snapshot.job.spec.resiliency.allow_faults:
        return "the job does not allow faults"
    replica, attempt = snapshot.replica_by_index.get(request.replica or 0), snapshot.attempt
    if attempt is None or attempt.number != request.attempt or not attempt_live(snapshot):
        return "it does not run any more"
    if replica is None or replica.incarnation != request.incarnation or replica.state not in LIVE_REPLICA:
        return "it does not run any more"
    return ""


def _answer(snapshot: JobSnapshot, request: RequestFact) -> Decision | None:
    early = ended_early(snapshot, request, RULE)
    if early is not None:
        return early
    if request.state is RequestState.OPEN:
        return _give(snapshot, request)
    if request.carried == SUCCEEDED:
        return answer(RULE, request, RequestState.DONE, "Its agent has given it.")
    if request.carried:
        return answer(RULE, request, RequestState.REFUSED, f"Its agent did not give it: {request.carried}.")
    if snapshot.now_s >= request.valid_until_s:
        return answer(RULE, request, RequestState.LAPSED, "Its agent has not said in time that it was given.")
    return None


def _give(snapshot: JobSnapshot, request: RequestFact) -> Decision:
    why = why_not(snapshot, request)
    if why:
        return answer(RULE, request, RequestState.REFUSED, f"{why[:1].upper()}{why[1:]}.")
    fault = InjectFault(
        replica=request.replica or 0,
        incarnation=request.incarnation or 0,
        rank=request.rank or 0,
        fault=request.fault,
        value=request.value,
        request=request.id,
    )
    return answer(RULE, request, RequestState.TAKEN, "It is on its way.", fault)
