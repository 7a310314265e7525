"""A replica failed: go on without it at once, and start its next incarnation elsewhere.

1. Find the failures that may be acted on (evidence, witness, governor).
2. If too few contributors would be left, leave it to `restart`.
3. Cost every way out in GPU-seconds; say why the others were not taken.
4. A look at what hangs, one new view without all the failed ones, their processes ended,
   their slots started again where there are devices, their nodes cordoned if the hardware
   is to blame.
"""

from collections.abc import Iterable

from controlplane.policy import ways
from controlplane.policy.config import PolicyConfig
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
    SetReplicaState,
    SettleSignals,
    StartReplica,
    StopReplica,
)
from controlplane.policy.proved import Failure
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.titles import list_of, number_of, of_failures, short
from controlplane.protocol.diagnostics import STACKS
from controlplane.protocol.states import JobState, ReplicaState

RULE = "replica_failure"
STAYING = with_trait(Trait.STAYS)


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one eviction, over all failed replicas, and one hold for a person."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    failures = actionable(snapshot, config)
    decisions = _hold(snapshot, config)
    ordered = all(failure.kind == ORDERED for failure in failures)
    if not failures or ordered or restart_reason(snapshot, config, failures) is not None:
        return decisions
    return (eviction(snapshot, config, failures), *decisions)


