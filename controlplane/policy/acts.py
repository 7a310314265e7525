"""What the disruption budget counts of a decision: replicas that automation ends, attempts, nodes, emergency saves.

What people requested is not counted: the budget bounds what automation does by itself. Called by `decide` and
`decide_fleet` for every decision that is carried out. Pure.
"""

from collections.abc import Callable, Iterable

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import segments_of
from controlplane.policy.disruption_counts import Act, ActKind
from controlplane.policy.facts import Governed
from controlplane.policy.failures import find_failures
from controlplane.policy.plan import (
    UNPAID,
    Decision,
    EndAttempt,
    RequestCheckpoint,
    SetNodeState,
    SetReplicaState,
)
from controlplane.policy.rules import device_fault, device_risk, replica_failure, restart, straggler
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import NodeState, ReplicaState

COUNTED = frozenset({replica_failure.RULE, restart.RULE, straggler.RULE, device_fault.RULE, device_risk.RULE})
OUT = frozenset({NodeState.CORDONED, NodeState.QUARANTINED})


def acts_of(snapshot: JobSnapshot, decision: Decision, config: PolicyConfig) -> tuple[Act, ...]:
    """Those of one decision about a job. An attempt that ends is one act, however many replicas it takes along."""
    if decision.rule not in COUNTED or decision.reason_code in UNPAID:
        return ()
    found = [*nodes_out(snapshot, decision)]
    proved = _proved(snapshot, config)
    if any(isinstance(action, EndAttempt) for action in decision.actions):
        doubted = not all(failure.proved for failure in find_failures(snapshot, config))
        found.append(Act(kind=ActKind.RESTART, proved=not doubted))
    for action in decision.actions:
        if isinstance(action, SetReplicaState) and action.to is ReplicaState.EVICTED:
            replica = snapshot.replica_by_index.get(action.replica)
            names = segments_of(snapshot, replica.node_ids if replica is not None else ())
            sure = decision.rule != straggler.RULE and proved(action.replica)
            found.append(Act(kind=ActKind.EVICT, segments=tuple(names), proved=sure))
        elif isinstance(action, RequestCheckpoint) and decision.rule == device_risk.RULE:
            found.append(Act(kind=ActKind.SAVE))
    return tuple(found)


def nodes_out(snapshot: Governed, decision: Decision) -> Iterable[Act]:
    """Nodes that a decision takes out of service. However well a fault is proved, taking nodes out is bound: a bad
    driver accuses every one of them."""
    for action in decision.actions if decision.rule in COUNTED else ():
        if isinstance(action, SetNodeState) and action.to in OUT:
            yield Act(kind=ActKind.CORDON, segments=tuple(segments_of(snapshot, (action.node_id,))))


def _proved(snapshot: JobSnapshot, config: PolicyConfig) -> Callable[[int], bool]:
    sure = {failure.replica.index for failure in find_failures(snapshot, config) if failure.proved}
    return sure.__contains__
