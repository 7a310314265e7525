"""Whether two findings have one cause, so that they belong into one incident.

Called by `recovery.incidents` and the simulator. Unrelated faults never share an incident: what says nothing of a
common cause (the same slot of the job, the same device, the same node at about the same time) is
taken for a fault of its own.
"""

from controlplane.policy.plan import (
    Decision,
    Relieve,
    SetReplicaState,
    SettleSignals,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.states import ReplicaState

NEAR_S = 30.0
"""Findings on different devices of one node, or of a broken exchange, have one cause within this."""


def same_cause(known: tuple[SignalFact, ...], found: tuple[SignalFact, ...]) -> bool:
    """One of each says so. Both are about the same job, or about none. A broken exchange accuses nobody: it
    speaks only where nothing else does."""
    return any(_related(old, new) for old in _accusing(known) for new in _accusing(found))


def _accusing(signals: tuple[SignalFact, ...]) -> tuple[SignalFact, ...]:
    return tuple(signal for signal in signals if signal.kind != "outer_error") or signals


def same_device(old: SignalFact, new: SignalFact) -> bool:
    """Both are about this very device."""
    return old.node_id is not None and (old.node_id, old.device_index) == (new.node_id, new.device_index)


def _related(old: SignalFact, new: SignalFact) -> bool:
    if old.id == new.id:
        return True
    near = abs(old.seen_s - new.seen_s) <= NEAR_S
    if "outer_error" in (old.kind, new.kind):
        # An exchange breaks with whoever dies in it: it accuses no slot of its own.
        return near
    if old.replica is not None and old.replica == new.replica:
        return True
    if old.node_id is None or old.node_id != new.node_id:
        return False
    return near or old.device_index is None or new.device_index is None or same_device(old, new)


def slots_of(decision: Decision) -> frozenset[int]:
    """The replica slots that a decision ends, starts, relieves or leaves out."""
    out = {a.replica for a in decision.actions if isinstance(a, SetReplicaState) and a.to is ReplicaState.SUSPECT}
    return frozenset(out | {a.replica for a in decision.actions if isinstance(a, (StopReplica, StartReplica, Relieve))})


def joined_by(decision: Decision) -> frozenset[int]:
    """The replica slots whose replica a decision takes in, or has caught up."""
    there = (ReplicaState.CATCHING_UP, ReplicaState.ACTIVE)
    return frozenset(a.replica for a in decision.actions if isinstance(a, SetReplicaState) and a.to in there)


def findings_of(decision: Decision) -> tuple[str, ...]:
    """Ids of the findings that it rests on or deals with."""
    settled = (i for action in decision.actions if isinstance(action, SettleSignals) for i in action.signal_ids)
    return tuple(dict.fromkeys((*decision.signal_ids, *settled)))