def eviction(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> Decision:
    """Go on without these replicas; their slots start again where there are devices."""
    case = ways.case_of(snapshot, config, failures)
    found = ways.ways_out(case)
    taken = next(way for way in found if way.action == _choice(case))
    settled = settled_by(snapshot, config, failures)
    return Decision(
        rule=RULE,
        choice=taken.action,
        reason_code=failures[0].kind if len(failures) == 1 else "several_failures",
        sentence=_sentence(case),
        key="evict:" + ",".join(tag(failure.replica) for failure in failures),
        actions=(
            *look_first(failures),
            *_view(snapshot, config, failures),
            *end_processes(failures),
            *out_of_service(snapshot, config, failures),
            *case.starts,
            *_job(snapshot),
            *((SettleSignals(signal_ids=settled),) if settled else ()),
        ),
        evidence=_evidence(failures),
        alternatives=ways.alternatives(found, taken, because=_because(failures)),
        signal_ids=settled,
        cost_gpu_s=taken.cost_gpu_s,
        title=of_failures(snapshot, failures),
    )


def _because(failures: tuple[Failure, ...]) -> str:
    """What rules out a way that would be cheaper."""
    if any(failure.kind == ORDERED for failure in failures):
        return "a person's request is carried out as it was made"
    return "those who hold the newest state are never ended while enough of them are left"


def _choice(case: ways.Case) -> str:
    """Replace what can be replaced: that is never dearer than to go on without (`prices`)."""
    if current_view(case.snapshot) is not None and len(case.holders) < case.needed:
        return ways.HOLD
    return ways.REPLACE if case.starts else ways.EVICT


def _view(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> tuple[Action, ...]:
    """The view without them; none needed if they were in none."""
    view, attempt = current_view(snapshot), snapshot.attempt
    if view is None or attempt is None or not in_view(snapshot, failures):
        return ()
    gone = {failure.replica.index for failure in failures}
    members = (r for r in live_replicas(snapshot) if r.index not in gone and is_member(snapshot, r))
    reason = "; ".join(f"replica {failure.replica.index}: {failure.sentence}" for failure in failures)
    return (AnnounceView(view=following_view(snapshot, members, reason)),)


def look_first(failures: tuple[Failure, ...]) -> tuple[Action, ...]:
    """Where something hangs, a look at it comes before everything that ends it: told that
    it is out of the view, a rank may be gone within milliseconds. Where the others stand, on
    all nodes of the job, is asked with it, before the view moves them: two of 8,000 stand out only
    beside the 7,998."""
    hung = tuple(failure.replica for failure in failures if failure.hung)
    looks = tuple(GatherStacks(replica=replica.index, incarnation=replica.incarnation) for replica in hung)
    return (*looks, GatherStacks(replica=-1, incarnation=-1, look=STACKS)) if looks else ()


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


def settled_by(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> tuple[str, ...]:
    """Findings that end with them: what the failures rest on, and the exchange errors they explain. A silent node
    stays open: it is silent until it speaks, and nothing is started on it till then. So does
    a refused result: `numerics` judges it by what the others compute."""
    open_still = {signal.id for kind in STAYING for signal in signals_of(snapshot, kind)}
    open_still |= {signal.id for signal in snapshot.signals if stays_open(snapshot, config, signal)}
    ids = {signal for failure in failures for signal in failure.signal_ids}
    ids |= {signal.id for signal in snapshot.signals for failure in failures if about(signal, failure.replica)}
    ids -= open_still
    if in_view(snapshot, failures):
        ids |= {signal.id for signal in signals_of(snapshot, "outer_error")}
    return tuple(sorted(ids))


def _evidence(failures: tuple[Failure, ...]) -> dict[str, Scalar]:
    if len(failures) == 1:
        return {"kind": failures[0].kind, "proved": failures[0].proved, **failures[0].evidence}
    return {f"replica_{failure.replica.index}": f"{failure.kind}: {failure.sentence}" for failure in failures}


def _sentence(case: ways.Case) -> str:
    causes = "; ".join(f"replica {failure.replica.index}: {failure.sentence}" for failure in case.failures)
    causes = f"{causes[:1].upper()}{causes[1:]}"
    barred = "".join(f" {failure.evidence['barred']}." for failure in case.failures if "barred" in failure.evidence)
    if is_correlated_failure(case.snapshot, case.config) and any(failure.cordon for failure in case.failures):
        barred += " Too many devices look bad at once: a person decides about the nodes, none is cordoned for it."
    after = places(case.snapshot, case.starts) or f"nothing is started in its place: {case.no_start}"
    if _choice(case) == ways.HOLD:
        left = len(case.holders)
        keep = f"{number_of(left, 'replica')} {'keeps' if left == 1 else 'keep'} the newest state"
        return f"{causes}. {keep} and {'waits' if left == 1 else 'wait'}, {case.needed} must train; {after}.{barred}"
    gone = {failure.replica.index for failure in case.failures}
    going = sum(replica.index not in gone for replica in live_replicas(case.snapshot))
    return f"{causes}. {number_of(going, 'replica')} {'continues' if going == 1 else 'continue'}; {after}.{barred}"


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
    stopped = _stopped_by(snapshot, config)
    return (
        Decision(
            rule=RULE,
            choice="hold",
            reason_code="storm",
            sentence=f"{stopped}. Nothing is evicted on silence until a person decides or the correlated failure is"
            f" over.{_suspects(snapshot, kept)}",
            title=short(stopped),
            key="hold:" + ",".join(tag(failure.replica) for failure in kept),
            actions=(),
            evidence={
                "suspect_devices": snapshot.suspect_devices,
                "fleet_devices": snapshot.fleet_devices,
                "acts_last_window": snapshot.acts_last_window,
            },
            signal_ids=tuple(signal for failure in kept for signal in failure.signal_ids),
        ),
    )


def _stopped_by(snapshot: JobSnapshot, config: PolicyConfig) -> str:
    """What keeps us from acting on silence, in the order in which it is asked (`facts.correlated_failure_of`)."""
    if snapshot.acts_last_window >= config.max_acts:
        return f"Automation is stopped: {snapshot.acts_last_window} acts on silence within the window"
    return f"Automation is stopped: {snapshot.suspect_devices} of {snapshot.fleet_devices} devices look bad at once"


def _suspects(snapshot: JobSnapshot, kept: tuple[Failure, ...]) -> str:
    """Replicas and nodes that open findings name; what is only concluded names nobody."""
    ids = {signal for failure in kept for signal in failure.signal_ids}
    about_it = [signal for signal in snapshot.signals if signal.id in ids]
    replicas = sorted({s.replica for s in about_it if s.replica is not None})
    nodes = sorted({node_name(snapshot, s.node_id) for s in about_it if s.replica is None and s.node_id})
    named = [*([list_of(list(map(str, replicas)), "replica")] if replicas else []), *nodes]
    return f" Findings are open about {', '.join(named)}." if named else ""
