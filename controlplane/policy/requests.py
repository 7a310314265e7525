"""What rules that answer people's requests share: which are open, how an answer looks, when to look again.

A request is a fact. A rule answers it with a decision, whose sentence is the answer; the decision changes
the request's state (`policy.transitions.REQUEST`) in the same transaction as whatever carries it out. No request
is charged to a budget, none is a fault, and each is answered in every mode, as a person has weighed it.
"""

from collections.abc import Iterator, Mapping

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live
from controlplane.policy.plan import Action, AnswerRequest, Decision, ParkJob, Scalar, SetJobState
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.timeouts import grace_needed_s
from controlplane.protocol.states import JobState, RequestKind, RequestState

SUCCEEDED = "succeeded"
GIVE = "give_replicas"
"""The rule that answers a preemption of some replicas; the steps of their eviction are its decisions too."""
KNOWN_END = "known_end"
"""The rule that has replicas leave a node before it leaves; the steps of their eviction are its decisions too."""
RULES = (GIVE, KNOWN_END, "evict_request", "drain_request", "checkpoint_request", "fault_request", "resume_request")
"""Their decisions belong to no incident: they are about no fault."""


def of_kind(snapshot: JobSnapshot, kind: RequestKind) -> tuple[RequestFact, ...]:
    """Those that have not ended, oldest first."""
    return tuple(request for request in snapshot.requests if request.kind is kind)


def begun(snapshot: JobSnapshot) -> tuple[RequestFact, ...]:
    """Preemptions of the whole job that it has begun with, and that nobody has taken back: whatever ends its attempt
    without ending the job ends it for them, see `yielded`."""
    whole = (request for request in of_kind(snapshot, RequestKind.PREEMPT) if not request.gives)
    return tuple(each for each in whole if each.state is RequestState.TAKEN and not each.withdrawn_by)


def parks(requests: tuple[RequestFact, ...]) -> str:
    """Which of the persons parks it, and why; "" where the queue alone asks."""
    return next((request.by for request in requests if not request.urgent), "")


def yielded(requests: tuple[RequestFact, ...]) -> tuple[Action, ...]:
    """With the end of its attempt the job has yielded its devices to these requests. Where it only waited for devices
    its next attempt would have to end for them as soon as it starts."""
    by = parks(requests)
    return (
        SetJobState(to=JobState.PREEMPTED),
        *((ParkJob(by=by),) if by else ()),
        *(AnswerRequest(request=request.id, to=RequestState.DONE) for request in requests),
    )


def why_over(snapshot: JobSnapshot) -> str:
    """Why nothing that is asked of this job begins any more; "" where it may."""
    if snapshot.job.finished:
        return "all steps of the job are committed"
    if snapshot.job.cancel_requested:
        return "the job is being cancelled"
    return ""


def ended_early(snapshot: JobSnapshot, request: RequestFact, rule: str) -> Decision | None:
    """The answer to a request that waits no longer: withdrawn, lapsed, or of a job that is over; else None."""
    if request.state is not RequestState.OPEN:
        return None
    if request.withdrawn_by:
        return answer(rule, request, RequestState.WITHDRAWN, f"{request.withdrawn_by} has taken it back.")
    if snapshot.now_s >= request.valid_until_s:
        valid_s = request.valid_until_s - request.asked_s
        return answer(rule, request, RequestState.LAPSED, f"Nothing could be begun within {valid_s:.0f} s.")
    why = why_over(snapshot)
    return answer(rule, request, RequestState.REFUSED, f"{why[:1].upper()}{why[1:]}.") if why else None


def answer(
    rule: str,
    request: RequestFact,
    to: RequestState,
    sentence: str,
    *actions: Action,
    evidence: Mapping[str, Scalar] | None = None,
) -> Decision:
    """The decision that moves the request to this state; the moves that carry it out come first."""
    return Decision(
        rule=rule,
        choice=str(to),
        reason_code="asked",
        sentence=f"{asked(request)}. {sentence}",
        key=f"request:{request.id}:{to}",
        actions=(*actions, AnswerRequest(request=request.id, to=to)),
        evidence={"request": request.id, "who": request.who, **(evidence or {})},
        routine=True,
    )


def asked(request: RequestFact) -> str:
    """What was asked for, in words that begin a sentence."""
    match request.kind:
        case RequestKind.EVICT:
            what = f"Replica {request.replica} is to leave"
        case RequestKind.CHECKPOINT:
            what = "A checkpoint is to be saved"
        case RequestKind.DRAIN:
            what = "The node is to be emptied"
        case RequestKind.FAULT:
            what = f"Rank {request.rank} of replica {request.replica} is to have the fault {request.fault}"
        case RequestKind.PREEMPT if request.gives:
            names = ", ".join(str(index) for index, _ in request.gives)
            return f"{request.urgent} needs the devices of replica {names} ({request.reason})"
        case RequestKind.PREEMPT if request.urgent:
            return f"{request.urgent} needs its devices ({request.reason})"
        case RequestKind.PREEMPT:
            what = "It is to save, yield its devices and wait"
        case RequestKind.RESUME:
            what = "It is to continue"
    return f"{what} ({request.by})"


def grace_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """Seconds that a job has to save before it yields: what its spec gives, or what its saves are known to need."""
    given_s = snapshot.job.spec.scheduling.preempt_grace_s
    return max(given_s, grace_needed_s(snapshot.learned.save_p95_s)) or config.save_first_s


def moments(snapshot: JobSnapshot, config: PolicyConfig) -> Iterator[float]:
    """Server seconds at which a request must be looked at though nothing rings."""
    for request in snapshot.requests:
        yield request.valid_until_s
        if request.kind is RequestKind.PREEMPT and request.taken_s is not None:
            yield request.taken_s + grace_s(snapshot, config)
        if request.kind is RequestKind.DRAIN and attempt_live(snapshot):
            yield snapshot.now_s + config.capacity_retry_s
