"""Hardware findings: take the node out of service, mark it, or blame the program.

What they mean for a replica is `replica_failure`'s; this rule is about the node alone,
and speaks once for each finding.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live, is_storm, live_replicas, node_name, node_of, on_replica
from controlplane.policy.plan import Action, Decision, SetNodeState, SettleSignals
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.policy.xid import XidBucket, XidVerdict, look_up
from controlplane.protocol.states import NodeState

RULE = "device_fault"
_TARGET = {XidBucket.FATAL: NodeState.CORDONED, XidBucket.DEGRADED: NodeState.DEGRADED}
_FROM = {
    NodeState.CORDONED: frozenset({NodeState.READY, NodeState.DEGRADED}),
    NodeState.DEGRADED: frozenset({NodeState.READY}),
}


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision for each open XID or lost device."""
    found = [signal for signal in snapshot.signals if signal.kind in ("xid", "device_lost")]
    return tuple(_judge(snapshot, config, signal) for signal in found)


def _judge(snapshot: JobSnapshot, config: PolicyConfig, signal: SignalFact) -> Decision:
    verdict = look_up(int(signal.value), config.xid_overrides) if signal.kind == "xid" else None
    bucket = verdict.bucket if verdict else XidBucket.FATAL
    target = _TARGET.get(bucket)
    if bucket is XidBucket.FATAL and is_storm(snapshot, config):
        return _decision(snapshot, signal, verdict, "hold", "storm", ())
    if target is None:
        return _decision(snapshot, signal, verdict, "note", str(bucket), (SettleSignals(signal_ids=(signal.id,)),))
    node = node_of(snapshot, signal.node_id)
    actions: list[Action] = []
    if node is not None and node.state in _FROM[target]:
        actions.append(SetNodeState(node_id=node.id, to=target))
    # A fatal finding under a live replica is settled by the eviction that rests on it.
    under_us = attempt_live(snapshot) and any(on_replica(signal, r) for r in live_replicas(snapshot))
    if not (bucket is XidBucket.FATAL and under_us):
        actions.append(SettleSignals(signal_ids=(signal.id,)))
    choice = "cordon" if target is NodeState.CORDONED else "degrade"
    return _decision(snapshot, signal, verdict, choice, f"device_{bucket}", tuple(actions))


def _decision(
    snapshot: JobSnapshot,
    signal: SignalFact,
    verdict: XidVerdict | None,
    choice: str,
    code: str,
    actions: tuple[Action, ...],
) -> Decision:
    settles = any(isinstance(action, SettleSignals) for action in actions)
    where = f"device {signal.device_index} of {node_name(snapshot, signal.node_id)}"
    what = f"XID {verdict.xid} ({verdict.description})" if verdict else "A device that fell off the bus"
    doubt = f"; {verdict.disagreement}" if verdict and verdict.disagreement else ""
    by = f" by {verdict.provenance}" if verdict else ""
    return Decision(
        rule=RULE,
        choice=choice,
        reason_code=code,
        sentence=f"{what} on {where}: {_WORDS[choice]}{by}{doubt}.",
        key=f"device_fault:{choice}:{signal.id}{':settled' if settles else ''}",
        actions=actions,
        evidence={
            "xid": verdict.xid if verdict else None,
            "nvidia": verdict.nvidia if verdict else None,
            "gpud": verdict.gpud if verdict else None,
            "provenance": verdict.provenance if verdict else "driver",
        },
        signal_ids=(signal.id,),
        routine=choice == "note" or (settles and len(actions) == 1),
    )


_WORDS = {
    "cordon": "the node takes no new work",
    "degrade": "the node is marked and used last",
    "note": "recorded, the node is not to blame",
    "hold": "too many devices look bad at once, a person decides",
}
