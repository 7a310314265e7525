"""A replica is being relieved: start another beside it, swap the two in one view, end the old one last.

A relieved replica trains on. Its successor starts on free devices and joins as every joiner does;
caught up, it stands by, as enough compute. Then one view, which begins with a step where the pace is
known, leaves the relieved one out and promotes its successor. Nothing of the old one is ended before
that view has committed a step: until then it can come back, should its successor fail. One that dies while
its successor starts is an ordinary failure, whose place is taken already. An order of a person is
carried out also where no device is free for a successor; a slow replica then stays.
"""

from controlplane.policy import relief, ways
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    attempt_live,
    commits_until_s,
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

RULE = "swap"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one: first what ends, then the view, then what is to come of those without a successor."""
    leaving = relieved(snapshot)
    if not leaving or not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    if not installed(snapshot):
        held = tuple(replica for replica in leaving if replica.ordered_out) if too_small(snapshot) else ()
        return ordered_eviction.leave(snapshot, config, held[:1], "The others wait for more replicas")
    if actionable(snapshot, config) or doubted(snapshot, config):
        return ()
    free = relief.may_leave(snapshot)
    out = tuple(replica for replica in free if not is_member(snapshot, replica))
    if out:
        return (_retire(snapshot, config, out),) if has_committed(snapshot) else ()
    if free:
        due = snapshot.now_s >= (commits_until_s(snapshot, config) or 0.0)
        return (_swap(snapshot, config, free),) if due else ()
    lacking = min(relief.lacking(snapshot), len(leaving))
    # The first of them have successors on the way.
    return _alone(snapshot, config, leaving[-lacking] if lacking else leaving[0], lacking > 0)


def _swap(snapshot: JobSnapshot, config: PolicyConfig, free: tuple[ReplicaFact, ...]) -> Decision:
    names, begins = ", ".join(str(replica.index) for replica in free), at_step(snapshot, config)
    view, moves = ordered_eviction.leave_view(snapshot, free, f"the place of replica {names} is taken", begins=begins)
    when = f" once {begins} steps are committed" if begins is not None else ""
    return Decision(
        rule=RULE,
        choice="swap",
        reason_code="successor_caught_up",
        sentence=f"{_why(free)}. Its successor holds the state: view {view.epoch} continues{when} with"
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
        rule=ordered_eviction.RULE if replica.ordered_out else RULE,
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


def _why(replicas: tuple[ReplicaFact, ...]) -> str:
    return "; ".join(f"Replica {each.index} is relieved ({each.relieved})" for each in replicas)
