"""A replica is being relieved: start another beside it, swap the two in one view, end the old one last.

A relieved replica trains on. Its successor starts on free devices and joins as every joiner does;
caught up, it stands by, as enough compute. Then one view, which begins with a step where the pace is
known, leaves the relieved one out and promotes its successor. Nothing of the old one is ended before
that view has committed a step: until then it can come back, should its successor fail. One that dies while
its successor starts is an ordinary failure, whose place is taken already. An order of a person is
carried out also where no device is free for a successor; a slow replica then stays. So does one that is as
fast as the others again before that view: its successor is not needed then, and leaves in its stead.
"""

from controlplane.policy import relief, slow, ways
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    attempt_live,
    commits_until_s,
    contributes,
    has_committed,
    installed,
    is_left_out,
    is_member,
    tag,
    too_small,
)
from controlplane.policy.failures import actionable, doubted
from controlplane.policy.plan import (
    ORDERED,
    Decision,
    Relieve,
    StartReplica,
)
from controlplane.policy.pools import why_none
from controlplane.policy.proved import Failure
from controlplane.policy.rules import ordered_eviction
from controlplane.policy.rules.admit_joiner import at_step
from controlplane.policy.rules.replica_failure import places
from controlplane.policy.slots import relieved
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.policy.titles import number_of, of_failures

RULE, NOT_NEEDED = "swap", "not_needed"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one: first what ends, then the view, then what is to come of those without a successor."""
    leaving, extra = relieved(snapshot), relief.surplus(snapshot)
    if not leaving and extra is None:
        return ()
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    if not installed(snapshot):
        held = tuple(replica for replica in leaving if replica.ordered_out) if too_small(snapshot) else ()
        return ordered_eviction.leave(snapshot, config, held[:1], "The others wait for more replicas")
    if actionable(snapshot, config) or doubted(snapshot, config):
        return ()
    trains = tuple(each for each in leaving if not each.ordered_out and contributes(snapshot, each))
    well = next((each for each in trains if not slow.blaming(snapshot, each)), None)
    if well is not None:
        return (_keep(snapshot, well),)
    if extra is not None:
        return (_dismiss(snapshot, extra),)
    free = relief.may_leave(snapshot)
    out = tuple(replica for replica in free if not is_member(snapshot, replica))
    if out:
        return (_retire(snapshot, config, out),) if has_committed(snapshot) else ()
    if any(each in trains and not _is_slow_now(snapshot, each) for each in free):
        return ()  # It is measured again first.
    if free:
        due = snapshot.now_s >= (commits_until_s(snapshot, config) or 0.0)
        return (_swap(snapshot, config, free),) if due else ()
    lacking = min(relief.lacking(snapshot), len(leaving))
    # The first of them have successors on the way.
    return _alone(snapshot, config, leaving[-lacking] if lacking else leaving[0], lacking > 0)


def _is_slow_now(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    return any(slow.is_fresh(snapshot, signal) for signal in slow.blaming(snapshot, replica))


def _swap(snapshot: JobSnapshot, config: PolicyConfig, free: tuple[ReplicaFact, ...]) -> Decision:
    names, begins = ", ".join(str(replica.index) for replica in free), at_step(snapshot, config)
    view, moves = ordered_eviction.leave_view(snapshot, free, f"the place of replica {names} is taken", begins=begins)
    when = f" once {begins} steps are committed" if begins is not None else ""
    trains = any(contributes(snapshot, replica) for replica in free)
    others = "Its successor holds the state" if trains else "Enough others hold the state"
    return Decision(
        rule=RULE,
        choice="swap",
        reason_code="successor_caught_up" if trains else NOT_NEEDED,
        sentence=f"{_why(free)}. {others}: view {view.epoch} continues{when} with"
        f" {number_of(len(view.members), 'replica')}; nothing of replica {names} ends before that view has committed"
        " a step.",
        key=f"swap:{','.join(map(tag, free))}:{view.epoch}",
        actions=moves,
        evidence={"members": len(view.members), **({"at_step": begins} if begins is not None else {})},
        routine=True,
    )


def _retire(snapshot: JobSnapshot, config: PolicyConfig, out: tuple[ReplicaFact, ...]) -> Decision:
    """The view without them trains: their processes end, and what was found about them."""
    kind = ORDERED if all(each.ordered_out for each in out) else "place_taken"
    ended = tuple(Failure(replica=each, kind=kind, proved=True, sentence=each.relieved) for each in out)
    moves, settled = ordered_eviction.end(snapshot, config, ended)
    names = ", ".join(str(each.index) for each in out)
    return Decision(
        rule=RULE,
        choice="retire",
        reason_code=kind,
        sentence=f"The view without replica {names} has committed a step, its place is taken: its processes end.",
        key=f"retire:{','.join(tag(each) for each in out)}",
        actions=moves,
        evidence={"proved": True, "relieved_for": "; ".join(each.relieved for each in out)},
        signal_ids=settled,
    )


def _alone(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, lacking: bool) -> tuple[Decision, ...]:
    """No successor holds the state yet: start one that is `lacking`, or wait for one that is coming; else
    an order is carried out all the same."""
    if is_left_out(snapshot, replica):
        return ()  # It comes back first.
    why = relief.cannot(snapshot, replica)
    if not why and lacking:
        start = relief.successor(snapshot, config, replica)
        if start is not None:
            return (_start(snapshot, replica, start),)
    # One that was left out, and catches up again, is as before when it has.
    waits = not why or not replica.ordered_out or bool(replica.times_out)
    if waits and relief.is_coming(snapshot, config):
        return ()
    why = why or why_none(snapshot, "no device is free for another replica, or its starts came to nothing")
    if replica.ordered_out:
        return ordered_eviction.leave(snapshot, config, (replica,), f"Nothing can be started beside it ({why})")
    return (_stay(replica, why, snapshot.job.epoch),)


def takes_its_place(snapshot: JobSnapshot, start: StartReplica) -> str:
    """What comes of a replica beside which another one starts, in words."""
    where = places(snapshot, (start,), "beside it")
    return f"It trains on until another has caught up and takes its place: {where}."


def _start(snapshot: JobSnapshot, replica: ReplicaFact, start: StartReplica) -> Decision:
    """As ordered, for a slow one is relieved with its successor's start."""
    return Decision(
        rule=ordered_eviction.rule_of(snapshot, (replica,)) if replica.ordered_out else RULE,
        choice=ways.BESIDE,
        reason_code=ORDERED if replica.ordered_out else "relieved",
        sentence=f"{_why((replica,))}. {takes_its_place(snapshot, start)}",
        key=f"beside:{start.replica}.{start.incarnation}",
        actions=(
            start,
            Relieve(replica=replica.index, incarnation=replica.incarnation, reason=replica.relieved),
        ),
        evidence={"ordered_by": replica.ordered_out},
        title=of_failures(snapshot, (ordered_eviction.as_ordered(replica),)) if replica.ordered_out else "",
    )


