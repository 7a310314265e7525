"""A replica failed: go on without it at once, and start its next incarnation elsewhere.

1. Find the failures that may be acted on (evidence, witness, governor).
2. If too few contributors would be left, leave it to `restart`.
3. Cost every way out in GPU-seconds; say why the others were not taken.
4. A look at what hangs, one new view without all the failed ones, their processes ended,
   their slots started again where there are devices, their nodes cordoned if the hardware
   is to blame.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    about,
    attempt_live,
    current_view,
    is_member,
    live_replicas,
    member_of,
    node_name,
    signals_of,
    tag,
)
from controlplane.policy.failures import actionable, held
from controlplane.policy.goodput import Costs, failure_costs
from controlplane.policy.ladder import in_view, out_of_service, restart_reason, start_slots
from controlplane.policy.membership import next_view
from controlplane.policy.plan import (
    Action,
    Alternative,
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
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import JobState, ReplicaState

RULE = "replica_failure"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one eviction, over all failed replicas, and one hold for a person."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    failures = actionable(snapshot, config)
    decisions = _hold(snapshot, config)
    if not failures or restart_reason(snapshot, config, failures) is not None:
        return decisions
    return (eviction(snapshot, config, failures), *decisions)


def eviction(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> Decision:
    """Go on without these replicas; their slots start again where there are devices."""
    gone = {failure.replica.index for failure in failures}
    survivors = [replica for replica in live_replicas(snapshot) if replica.index not in gone]
    ready = tuple(failure.replica for failure in failures if failure.replica.failed_starts == 0)
    starts = start_slots(snapshot, config, ready, failures)
    costs = failure_costs(
        snapshot,
        config,
        lost=len(failures),
        survivors=len(survivors),
        spare_ready=bool(starts),
        gone=all(failure.gone or failure.proved for failure in failures),
    )
    choice = "evict_and_replace" if starts else "evict"
    settled = _settled(snapshot, failures)
    return Decision(
        rule=RULE,
        choice=choice,
        reason_code=failures[0].kind if len(failures) == 1 else "several_failures",
        sentence=_sentence(snapshot, failures, starts, len(survivors)),
        key="evict:" + ",".join(tag(failure.replica) for failure in failures),
        actions=(
            *look_first(failures),
            *_view(snapshot, config, failures),
            *_end_processes(failures),
            *out_of_service(snapshot, failures),
            *starts,
            *_job(snapshot),
            *((SettleSignals(signal_ids=settled),) if settled else ()),
        ),
        evidence=_evidence(failures),
        alternatives=alternatives(costs, choice),
        signal_ids=settled,
        cost_gpu_s=costs.evict_spare_s if starts else costs.evict_s,
    )


def alternatives(costs: Costs, choice: str) -> tuple[Alternative, ...]:
    """The ways not taken, cheapest first, impossible ones last."""
    table = (
        ("evict", costs.evict_s, "no replica with the newest state would be left"),
        ("evict_and_replace", costs.evict_spare_s, "no free device fits a replica"),
        ("restart", costs.restart_s, ""),
        ("wait", costs.wait_s, "what failed does not come back by itself"),
    )
    others = [
        Alternative(action=action, cost_gpu_s=cost, why_not=why_not if cost is None else "costs more")
        for action, cost, why_not in table
        if action != choice
    ]
    return tuple(sorted(others, key=lambda a: (a.cost_gpu_s is None, a.cost_gpu_s or 0.0, a.action)))


def _view(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> tuple[Action, ...]:
    """The view without them; none needed if they were in none."""
    view, attempt = current_view(snapshot), snapshot.attempt
    if view is None or attempt is None or not in_view(snapshot, failures):
        return ()
    gone = {failure.replica.index for failure in failures}
    members = tuple(
        member_of(snapshot, replica)
        for replica in live_replicas(snapshot)
        if replica.index not in gone and is_member(snapshot, replica)
    )
    reason = "; ".join(f"replica {failure.replica.index}: {failure.sentence}" for failure in failures)
    return (
        AnnounceView(
            view=next_view(
                job_id=snapshot.job.id,
                attempt=attempt.number,
                epoch=snapshot.job.epoch + 1,
                members=members,
                before=view,
                reason=reason,
            )
        ),
    )


def look_first(failures: tuple[Failure, ...]) -> tuple[Action, ...]:
    """Where something hangs, a look at it comes before everything that ends it: told that
    it is out of the view, a rank may be gone within milliseconds."""
    hung = tuple(failure.replica for failure in failures if failure.hung)
    return tuple(GatherStacks(replica=replica.index, incarnation=replica.incarnation) for replica in hung)


def _end_processes(failures: tuple[Failure, ...]) -> tuple[Action, ...]:
    """SIGKILL, then the state."""
    actions: list[Action] = []
    for failure in failures:
        replica = failure.replica
        actions.append(StopReplica(replica=replica.index, incarnation=replica.incarnation, grace_s=0.0))
        actions.append(SetReplicaState(replica=replica.index, incarnation=replica.incarnation, to=ReplicaState.EVICTED))
    return tuple(actions)


def _job(snapshot: JobSnapshot) -> tuple[Action, ...]:
    return (SetJobState(to=JobState.RECOVERING),) if snapshot.job.state is JobState.RUNNING else ()


def _settled(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> tuple[str, ...]:
    """What the failures rest on, and the exchange errors they explain. A silent node
    stays open: it is silent until it speaks, and nothing is started on it till then. So does
    a refused result: `numerics` judges it by what the others compute."""
    open_still = {signal.id for kind in ("node_silent", "numerics") for signal in signals_of(snapshot, kind)}
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


def _sentence(
    snapshot: JobSnapshot, failures: tuple[Failure, ...], starts: tuple[StartReplica, ...], survivors: int
) -> str:
    causes = "; ".join(f"replica {failure.replica.index}: {failure.sentence}" for failure in failures)
    targets = ", ".join(
        f"replica {start.replica} starts again on "
        + ", ".join(sorted({node_name(snapshot, p.node_id) for p in start.placements}))
        for start in starts
    )
    after = targets or "no free device fits a replacement now"
    return f"{causes}. {survivors} replicas go on; {after}."


def _hold(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """Too much looks bad at once to believe silence: ask a person."""
    kept = held(snapshot, config)
    if not kept:
        return ()
    names = ", ".join(str(failure.replica.index) for failure in kept)
    return (
        Decision(
            rule=RULE,
            choice="hold",
            reason_code="storm",
            sentence=f"Replicas {names} look failed, but {snapshot.suspect_devices} of {snapshot.fleet_devices} devices"
            f" look bad and {snapshot.acts_last_window} acts were done lately: nothing is evicted on silence"
            " until a person says so or the storm is over.",
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
