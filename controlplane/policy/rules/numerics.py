"""A result was refused and its step computed twice: who is to blame, if anybody.

| diagnosis | the rank | decision |
|---|---|---|
| transient | trains on with the second result | note; the third on one device degrades its node |
| reproduced | trains on: the spike is real | note |
| failed_validation | exit 17 | its node is quarantined |
| persistent | exit 16 | other hardware computes the step, see below |

A persistent finding is judged there: the step is committed without the device, so its node
is quarantined; or it is refused there too, so `restart` blames the software or the data.

The replica that exits is `replica_failure`'s, as any other that ends.
"""

from controlplane.policy import numerics
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import node_name, node_of
from controlplane.policy.plan import Action, Decision, SetNodeState, SettleSignals
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.protocol.states import NodeState

RULE = "numerics"
TRANSIENTS_TO_DEGRADE = 3
_MAY_BE_QUARANTINED = frozenset({NodeState.READY, NodeState.DEGRADED, NodeState.DRAINING, NodeState.CORDONED})


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision a finding, and a second one when a persistent finding is judged."""
    return tuple(
        decision
        for signal in numerics.findings(
            snapshot, numerics.TRANSIENT, numerics.REPRODUCED, numerics.FAILED_VALIDATION, numerics.PERSISTENT
        )
        for decision in (_judge(snapshot, signal),)
        if decision is not None
    )


def _judge(snapshot: JobSnapshot, signal: SignalFact) -> Decision | None:
    diagnosis = signal.evidence.get("diagnosis")
    settle = SettleSignals(signal_ids=(signal.id,))
    if diagnosis == numerics.TRANSIENT:
        return _transient(snapshot, signal)
    if diagnosis == numerics.REPRODUCED:
        why = "The same again in place: this is what the model computes here, training continues."
        return _decision(snapshot, signal, "note", "reproduced_in_place", why, (settle,))
    if diagnosis == numerics.FAILED_VALIDATION:
        why = "Computed again in place it was different and wrong again: the device is not fit to compute."
        moves = (*_quarantine(snapshot, signal), settle)
        return _decision(snapshot, signal, "quarantine", "failed_validation", why, moves)
    if numerics.refuted(snapshot, signal):
        why = "Other hardware committed this step without fault: the device computed it wrong, twice alike."
        moves = (*_quarantine(snapshot, signal), settle)
        return _decision(snapshot, signal, "quarantine", "refuted_elsewhere", why, moves)
    if signal in numerics.reproduced(snapshot):
        return None  # `restart` answers for all of them.
    why = "The same again in place: only other hardware can show whether it is right, so the others compute it."
    return _decision(snapshot, signal, "disambiguate", "persistent_in_place", why, ())


def _transient(snapshot: JobSnapshot, signal: SignalFact) -> Decision:
    earlier = signal.evidence.get("earlier_transients")
    count = 1 + (earlier if isinstance(earlier, int) else 0)
    node = node_of(snapshot, signal.node_id)
    moves: list[Action] = []
    why = "Computed again in place it was good: training continues with the second result."
    if count >= TRANSIENTS_TO_DEGRADE and node is not None and node.state is NodeState.READY:
        moves.append(SetNodeState(node_id=node.id, to=NodeState.DEGRADED))
        why += f" It is the {count}. time on this device, which counts as degraded from now on."
    choice = "degrade" if moves else "note"
    return _decision(snapshot, signal, choice, "transient", why, (*moves, SettleSignals(signal_ids=(signal.id,))))


def _quarantine(snapshot: JobSnapshot, signal: SignalFact) -> tuple[Action, ...]:
    node = node_of(snapshot, signal.node_id)
    if node is None or node.state not in _MAY_BE_QUARANTINED:
        return ()
    return (SetNodeState(node_id=node.id, to=NodeState.QUARANTINED),)


def _decision(
    snapshot: JobSnapshot, signal: SignalFact, choice: str, code: str, why: str, actions: tuple[Action, ...]
) -> Decision:
    where = f"device {signal.device_index} of {node_name(snapshot, signal.node_id)}"
    what = str(signal.evidence.get("check", "result")).replace("_", " ")
    return Decision(
        rule=RULE,
        choice=choice,
        reason_code=code,
        sentence=f"Step {numerics.step_of(signal)}, replica {signal.replica} rank {signal.rank} on {where}:"
        f" {what} ({signal.evidence.get('first_result')}). {why}",
        key=f"numerics:{signal.id}:{choice}",
        actions=actions,
        evidence={
            name: signal.evidence.get(name)
            for name in ("check", "diagnosis", "first_result", "second_result", "earlier_transients")
        },
        signal_ids=(signal.id,),
    )
