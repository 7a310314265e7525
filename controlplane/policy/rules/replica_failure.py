"""A replica failed: go on without it at once, and start its next incarnation elsewhere.

1. Find the failures that may be acted on (evidence, witness, governor).
2. If too few contributors would be left, leave it to `restart`.
3. Cost every way out in GPU-seconds; say why the others were not taken.
4. A look at what hangs, one new view without all the failed ones, their processes ended,
   their slots started again where there are devices, their nodes cordoned if the hardware
   is to blame. Failures of different causes are decisions of their own (`apart`): the first carries the view.
"""

from collections.abc import Iterable

import msgspec

from controlplane.policy import ways
from controlplane.policy.apart import parts_of, share, together
from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import Hold, is_held, why_held
from controlplane.policy.ends import restart_reason
from controlplane.policy.facts import (
    about,
    attempt_live,
    current_view,
    following_view,
    is_correlated_failure,
    is_member,
    live_replicas,
    node_name,
    signals_of,
    tag,
)
from controlplane.policy.failures import actionable, held
from controlplane.policy.ladder import in_view, out_of_service, stays_open
from controlplane.policy.plan import (
    ORDERED,
    Action,
    AnnounceView,
    Decision,
    GatherStacks,
    Scalar,
    SetJobState,
    SetNodeState,
    SetReplicaState,
    SettleSignals,
    StartReplica,
    StopReplica,
)
from controlplane.policy.proved import Failure
from controlplane.policy.recall import as_before
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.titles import list_of, number_of, of_failures, short
from controlplane.protocol.diagnostics import STACKS
from controlplane.protocol.states import JobState, ReplicaState

RULE = "replica_failure"
STAYING = with_trait(Trait.STAYS)
COLLECT = "collect_stacks"
TAKEN_BY_OTHERS = "the free devices are taken by what else failed at once"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One view without all failed replicas, a decision for each cause, and one hold for a person."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    failures = actionable(snapshot, config)
    decisions = _hold(snapshot, config)
    ordered = all(failure.kind == ORDERED for failure in failures)
    if not failures or ordered or restart_reason(snapshot, config, failures) is not None:
        return decisions
    case = ways.case_of(snapshot, config, failures)
    parts = parts_of(snapshot, failures, {start.replica for start in case.starts})
    hung = tuple(part for part in parts if any(failure.hung for failure in part))
    stacks = (_stacks_of(snapshot, part, beside=part is hung[0]) for part in hung if part is not parts[0])
    return (*stacks, *(_answer(case, part, parts) for part in parts), *decisions)


