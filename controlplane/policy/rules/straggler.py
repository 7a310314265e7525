"""A rank is slow: say so, and move its replica only where that pays.

All ranks wait for the slowest, so a straggler costs its lateness times the whole job, step
after step. Moving its replica costs a stall and the time of a start, once. The rule tells
the finding with both sums and moves the replica only when all of this holds: the rank is
slow beside its peers (if they are as slow, no device is to blame); its device is slow, not
its input (a move would take the input along); other devices are free; enough replicas are
left; and the move is cheaper than staying, over what is left of the job or the time a
repair takes, whichever is shorter.
"""

import msgspec

from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    about,
    attempt_live,
    contributes,
    installed,
    is_storm,
    live_replicas,
    node_name,
    signals_of,
    tag,
)
from controlplane.policy.failures import find_failures
from controlplane.policy.goodput import straggler_costs
from controlplane.policy.ladder import start_slots
from controlplane.policy.placement import slots_of
from controlplane.policy.plan import Alternative, Decision, StartReplica
from controlplane.policy.proved import Failure
from controlplane.policy.rules.replica_failure import eviction
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.protocol.states import JobState

RULE = "straggler"


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """One finding with its sums, in GPU-seconds. `against` empty: move it."""

    signal: SignalFact
    failure: Failure
    stay_s: float
    move_s: float | None
    against: str


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision a finding; at most one replica is moved at a time, the slowest first."""
    if not attempt_live(snapshot) or not installed(snapshot) or snapshot.job.finished:
        return ()
    cases = [
        _case(snapshot, config, signal, replica)
        for signal in sorted(signals_of(snapshot, "straggler"), key=lambda signal: (signal.value, signal.id))
        for replica in live_replicas(snapshot)
        if about(signal, replica)
    ]
    mover = next((case for case in cases if not case.against), None)
    moves = (_move(snapshot, config, mover),) if mover is not None else ()
    # Those that pay as well are asked again when the first move is over.
    return (*moves, *(_tell(snapshot, case) for case in cases if case.against))


def _case(snapshot: JobSnapshot, config: PolicyConfig, signal: SignalFact, replica: ReplicaFact) -> _Case:
    bad = slots_of(p for p in replica.placements if p.rank == signal.rank)
    failure = Failure(
        replica=replica,
        kind="straggler",
        proved=False,
        sentence=_cause(snapshot, signal),
        bad_slots=bad,
        signal_ids=(signal.id,),
        evidence=_evidence(signal),
    )
    starts = start_slots(snapshot, config, (replica,), (failure,))
    costs = straggler_costs(
        snapshot, config, late_s=_number(signal, "late_s"), replica=replica, spare_ready=bool(starts)
    )
    against = _against(snapshot, config, signal, replica, starts, costs.stay_s, costs.move_s)
    return _Case(signal=signal, failure=failure, stay_s=costs.stay_s, move_s=costs.move_s, against=against)


def _against(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    signal: SignalFact,
    replica: ReplicaFact,
    starts: tuple[StartReplica, ...],
    stay_s: float,
    move_s: float | None,
) -> str:
    """Why its replica is not moved, the weightiest reason first; empty: move it."""
    survivors = [r for r in live_replicas(snapshot) if r.index != replica.index and contributes(snapshot, r)]
    if signal.evidence.get("score") != "relative":
        return "its peers are as slow as it is, no device is to blame"
    if signal.evidence.get("cause") == "data":
        return "it waits for its input, and a move would take the input along: look at where its data comes from"
    if len(survivors) < max(1, snapshot.job.spec.resources.min_replicas):
        return "too few replicas would be left"
    if not starts or move_s is None:
        return "no other device is free"
    if move_s >= stay_s:
        return f"moving its replica costs {move_s:.0f} GPU-seconds, staying {stay_s:.0f}"
    if find_failures(snapshot, config) or snapshot.job.state is not JobState.RUNNING:
        return "the job is recovering from something else"
    if is_storm(snapshot, config):
        return "too much looks bad in the fleet at once"
    return spent(snapshot)


def _move(snapshot: JobSnapshot, config: PolicyConfig, case: _Case) -> Decision:
    base = eviction(snapshot, config, (case.failure,))
    return msgspec.structs.replace(
        base,
        rule=RULE,
        choice="move",
        reason_code="cheaper_to_move",
        sentence=f"{base.sentence} Staying would cost {case.stay_s:.0f} GPU-seconds, moving {case.move_s or 0.0:.0f}.",
        key=f"straggler:{case.signal.id}:move",
        evidence={**case.failure.evidence, "stay_gpu_s": case.stay_s, "move_gpu_s": case.move_s},
        alternatives=(Alternative(action="stay", cost_gpu_s=case.stay_s, why_not="costs more"),),
        cost_gpu_s=case.move_s,
    )


def _tell(snapshot: JobSnapshot, case: _Case) -> Decision:
    replica = case.failure.replica
    return Decision(
        rule=RULE,
        choice="tell",
        reason_code="slow_rank",
        sentence=f"Replica {replica.index}: {case.failure.sentence}. Nothing is moved: {case.against}.",
        key=f"straggler:{case.signal.id}:{tag(replica)}:tell",
        actions=(),
        evidence={**case.failure.evidence, "stay_gpu_s": case.stay_s},
        alternatives=(Alternative(action="move", cost_gpu_s=case.move_s, why_not=case.against),),
        signal_ids=(case.signal.id,),
        cost_gpu_s=case.stay_s,
    )


def _cause(snapshot: JobSnapshot, signal: SignalFact) -> str:
    """What is slow, and what its device says of itself."""
    where = f"rank {signal.rank} on device {signal.device_index} of {node_name(snapshot, signal.node_id)}"
    what = "waits for its input" if signal.evidence.get("cause") == "data" else "computes slowly"
    said = [f"the device throttles ({text})" for text in (signal.evidence.get("throttle"),) if text]
    said += [f"open findings: {text}" for text in (signal.evidence.get("device_findings"),) if text]
    late_s = _number(signal, "late_s")
    return (
        f"{where} {what}: score {signal.value:.2f} of at least {signal.threshold:.2f},"
        f" each step waits {late_s * 1000:.0f} ms for it" + "".join(f"; {text}" for text in said)
    )


def _evidence(signal: SignalFact) -> dict[str, str | int | float | bool | None]:
    return {
        "value": signal.value,
        "threshold": signal.threshold,
        "device_index": signal.device_index,
        **signal.evidence,
    }


def _number(signal: SignalFact, name: str) -> float:
    value = signal.evidence.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
