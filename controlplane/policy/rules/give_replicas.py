"""An urgent job needs devices, and this job can train without some of its replicas: they leave by a view.

The queue names them (`policy.queue.preempt`). Each is ordered out as a person would order it, without a successor: a
view leaves it out, which begins with a step, and it ends when that view has committed one (`ordered_eviction`). So the
others lose nothing, and until then the request can be withdrawn. Its slot stays empty until `grow` takes the devices
back. Never so many that fewer than `min_replicas` that hold the newest state would be left: then the rest stay.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live, holds_state, installed, is_left_out, is_member, live_replicas
from controlplane.policy.ladder import start_slots
from controlplane.policy.plan import Action, Decision, OrderOut, Scalar, SetYielded
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import GIVE, answer, ended_early, of_kind
from controlplane.policy.slots import empty_slots
from controlplane.policy.snapshot import AttemptFact, JobSnapshot, ReplicaFact
from controlplane.policy.titles import number_of
from controlplane.protocol.states import JobState, ReplicaState, RequestKind, RequestState

RULE = GIVE


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One answer: one request after the other, as each changes how many are to run."""
    for request in of_kind(snapshot, RequestKind.PREEMPT):
        found = _answer(snapshot, config, request) if request.gives else None
        if found is not None:
            return (found,)
    return ()


def _answer(snapshot: JobSnapshot, config: PolicyConfig, request: RequestFact) -> Decision | None:
    early = ended_early(snapshot, request, RULE)
    if early is not None:
        return early
    attempt = snapshot.attempt
    if attempt is None or not attempt_live(snapshot) or attempt.number != request.attempt:
        if request.state is RequestState.TAKEN:
            return answer(RULE, request, RequestState.DONE, "The attempt of these replicas has ended.")
        return answer(RULE, request, RequestState.REFUSED, "The job was started again since, or does not run.")
    if request.state is RequestState.TAKEN:
        return _taken(snapshot, request, attempt)
    who = tuple(replica for replica in _named(snapshot, request) if _may_leave(replica))
    if not who:
        return answer(RULE, request, RequestState.REFUSED, "None of these replicas trains any more.")
    if snapshot.job.state is not JobState.RUNNING:
        return answer(RULE, request, RequestState.REFUSED, f"The job is {snapshot.job.state}: it gives nothing now.")
    if _left(snapshot, who) < _least(snapshot):
        few = f"Fewer than {number_of(_least(snapshot), 'replica')} that hold the newest state would be left."
        return answer(RULE, request, RequestState.REFUSED, few)
    # While a view is on its way nobody has a step's boundary ahead at which to leave.
    if not installed(snapshot):
        return None
    empty = empty_slots(snapshot)
    return _take(request, attempt, who, snapshot, len(empty) - len(start_slots(snapshot, config, empty)))


def _take(
    request: RequestFact, attempt: AttemptFact, who: tuple[ReplicaFact, ...], snapshot: JobSnapshot, missing: int
) -> Decision:
    """`missing`: so many more slots wait for devices. They do so behind the queue now: else they would take what
    is given."""
    names, stay = ", ".join(str(replica.index) for replica in who), _left(snapshot, who)
    moves: tuple[Action, ...] = tuple(
        OrderOut(replica=each.index, incarnation=each.incarnation, by=request.by, asked_s=request.asked_s, at_once=True)
        for each in who
    )
    sentence = (
        f"Replica {names} leaves by a view and ends when it has committed a step; {number_of(stay, 'replica')}"
        f" {'trains' if stay == 1 else 'train'} on and lose nothing. It is taken back when there is room."
    )
    evidence: dict[str, Scalar] = {"gives": names, "stay": stay, "asked": attempt.replicas}
    evidence["expected_gpu_s"] = request.value
    yielded = SetYielded(number=attempt.number, replicas=attempt.yielded + missing + len(who))
    return answer(RULE, request, RequestState.TAKEN, sentence, *moves, yielded, evidence=evidence)


def _taken(snapshot: JobSnapshot, request: RequestFact, attempt: AttemptFact) -> Decision | None:
    """Done when all of them are gone; who has not left yet stays where the request is withdrawn, where no agent could
    end it, or where the others have become too few meanwhile."""
    here = tuple(replica for replica in _named(snapshot, request) if replica.state is not ReplicaState.EVICTED)
    ends = tuple(replica for replica in _named(snapshot, request) if not replica.stopped)
    if not ends:
        return answer(RULE, request, RequestState.DONE, "Their processes have ended.")
    refused = tuple(replica for replica in here if not replica.ordered_out)
    stays = tuple(replica for replica in here if is_member(snapshot, replica) and not is_left_out(snapshot, replica))
    yielded = max(0, attempt.yielded - len(refused or stays))
    back = SetYielded(number=attempt.number, replicas=yielded)
    if refused:
        return answer(RULE, request, RequestState.REFUSED, "No agent could end their processes: they stay.", back)
    few = _left(snapshot, here) < _least(snapshot)
    if not stays or not (request.withdrawn_by or few):
        return None
    moves = tuple(OrderOut(replica=each.index, incarnation=each.incarnation, by="") for each in stays)
    if request.withdrawn_by:
        words = f"{request.withdrawn_by} has taken it back: what has not left stays."
        return answer(RULE, request, RequestState.WITHDRAWN, words, *moves, back)
    words = "Too few others hold the newest state by now: what has not left stays."
    return answer(RULE, request, RequestState.REFUSED, words, *moves, back)


def _named(snapshot: JobSnapshot, request: RequestFact) -> tuple[ReplicaFact, ...]:
    """Those that it names, as far as no newer life has their slots."""
    found = (snapshot.replica_by_index.get(index) for index, _ in request.gives)
    lives = set(request.gives)
    return tuple(each for each in found if each is not None and (each.index, each.incarnation) in lives)


def _may_leave(replica: ReplicaFact) -> bool:
    return replica.state in (ReplicaState.ACTIVE, ReplicaState.SPARE) and not replica.ordered_out


def _left(snapshot: JobSnapshot, who: tuple[ReplicaFact, ...]) -> int:
    """How many others hold the newest state and stay."""
    others = (replica for replica in live_replicas(snapshot) if replica not in who and not replica.ordered_out)
    return sum(holds_state(snapshot, replica) for replica in others)


def _least(snapshot: JobSnapshot) -> int:
    return max(1, snapshot.job.spec.resources.min_replicas)
