"""`decide(snapshot, config) -> plan`: the rules in order, their collisions, the next pass.

Rules are asked in the order of `rules.registry`, that of urgency. Each sees the same snapshot, so two
of them can want to touch the same thing; the earlier wins, the later is asked again at the next pass,
which then is soon. Decisions that are only recorded (observe, recommend) touch nothing.
"""

import msgspec

from controlplane.policy.acts import acts_of
from controlplane.policy.clock import on_one_clock
from controlplane.policy.config import PolicyConfig
from controlplane.policy.consent import agreed, consent
from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.once import forget
from controlplane.policy.plan import (
    Action,
    AnnounceView,
    AnswerRequest,
    AskEviction,
    AskPreemption,
    Decision,
    EndAttempt,
    InjectFault,
    KeepSpares,
    OrderOut,
    ParkJob,
    PlaceAttempt,
    Plan,
    Relieve,
    RequestCheckpoint,
    ResetDevice,
    SendInstall,
    SetJobState,
    SetNodeState,
    SetReplicaState,
    SetYielded,
    StartReplica,
    StopReplica,
)
from controlplane.policy.rules.registry import RULES, ceiling
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import Mode

_CAUTION = {Mode.OBSERVE: 0, Mode.RECOMMEND: 1, Mode.ENFORCE: 2}
_WHOLE_JOB = "job"


def decide(snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
    """Everything that should happen to this job now. Equal snapshots give equal plans."""
    if snapshot.job.state in TERMINAL_JOB:
        return Plan()
    seen = on_one_clock(snapshot)
    try:
        return _decide(seen, config)
    finally:
        forget(seen)


def _decide(snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
    attempt = snapshot.attempt.number if snapshot.attempt else 0
    after_s = snapshot.job.spec.resiliency.act_after_s
    taken: set[str] = set()
    decisions: list[Decision] = []
    deferred = False
    for rule in RULES:
        mode = mode_of(snapshot, config, rule.name) if rule.remedial else Mode.ENFORCE
        for proposed in rule.decide(snapshot, config):
            # One attempt's key must never silence the same words about another attempt.
            decision = msgspec.structs.replace(proposed, key=f"{attempt}:{proposed.key}", mode=mode)
            if mode is Mode.RECOMMEND and (
                why := consent(snapshot, decision, config, after_s=after_s, paused=snapshot.blind)
            ):
                decision = agreed(decision, why)
            if decision.mode is not Mode.ENFORCE:
                decisions.append(decision)
                continue
            wanted = claims(decision)
            if _collides(wanted, taken):
                deferred = True
                continue
            taken |= wanted
            decisions.append(msgspec.structs.replace(decision, acts=acts_of(snapshot, decision, config)))
    return Plan(decisions=tuple(decisions), next_pass_s=next_pass_s(snapshot, config, bool(taken) or deferred))


def mode_of(snapshot: JobSnapshot, config: PolicyConfig, rule: str) -> Mode:
    """The more careful of the job's mode and the rule's."""
    job_mode = snapshot.job.spec.resiliency.mode
    return min(job_mode, ceiling(config, rule), key=lambda mode: _CAUTION[mode])


def claims(decision: Decision) -> set[str]:
    """What the decision's actions touch; two decisions of a plan never share a claim."""
    return {claim for action in decision.actions for claim in _touched(action)}


def _touched(action: Action) -> tuple[str, ...]:
    match action:
        case PlaceAttempt() | EndAttempt():
            return (_WHOLE_JOB, "membership", "state")
        case AnnounceView() | SendInstall():
            return ("membership",)
        case SetJobState():
            return ("state",)
        case StartReplica():
            slots = tuple(f"slot:{p.node_id}:{p.device_index}" for p in action.placements)
            return (f"replica:{action.replica}", *slots)
        case StopReplica() | SetReplicaState() | Relieve() | InjectFault() | OrderOut() | AskEviction():
            return (f"replica:{action.replica}",)
        case SetNodeState():
            return (f"node:{action.node_id}",)
        case ResetDevice():
            return (f"node:{action.node_id}", f"slot:{action.node_id}:{action.device_index}")
        case AskPreemption():
            return (f"job:{action.victim}",)
        case ParkJob():
            return ("parked",)
        case SetYielded():
            return ("yielded",)
        case AnswerRequest():
            return (f"request:{action.request}",)
        case KeepSpares():
            return ("spares",)
        case RequestCheckpoint():
            return ("save",)
        case _:
            return ()


def _collides(wanted: set[str], taken: set[str]) -> bool:
    if not wanted:
        return False
    return bool(wanted & taken) or (_WHOLE_JOB in taken and not all(c.startswith("node:") for c in wanted))
