"""A node is known to leave: everything of this job on it leaves before, in the cheapest way that fits in what is left.

1. *Relieved*: another starts beside it on a node that stays, catches up, and one view swaps the two.
2. *Leaves*: a view leaves it out where `min_replicas` others that hold the newest state train on.
3. *Yields*: the job's ranks save and leave, and it waits in the queue; nothing that is saved is lost.

Each has its price, and takes as long as this job was measured to take. A notice that cannot be moved is acted on at
once where another can be started; all else begins so early that it is done by then, and no earlier, as until then
devices may become free. Replicas are ordered out as a person would (`swap`, `ordered_eviction` carry it out). No
fault, no incident, no budget. A notice that is withdrawn takes the order back.
"""

from typing import NamedTuple

import msgspec

from controlplane.policy import leaving, prices, relief
from controlplane.policy.config import PolicyConfig
from controlplane.policy.ends import restart_reason
from controlplane.policy.facts import (
    attempt_live,
    holds_state,
    installed,
    is_left_out,
    is_member,
    live_replicas,
    tag,
)
from controlplane.policy.failures import actionable, doubted
from controlplane.policy.known_end import KnownEnd
from controlplane.policy.plan import (
    PREEMPTED,
    Action,
    Alternative,
    Decision,
    EndAttempt,
    OrderOut,
    Scalar,
    SetJobState,
)
from controlplane.policy.requests import KNOWN_END, begun, parks, why_over, yielded
from controlplane.policy.rules.lifecycle import parked_words
from controlplane.policy.rules.ordered_eviction import as_ordered
from controlplane.policy.rules.preempt_request import YIELDS, newest_kept
from controlplane.policy.snapshot import JobSnapshot, NodeFact, ReplicaFact
from controlplane.policy.titles import number_of
from controlplane.protocol.states import EndSource, JobState

RULE = KNOWN_END
RELIEVE, LEAVE, YIELD = "relieve", "leave", "yield"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """`needs_s` and `lead_s`: see `leaving`; `bar`: why it cannot be taken, "" where it can."""

    name: str
    cost_gpu_s: float
    needs_s: float
    lead_s: float
    bar: str = ""


class Case(NamedTuple):
    """One replica on a node that leaves, with its ways, the cheapest first."""

    replica: ReplicaFact
    node: NodeFact
    end: KnownEnd
    ways: tuple[Way, ...]


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """For each replica concerned what is done now, or (once) what will be; the whole job's end stands for all."""
    stays = tuple(_stays(snapshot, replica) for replica in live_replicas(snapshot) if _may_stay(snapshot, replica))
    if stays or not attempt_live(snapshot) or why_over(snapshot):
        return stays
    gone: tuple[ReplicaFact, ...] = tuple(each for each in live_replicas(snapshot) if _goes(each))
    found: list[Decision] = []
    begun = False
    for replica in _concerned(snapshot):
        case = _case(snapshot, config, replica, gone, begun=begun)
        way = _choose(snapshot, case)
        if way.name == RELIEVE and replica.relieved:
            continue  # Another is on its way.
        if not _is_due(snapshot, case, way):
            found.append(_plan(snapshot, case, way))
        elif way.name == YIELD:
            return (_yield(snapshot, case, way),)
        elif not (replica.ordered_out and _goes(replica)):
            found.append(_leave(snapshot, case, way))
            begun = begun or way.name == RELIEVE
            gone += (replica,) if way.name == LEAVE else ()
    return tuple(found)


def _concerned(snapshot: JobSnapshot) -> list[ReplicaFact]:
    """Who is on a node that leaves and is not out of the view, the first to leave first; nobody after the end: what is
    there then has failed, and is judged as that."""
    found = []
    for replica in live_replicas(snapshot):
        known = leaving.end_of(snapshot, replica)
        if known is not None and known[1].leaves_s > snapshot.now_s and not is_left_out(snapshot, replica):
            found.append((known[1].leaves_s, replica.index, replica))
    return [replica for _, _, replica in sorted(found, key=lambda each: each[:2])]


def _goes(replica: ReplicaFact) -> bool:
    """It is ordered out, and waits for no successor."""
    return bool(replica.ordered_out) and not replica.relieved


