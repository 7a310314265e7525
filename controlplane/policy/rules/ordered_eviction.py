"""A person ordered a replica out: the others go on without it, then it ends, and its slot starts again.

Who trains is relieved first, which `swap` does: another starts beside it. Where nothing can be started
beside it, or it was ordered a second time, it goes at once: a view leaves it out, which begins with a step
where the pace is known, and its processes end when that view has committed one. So the others lose
no step and wait for nothing but a view. Where they could not go on without it, it waits for one that
is on its way; only where none is do its processes end first. An order is no fault: it is carried out in
every mode, is charged to no budget, and weighs nothing, as the person has.
"""

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.ends import restart_reason
from controlplane.policy.facts import (
    attempt_live,
    current_view,
    following_view,
    has_committed,
    is_left_out,
    is_member,
    live_replicas,
    tag,
    too_small,
)
from controlplane.policy.failures import actionable
from controlplane.policy.first_view import first_members
from controlplane.policy.leaving import BY, is_by_end
from controlplane.policy.plan import (
    ORDERED,
    Action,
    Alternative,
    AnnounceView,
    Decision,
    Relieve,
    SetJobState,
    SetReplicaState,
    SettleSignals,
    StopReplica,
)
from controlplane.policy.pools import why_none
from controlplane.policy.proved import Failure
from controlplane.policy.relief import is_coming
from controlplane.policy.requests import GIVE, KNOWN_END
from controlplane.policy.rules.admit_joiner import at_step
from controlplane.policy.rules.replica_failure import end_processes, eviction, places, settled_by
from controlplane.policy.slots import gives, going, room
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.policy.titles import number_of, of_failures
from controlplane.protocol.membership import View
from controlplane.protocol.states import JobState, ReplicaState

RULE = "ordered_eviction"
_NO_WAIT = "a person requested its eviction; its processes have ended"
Ids = tuple[str, ...]
AT_ONCE = "It leaves at once"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one, over all that were ordered out; where something failed as well, `replica_failure`
    answers for all of them in one view."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    failures = actionable(snapshot, config)
    if failures:
        return _ended(snapshot, config, failures)
    who = going(snapshot)
    why = AT_ONCE if all(is_by_end(snapshot, replica) for replica in who) else f"{AT_ONCE}, as requested"
    return leave(snapshot, config, who, why)


def as_ordered(replica: ReplicaFact) -> Failure:
    """What its end will be, before it has come."""
    return Failure(
        replica=replica,
        kind=ORDERED,
        proved=True,
        sentence=replica.ordered_out,
        evidence={"ordered_by": replica.ordered_out},
    )


def leave(snapshot: JobSnapshot, config: PolicyConfig, who: tuple[ReplicaFact, ...], why: str) -> tuple[Decision, ...]:
    """The next step of those that go without a successor: out of the view first, ended last."""
    ends = tuple(replica for replica in who if _nobody_waits(snapshot, config, replica))
    if ends:
        return (_end(snapshot, config, ends),)
    # While the first view is on its way its members still form: they train in a moment, or fail.
    members = tuple(r for r in who if is_member(snapshot, r) and r.state is not ReplicaState.FORMING)
    if not members:
        return ()
    alone = restart_reason(snapshot, config, tuple(map(as_ordered, members))) is not None
    if alone and is_coming(snapshot, config):
        # To end it now would cost the job its newest state.
        later = "Too few others hold the newest state yet: it leaves when another has caught up."
        return (_decided(snapshot, members, "wait", later, ()),)
    if alone or too_small(snapshot):
        return (_stop(snapshot, members, "the others cannot continue without it" if alone else "the others wait"),)
    return (_without(snapshot, config, members, why),)