def _stay(replica: ReplicaFact, why: str, epoch: int) -> Decision:
    return Decision(
        rule=RULE,
        choice="stay",
        reason_code="no_successor",
        sentence=f"{_why((replica,))}. No other takes its place ({why}): it stays.",
        key=f"stay:{tag(replica)}:{epoch}",
        actions=(Relieve(replica=replica.index, incarnation=replica.incarnation, reason=""),),
    )


def _keep(snapshot: JobSnapshot, replica: ReplicaFact) -> Decision:
    """Its finding is over, or says by now that no device is to blame."""
    return Decision(
        rule=RULE,
        choice="keep",
        reason_code="slow_no_more",
        sentence=f"{_why((replica,))}. It holds nobody up any more, or its device is not to blame: it keeps its place.",
        key=f"keep:{tag(replica)}:{snapshot.job.epoch}:{snapshot.job.committed_step}",
        actions=(Relieve(replica=replica.index, incarnation=replica.incarnation, reason=""),),
    )


def _dismiss(snapshot: JobSnapshot, replica: ReplicaFact) -> Decision:
    """Whom it was to relieve keeps its place."""
    assert snapshot.attempt is not None, "there is one more than it was placed with"
    why = f"{number_of(snapshot.attempt.replicas, 'replica')} were placed, and none of them leaves"
    return Decision(
        rule=RULE,
        choice="dismiss",
        reason_code=NOT_NEEDED,
        sentence=f"Replica {replica.index} is not needed ({why}): it ends when enough others hold the state.",
        key=f"dismiss:{tag(replica)}:{snapshot.job.epoch}:{snapshot.job.committed_step}",
        actions=(Relieve(replica=replica.index, incarnation=replica.incarnation, reason=f"not needed: {why}"),),
    )


def _why(replicas: tuple[ReplicaFact, ...]) -> str:
    return "; ".join(f"Replica {each.index} is relieved ({each.relieved})" for each in replicas)