def _case(
    snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, gone: tuple[ReplicaFact, ...], *, begun: bool
) -> Case:
    known = leaving.end_of(snapshot, replica)
    assert known is not None, "it is concerned"
    needs, times = leaving.needs_of(snapshot, config), prices.times_of(snapshot, config)
    asked = max(1, snapshot.attempt.replicas if snapshot.attempt is not None else 1)
    stakes = prices.Stakes(gpus=replica.world_size, asked=asked, missing=1, started=0, placeable=0)
    saved = msgspec.structs.replace(times, at_risk_s=0.0)
    ways = (
        Way(
            name=RELIEVE,
            cost_gpu_s=prices.beside_s(times, stakes, late_s=0.0),
            needs_s=needs.relieve_s,
            lead_s=leaving.lead_s(needs.relieve_s),
            bar=_no_relief(snapshot, config, replica, begun=begun),
        ),
        Way(
            name=LEAVE,
            cost_gpu_s=prices.evict_s(times, stakes),
            needs_s=needs.leave_s,
            lead_s=leaving.lead_s(needs.leave_s),
            bar=_no_leave(snapshot, config, replica, gone),
        ),
        Way(
            name=YIELD,
            cost_gpu_s=prices.queue_s(saved, stakes),
            needs_s=needs.save_s,
            lead_s=leaving.save_lead_s(needs),
        ),
    )
    return Case(replica, *known, tuple(sorted(ways, key=lambda way: way.cost_gpu_s)))


def _no_relief(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, *, begun: bool) -> str:
    """Why no other can be started beside it now; "": one can, or is on its way."""
    if replica.relieved:
        return ""
    if why := relief.cannot(snapshot, replica):
        return why
    if not installed(snapshot) or actionable(snapshot, config) or doubted(snapshot, config):
        return "the job deals with something else"
    if begun or relief.lacking(snapshot) > 0:
        return "another is started for another replica first"
    if relief.successor(snapshot, config, replica) is None:
        return "no device is free for another replica on a node that stays"
    return ""


def _no_leave(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, gone: tuple[ReplicaFact, ...]) -> str:
    """Why the others cannot go on without it, and those that are `gone` before; "": they can."""
    out = (*(each for each in gone if each is not replica), replica)
    if not is_member(snapshot, replica) and not _forms(snapshot):
        return ""
    stay = [each for each in live_replicas(snapshot) if each not in out]
    count = sum(_forms(snapshot) or holds_state(snapshot, each) for each in stay)
    if count < max(1, snapshot.job.spec.resources.min_replicas):
        return f"without it {number_of(count, 'replica')} would be left that could train on"
    if restart_reason(snapshot, config, tuple(map(as_ordered, out))) is not None:
        return "too few others hold the newest state"
    return ""


def _forms(snapshot: JobSnapshot) -> bool:
    """Its first view has not come: nobody is a member of anything."""
    return not snapshot.role_by_member


def _choose(snapshot: JobSnapshot, case: Case) -> Way:
    """The cheapest that can be taken and is done in time; where none is, the one that is done first."""
    left_s = case.end.leaves_s - snapshot.now_s
    able = [way for way in case.ways if not way.bar]
    fits = [way for way in able if way.needs_s <= left_s or (way.name == RELIEVE and _begun(snapshot, case, left_s))]
    return fits[0] if fits else min(able, key=lambda way: way.needs_s)


def _begun(snapshot: JobSnapshot, case: Case, left_s: float) -> bool:
    """Another is on its way already: it may come as long as there is time for another way."""
    after = next(way for way in case.ways if way.name == LEAVE)
    other = after if not after.bar else next(way for way in case.ways if way.name == YIELD)
    return bool(case.replica.relieved) and left_s > other.lead_s


def _is_due(snapshot: JobSnapshot, case: Case, way: Way) -> bool:
    """It begins now. A notice is acted on at once where another can be started: its end does not move."""
    if way.name == RELIEVE and case.end.source is EndSource.SPOT:
        return True
    return case.end.leaves_s - snapshot.now_s <= way.lead_s


def _leave(snapshot: JobSnapshot, case: Case, way: Way) -> Decision:
    replica, at_once = case.replica, way.name == LEAVE
    move = OrderOut(
        replica=replica.index,
        incarnation=replica.incarnation,
        by=f"{leaving.BY}: {case.node.name}, {case.end.reason}",
        asked_s=case.end.said_s,
        at_once=at_once,
    )
    how = (
        "leaves by a view, and the others train on without it"
        if at_once
        else "trains on until another has caught up on a node that stays and takes its place"
    )
    return _decided(snapshot, case, way, f"Replica {replica.index} {how}", (move,), "")


def _plan(snapshot: JobSnapshot, case: Case, way: Way) -> Decision:
    in_s = max(0.0, case.end.leaves_s - snapshot.now_s - way.lead_s)
    how = {
        RELIEVE: "another takes its place",
        LEAVE: "a view leaves it out",
        YIELD: "the job saves and yields its devices",
    }[way.name]
    what = f"Replica {case.replica.index}: {how}; that begins in {in_s:.0f} s, unless a cheaper way opens"
    return _decided(snapshot, case, way, what, (), "plan:")