def eviction(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> Decision:
    """Go on without these replicas, in one decision; their slots start again where there are devices."""
    return _answer(ways.case_of(snapshot, config, failures), failures, (failures,))


def _answer(case: ways.Case, part: tuple[Failure, ...], parts: tuple[tuple[Failure, ...], ...]) -> Decision:
    """What is done about the failures of one cause. The first part carries the view without all of them."""
    snapshot, config, first = case.snapshot, case.config, part is parts[0]
    starts = _starts_of(case, part)
    portion = share(part, case.failures)
    found = tuple(_portion(way, portion) for way in ways.ways_out(case))
    choice = _choice(case, starts)
    taken = next(way for way in found if way.action == choice)
    settled = settled_by(snapshot, config, part, broken=first)
    members = _view(case) if first else ()
    return Decision(
        rule=RULE,
        choice=choice,
        reason_code=part[0].kind if len(part) == 1 else "several_failures",
        sentence=_sentence(case, part, starts) + (_back(case) if first else ""),
        key="evict:" + ",".join(tag(failure.replica) for failure in part),
        actions=(
            *(look_first(part) if first else ()),
            *members,
            *end_processes(part),
            *_nodes(case, part, parts),
            *starts,
            *(_job(snapshot) if first else ()),
            *((SettleSignals(signal_ids=settled),) if settled else ()),
        ),
        evidence=_evidence(part) | together(part, case.failures),
        alternatives=ways.alternatives(found, taken, because=_because(case, starts)),
        signal_ids=settled,
        cost_gpu_s=taken.cost_gpu_s,
        title=of_failures(snapshot, part),
    )


def _stacks_of(snapshot: JobSnapshot, part: tuple[Failure, ...], *, beside: bool) -> Decision:
    """Of what hangs in a part that carries no view: taken before the view that ends it is sent."""
    names = list_of([str(failure.replica.index) for failure in part if failure.hung], "replica")
    return Decision(
        rule=RULE,
        choice=COLLECT,
        reason_code=part[0].kind,
        sentence=f"{_causes(part)}. The stacks of {names} are collected before anything of it ends.",
        key="stacks:" + ",".join(tag(failure.replica) for failure in part),
        actions=look_first(part, beside=beside),
        evidence=_evidence(part),
        signal_ids=tuple(sorted({signal for failure in part for signal in failure.signal_ids})),
        title=of_failures(snapshot, part),
    )


def _portion(way: ways.Way, portion: float) -> ways.Way:
    """The price of the moment is paid once: each of its causes carries its part."""
    cost = None if way.cost_gpu_s is None else way.cost_gpu_s * portion
    return msgspec.structs.replace(way, cost_gpu_s=cost)


def _because(case: ways.Case, starts: tuple[StartReplica, ...]) -> str:
    """What rules out a way that would be cheaper."""
    if any(failure.kind == ORDERED for failure in case.failures):
        return "a person's request is carried out as it was made"
    if case.starts and not starts:
        return TAKEN_BY_OTHERS
    return "those who hold the newest state are never ended while enough of them are left"


def _choice(case: ways.Case, starts: tuple[StartReplica, ...]) -> str:
    """Replace what can be replaced: that is never dearer than to go on without (`prices`)."""
    if current_view(case.snapshot) is not None and len(case.holders) < case.needed:
        return ways.HOLD
    return ways.REPLACE if starts else ways.EVICT


def _starts_of(case: ways.Case, part: tuple[Failure, ...]) -> tuple[StartReplica, ...]:
    mine = {failure.replica.index for failure in part}
    return tuple(start for start in case.starts if start.replica in mine)


def _nodes(
    case: ways.Case, part: tuple[Failure, ...], parts: tuple[tuple[Failure, ...], ...]
) -> tuple[SetNodeState, ...]:
    """Nodes that this part blames, and none before it in the same breath."""
    before = {move.node_id for other in parts[: parts.index(part)] for move in _blamed(case, other)}
    return tuple(move for move in _blamed(case, part) if move.node_id not in before)


def _blamed(case: ways.Case, part: tuple[Failure, ...]) -> tuple[SetNodeState, ...]:
    return out_of_service(case.snapshot, case.config, part)


def _view(case: ways.Case) -> tuple[Action, ...]:
    """The view without them; none needed if they were in none."""
    snapshot, failures = case.snapshot, case.failures
    view, attempt = current_view(snapshot), snapshot.attempt
    if view is None or attempt is None or not in_view(snapshot, failures):
        return ()
    gone = {failure.replica.index for failure in failures}
    stay = (r for r in live_replicas(snapshot) if r.index not in gone and is_member(snapshot, r))
    back = (as_before(snapshot, replica) for replica in case.recalled)
    reason = "; ".join(f"replica {failure.replica.index}: {failure.sentence}" for failure in failures)
    return (AnnounceView(view=following_view(snapshot, (*stay, *back), reason)),)


def look_first(failures: tuple[Failure, ...], *, beside: bool = True) -> tuple[Action, ...]:
    """Where something hangs, a look at it comes before everything that ends it: told that
    it is out of the view, a rank may be gone within milliseconds. Where the others stand, on
    all nodes of the job, is asked with it, before the view moves them: two of 8,000 stand out only
    beside the 7,998."""
    hung = tuple(failure.replica for failure in failures if failure.hung)
    looks = tuple(GatherStacks(replica=replica.index, incarnation=replica.incarnation) for replica in hung)
    return (*looks, GatherStacks(replica=-1, incarnation=-1, look=STACKS)) if looks and beside else looks


def end_processes(failures: tuple[Failure, ...]) -> tuple[Action, ...]:
    """SIGKILL, then the state."""
    actions: list[Action] = []
    for failure in failures:
        replica = failure.replica
        actions.append(StopReplica(replica=replica.index, incarnation=replica.incarnation, grace_s=0.0))
        actions.append(SetReplicaState(replica=replica.index, incarnation=replica.incarnation, to=ReplicaState.EVICTED))
    return tuple(actions)


def _job(snapshot: JobSnapshot) -> tuple[Action, ...]:
    return (SetJobState(to=JobState.RECOVERING),) if snapshot.job.state is JobState.RUNNING else ()


def settled_by(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], *, broken: bool = True
) -> tuple[str, ...]:
    """Findings that end with them: what the failures rest on, and the exchange errors they explain. A silent node
    stays open: it is silent until it speaks, and nothing is started on it till then. So does
    a refused result: `numerics` judges it by what the others compute. `broken`: the exchange errors are theirs."""
    open_still = {signal.id for kind in STAYING for signal in signals_of(snapshot, kind)}
    open_still |= {signal.id for signal in snapshot.signals if stays_open(snapshot, config, signal)}
    ids = {signal for failure in failures for signal in failure.signal_ids}
    ids |= {signal.id for signal in snapshot.signals for failure in failures if about(signal, failure.replica)}
    ids -= open_still
    if broken and in_view(snapshot, failures):
        ids |= {signal.id for signal in signals_of(snapshot, "outer_error")}
    return tuple(sorted(ids))


def _evidence(failures: tuple[Failure, ...]) -> dict[str, Scalar]:
    if len(failures) == 1:
        return {"kind": failures[0].kind, "proved": failures[0].proved, **failures[0].evidence}
    return {f"replica_{failure.replica.index}": f"{failure.kind}: {failure.sentence}" for failure in failures}