def _nobody_waits(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> bool:
    """It is in no view, nor in one that this pass announces, and was in none that could still come back to it."""
    if is_member(snapshot, replica) or replica in first_members(snapshot, config):
        return False
    return not is_left_out(snapshot, replica) or has_committed(snapshot) or too_small(snapshot)


def rule_of(snapshot: JobSnapshot, who: tuple[ReplicaFact, ...]) -> str:
    """In whose name they leave: what is no person's order is no fault of anything, and opens no incident."""
    if all(gives(snapshot, replica) for replica in who):
        return GIVE
    return KNOWN_END if all(is_by_end(snapshot, replica) for replica in who) else RULE


def leave_view(
    snapshot: JobSnapshot, who: tuple[ReplicaFact, ...], reason: str, *, begins: int | None
) -> tuple[View, tuple[Action, ...]]:
    """The view without them, which begins with step `begins` (None: at once), and the moves that make it:
    nothing of them ends, and they could come back."""
    stay = (r for r in live_replicas(snapshot) if is_member(snapshot, r) and r not in who)
    view = following_view(snapshot, stay, reason, at_step=begins, left_out=who)
    out = (SetReplicaState(replica=r.index, incarnation=r.incarnation, to=ReplicaState.SUSPECT) for r in who)
    return view, (AnnounceView(view=view), *out)


def end(snapshot: JobSnapshot, config: PolicyConfig, who: tuple[Failure, ...]) -> tuple[tuple[Action, ...], Ids]:
    """Their processes end, their slots are empty, and so is what was found about them: (moves, findings)."""
    settled = settled_by(snapshot, config, who)
    return (*end_processes(who), *((SettleSignals(signal_ids=settled),) if settled else ())), settled


def _without(snapshot: JobSnapshot, config: PolicyConfig, who: tuple[ReplicaFact, ...], why: str) -> Decision:
    names, wanted = ", ".join(str(replica.index) for replica in who), snapshot.job.spec.resources.min_replicas
    few = sum(is_member(snapshot, r) and r not in who for r in live_replicas(snapshot)) < wanted
    begins = None if few else at_step(snapshot, config)
    # That an urgent job has devices of it is no fault to recover from.
    weaker = snapshot.job.state is JobState.RUNNING and not all(gives(snapshot, replica) for replica in who)
    view, moves = leave_view(snapshot, who, f"replica {names} leaves as requested", begins=begins)
    when = f" once {begins} steps are committed" if begins is not None else ""
    kept = f"nothing of replica {names} ends before that view has committed a step"
    return _decided(
        snapshot,
        who,
        "leave",
        f"{why}: view {view.epoch} continues{when} with {number_of(len(view.members), 'replica')};"
        f" {'they wait for another' if few else kept}.",
        (
            *moves,
            *_relieved_no_more(who),
            *((SetJobState(to=JobState.RECOVERING),) if weaker else ()),
        ),
    )


def _end(snapshot: JobSnapshot, config: PolicyConfig, who: tuple[ReplicaFact, ...]) -> Decision:
    """Nobody waits for it."""
    moves, settled = end(snapshot, config, tuple(map(as_ordered, who)))
    if not room(snapshot, lost=frozenset(replica.index for replica in who)):
        # Its place is taken: the slot stays empty, and says so.
        moves += tuple(Relieve(replica=r.index, incarnation=r.incarnation, reason=r.ordered_out) for r in who)
    if current_view(snapshot) is None:
        left = "there is no view yet"
    elif too_small(snapshot):
        left = "the others wait for another"
    elif any(is_left_out(snapshot, replica) for replica in who):
        left = "the view without it has committed a step"
    else:
        left = "it is in no view"
    decision = _decided(snapshot, who, "end", f"Nobody waits for it ({left}), its processes end.", moves)
    return msgspec.structs.replace(decision, signal_ids=settled, evidence={"proved": True, **decision.evidence})


def _stop(snapshot: JobSnapshot, who: tuple[ReplicaFact, ...], why: str) -> Decision:
    """Its processes end first; what that makes of the job is decided when they are gone."""
    stops = (StopReplica(replica=r.index, incarnation=r.incarnation, grace_s=0.0) for r in who)
    sentence = f"No view can leave it out ({why}): it is ended at once."
    return _decided(snapshot, who, "stop", sentence, (*_relieved_no_more(who), *stops))


def _relieved_no_more(who: tuple[ReplicaFact, ...]) -> tuple[Action, ...]:
    return tuple(Relieve(replica=r.index, incarnation=r.incarnation, reason="") for r in who)


def _decided(
    snapshot: JobSnapshot, who: tuple[ReplicaFact, ...], choice: str, sentence: str, actions: tuple[Action, ...]
) -> Decision:
    """What comes of their orders in this epoch."""
    return Decision(
        rule=rule_of(snapshot, who),
        choice=choice,
        reason_code=ORDERED,
        sentence=f"{_orders(who)}. {sentence}",
        key=f"{choice}:{','.join(map(tag, who))}:{snapshot.job.epoch}",
        actions=actions,
        evidence={"ordered_by": "; ".join(replica.ordered_out for replica in who)},
        title=of_failures(snapshot, tuple(map(as_ordered, who))),
    )


def _ended(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> tuple[Decision, ...]:
    """Processes have ended as ordered: what the membership makes of it."""
    ordered = all(failure.kind == ORDERED for failure in failures)
    if not ordered or restart_reason(snapshot, config, failures) is not None:
        return ()
    base = eviction(snapshot, config, failures)
    others = tuple(_reason(other) for other in base.alternatives)
    sentence = _sentence(snapshot, failures, base)
    name = rule_of(snapshot, tuple(failure.replica for failure in failures))
    named = name if name == KNOWN_END else RULE
    return (msgspec.structs.replace(base, rule=named, sentence=sentence, alternatives=others),)


def _reason(other: Alternative) -> Alternative:
    """Nothing failed, so that waiting was ruled out by the order alone."""
    return msgspec.structs.replace(other, why_not=_NO_WAIT) if other.action == "wait" else other


def _sentence(snapshot: JobSnapshot, failures: tuple[Failure, ...], base: Decision) -> str:
    gone = {failure.replica.index for failure in failures}
    left = sum(replica.index not in gone for replica in live_replicas(snapshot))
    orders = _orders(tuple(failure.replica for failure in failures))
    after = places(snapshot, base.actions) or why_none(snapshot, "no free device fits a replacement now")
    return f"{orders}. {number_of(left, 'replica')} {'continues' if left == 1 else 'continue'}; {after}."


def _orders(who: tuple[ReplicaFact, ...]) -> str:
    return "; ".join(
        f"Replica {replica.index} leaves{'' if replica.ordered_out.startswith(BY) else ' as requested'}"
        f" ({replica.ordered_out})"
        for replica in who
    )