def _yield(snapshot: JobSnapshot, case: Case, way: Way) -> Decision:
    """SIGTERM, save, leave; SIGKILL when the node leaves and no later."""
    attempt = snapshot.attempt
    assert attempt is not None, "an attempt runs"
    left_s = max(0.0, case.end.leaves_s - snapshot.now_s)
    newer = max(0, snapshot.job.committed_step - newest_kept(snapshot))
    trains, taken = snapshot.job.state in YIELDS, begun(snapshot)
    waits = yielded(taken) if taken else (SetJobState(to=JobState.PREEMPTED if trains else JobState.PENDING),)
    what = _kept(snapshot, newer, way.needs_s, left_s)
    if by := parks(taken):
        what += f"; then it is {parked_words(snapshot.job.name, by)}"
    moves = (EndAttempt(number=attempt.number, grace_s=left_s), *waits)
    decision = _decided(snapshot, case, way, what, moves, "")
    devices = sum(replica.world_size for replica in live_replicas(snapshot))
    evidence: dict[str, Scalar] = {"newer_steps": newer, "devices": devices}
    key = f"{RULE}:yield:{attempt.number}"
    return msgspec.structs.replace(decision, evidence=decision.evidence | evidence, key=key)


def _kept(snapshot: JobSnapshot, newer: int, needs_s: float, left_s: float) -> str:
    """What becomes of the `newer` steps. Ranks save at the end of a step: between two views there is none."""
    if newer and not installed(snapshot):
        steps = number_of(newer, "step")
        return f"The job's ranks leave, and it waits in the queue; they wait for a view, and {steps} may be lost"
    what = f"The job's ranks save {number_of(newer, 'step')} and leave, and it waits in the queue"
    if needs_s > left_s and newer:
        what += f"; a save takes up to {needs_s:.0f} s: what is not saved by then is lost"
    return what


def _decided(
    snapshot: JobSnapshot, case: Case, way: Way, what: str, actions: tuple[Action, ...], mark: str
) -> Decision:
    """With its price, what is left, and why no cheaper way is taken."""
    left_s = case.end.leaves_s - snapshot.now_s
    cheaper = [each for each in case.ways if each.cost_gpu_s < way.cost_gpu_s]
    reasons = "; ".join(f"not {_NAMES[each.name]}, as {_why_not(each, left_s)}" for each in cheaper)
    where = leaving.words(snapshot, case.node, case.end)
    evidence: dict[str, Scalar] = {
        "node": case.node.name,
        "source": str(case.end.source),
        "way": way.name,
        "left_s": round(left_s, 3),
        "needs_s": round(way.needs_s, 3),
    }
    return Decision(
        rule=RULE,
        choice=f"{'plan_' if mark else ''}{way.name}",
        reason_code=PREEMPTED if way.name == YIELD else "node_leaves",
        sentence=f"{where}. {what}{f' ({reasons})' if reasons else ''}.",
        key=f"{RULE}:{mark}{case.end.id}:{case.end.leaves_s:.0f}:{tag(case.replica)}:{way.name}",
        actions=actions,
        evidence=evidence,
        alternatives=tuple(
            Alternative(
                action=each.name,
                cost_gpu_s=None if each.bar else each.cost_gpu_s,
                why_not=_why_not(each, left_s) if each in cheaper else "costs more",
            )
            for each in case.ways
            if each is not way
        ),
        cost_gpu_s=way.cost_gpu_s,
        routine=not actions,
    )


_NAMES = {RELIEVE: "relieved", LEAVE: "left out by a view", YIELD: "saved as a whole"}


def _why_not(way: Way, left_s: float) -> str:
    return way.bar or f"that takes {way.needs_s:.0f} s and {left_s:.0f} s are left"


def _may_stay(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """None of its nodes leaves any more, and the others count on it still."""
    back = leaving.is_by_end(snapshot, replica) and leaving.end_of(snapshot, replica) is None
    return back and is_member(snapshot, replica) and not is_left_out(snapshot, replica)


def _stays(snapshot: JobSnapshot, replica: ReplicaFact) -> Decision:
    return Decision(
        rule=RULE,
        choice="stay",
        reason_code="notice_withdrawn",
        sentence=f"Replica {replica.index} was to leave ({replica.ordered_out}); its node stays after all: so does it.",
        key=f"{RULE}:stay:{tag(replica)}:{snapshot.job.epoch}:{snapshot.job.committed_step}",
        actions=(OrderOut(replica=replica.index, incarnation=replica.incarnation, by=""),),
        evidence={"replica": replica.index},
    )