def _causes(part: tuple[Failure, ...]) -> str:
    causes = "; ".join(f"replica {failure.replica.index}: {failure.sentence}" for failure in part)
    return f"{causes[:1].upper()}{causes[1:]}"


def _sentence(case: ways.Case, part: tuple[Failure, ...], starts: tuple[StartReplica, ...]) -> str:
    causes = _causes(part)
    barred = "".join(f" {failure.evidence['barred']}." for failure in part if "barred" in failure.evidence)
    if any(failure.cordon and is_held(case.snapshot, case.config, failure.cordon) for failure in part):
        barred += " Too much at once in the fleet: a person decides about the nodes, none is cordoned for it."
    why_none = case.no_start or TAKEN_BY_OTHERS
    after = places(case.snapshot, starts) or f"nothing is started in its place: {why_none}"
    if _choice(case, starts) == ways.HOLD:
        left = len(case.holders)
        keep = f"{number_of(left, 'replica')} {'keeps' if left == 1 else 'keep'} the newest state"
        waits = f"{'waits' if left == 1 else 'wait'}, {case.needed} must train"
        return f"{causes}. {keep} and {waits}; {after}.{barred}"
    return f"{causes}. {_going(case)}; {after}.{barred}"


def _back(case: ways.Case) -> str:
    """Who is taken back, and why it can go on."""
    if not case.recalled:
        return ""
    names = list_of([str(replica.index) for replica in case.recalled], "replica")
    verb, it = ("is", "it") if len(case.recalled) == 1 else ("are", "them")
    return f" {names[:1].upper()}{names[1:]} {verb} taken back: nobody has entered the view that left {it} out."


def _going(case: ways.Case) -> str:
    """Who trains on; of those that start or fetch the state yet only that they do."""
    gone = {failure.replica.index for failure in case.failures}
    left = sum(replica.index not in gone for replica in live_replicas(case.snapshot))
    going = len(case.holders) if current_view(case.snapshot) is not None else 0
    coming = number_of(left - going, "replica")
    parts = [f"{number_of(going, 'replica')} {'continues' if going == 1 else 'continue'}"] if going else []
    parts += [f"{coming} {'is' if left - going == 1 else 'are'} on the way"] if left > going else []
    return ", ".join(parts) or "No replica continues"


def places(snapshot: JobSnapshot, actions: Iterable[Action], how: str = "again") -> str:
    """Where the slots start (`how`: "again", "beside it"), in words; "" where none does."""
    return ", ".join(
        f"replica {start.replica} starts {how} on "
        + ", ".join(sorted({node_name(snapshot, p.node_id) for p in start.placements}))
        for start in actions
        if isinstance(start, StartReplica)
    )


def _hold(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """Too much looks bad at once to believe silence: ask a person."""
    kept = held(snapshot, config)
    if not kept:
        return ()
    by = why_held(snapshot, config, sorted({node_id for failure in kept for node_id in failure.replica.node_ids}))
    stopped = _stopped(by)
    return (
        Decision(
            rule=RULE,
            choice="hold",
            reason_code="storm",
            sentence=f"{stopped}. Nothing is evicted on silence until {_until(snapshot, config)}."
            f"{_suspects(snapshot, kept)}",
            title=short(stopped),
            key="hold:" + ",".join(tag(failure.replica) for failure in kept),
            actions=(),
            evidence={
                "suspect_devices": snapshot.suspect_devices,
                "fleet_devices": snapshot.fleet_devices,
                "acts_last_window": snapshot.acts_last_window,
                "held_by": by.code if by is not None else "",
                "segment": by.segment if by is not None else "",
                **{f"acts_{kind}": number for kind, number in sorted(snapshot.disruption.acts.items())},
            },
            signal_ids=tuple(signal for failure in kept for signal in failure.signal_ids),
        ),
    )


def _until(snapshot: JobSnapshot, config: PolicyConfig) -> str:
    if is_correlated_failure(snapshot, config):
        return "a person decides or the correlated failure is over"
    return "a person closes the breaker"


def _stopped(found: Hold | None) -> str:
    """What keeps us from acting on silence."""
    why = found.sentence if found is not None else "as much is done in this pass as the disruption budget allows"
    return f"Automation is stopped: {why}"


def _suspects(snapshot: JobSnapshot, kept: tuple[Failure, ...]) -> str:
    """Replicas and nodes that open findings name; what is only concluded names nobody."""
    ids = {signal for failure in kept for signal in failure.signal_ids}
    about_it = [signal for signal in snapshot.signals if signal.id in ids]
    replicas = sorted({s.replica for s in about_it if s.replica is not None})
    nodes = sorted({node_name(snapshot, s.node_id) for s in about_it if s.replica is None and s.node_id})
    named = [*([list_of(list(map(str, replicas)), "replica")] if replicas else []), *nodes]
    return f" Findings are open about {', '.join(named)}." if named else ""
