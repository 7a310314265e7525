"""Hardware findings: keep new work away, take the node out of service, have the device reset, ask
a person, or blame the program.

What they mean for a replica is `replica_failure`'s; this rule is about node and device alone, and
speaks once for each finding. A finding under no living replica is judged in the same way by
`policy.fleet`, whether there is a job or not.
"""

from collections.abc import Iterable

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import is_held
from controlplane.policy.facts import attempt_live, live_replicas, node_of, on_replica
from controlplane.policy.findings import DEVICE_READING, KINDS, bucket_of, ends, verdict_of
from controlplane.policy.plan import Action, BarDevice, Decision, ResetDevice, Scalar, SetNodeState, SettleSignals
from controlplane.policy.readings import READINGS
from controlplane.policy.snapshot import DeviceFact, JobSnapshot, NodeFact, SignalFact
from controlplane.policy.titles import short
from controlplane.policy.xid import ACCUSES, ENDS, XidBucket
from controlplane.protocol.states import NodeState

RULE = "device_fault"
_TARGET = {
    XidBucket.FATAL: NodeState.CORDONED,
    XidBucket.RESET: NodeState.CORDONED,
    XidBucket.SUPPORT: NodeState.DEGRADED,
    XidBucket.DEGRADED: NodeState.DEGRADED,
}
_FROM = {
    NodeState.CORDONED: frozenset({NodeState.READY, NodeState.DEGRADED}),
    NodeState.DEGRADED: frozenset({NodeState.READY}),
}
_CHOICE = {
    XidBucket.FATAL: "cordon",
    XidBucket.RESET: "reset",
    XidBucket.SUPPORT: "ask",
    XidBucket.DEGRADED: "degrade",
}
_WORDS = {
    "cordon": "the node takes no new work",
    "reset": "the node takes no new work until the device is reset",
    "ask": "the device takes no new work and a person must look",
    "degrade": "the device takes no new work, what runs on it continues",
    "bar": "nothing new is started on it",
    "note": "recorded, the node is not to blame",
    "hold": "too much at once in the fleet; a person decides",
}


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision for each open finding about a device, and one for each reset that is due."""
    decisions: list[Decision] = []
    for signal in snapshot.signals:
        under_us = _under_us(snapshot, signal)
        held = is_held(snapshot, config, (signal.node_id or "",))
        # Then the eviction speaks of a device under a live replica.
        told = held and under_us and ends(signal, config)
        if signal.kind in KINDS and not signal.of_fleet and not told:
            node = node_of(snapshot, signal.node_id)
            decisions += judge(signal, node, config, held=held, under_us=under_us)
    left = 0 if is_held(snapshot, config) else config.max_acts - snapshot.acts_last_window
    return (*decisions, *resets(snapshot.nodes, now_s=snapshot.now_s, left=left))


def _under_us(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    return attempt_live(snapshot) and any(on_replica(signal, replica) for replica in live_replicas(snapshot))


def judge(
    signal: SignalFact, node: NodeFact | None, config: PolicyConfig, *, held: bool, under_us: bool = False
) -> tuple[Decision, ...]:
    """What one finding (`findings.KINDS`) leads to: about the device, and about its node. `under_us`:
    a live replica is on the device. Of one that ends it the device is a decision by itself: the
    eviction, which cordons the node as well, must not put it off. `held`: by the disruption budget."""
    bucket = bucket_of(signal, config)
    if bucket in ENDS and held:
        return (_decision(signal, node, config, "hold", "storm", ()),)
    if bucket not in ACCUSES:
        return (_decision(signal, node, config, "note", str(bucket), (SettleSignals(signal_ids=(signal.id,)),)),)
    actions: list[Action] = []
    bars: tuple[Action, ...] = ()
    target = _TARGET[bucket]
    if node is not None and node.state in _FROM[target]:
        actions.append(SetNodeState(node_id=node.id, to=target))
    if node is not None and signal.device_index is not None:
        reset = bucket is XidBucket.RESET
        bars = (BarDevice(node_id=node.id, device_index=signal.device_index, reset=reset, ask=_ask(signal, config)),)
    choice, code = _CHOICE[bucket], f"device_{bucket}"
    # A finding that ends a live replica is settled by the eviction that rests on it.
    if ends(signal, config) and under_us:
        about_node = (_decision(signal, node, config, choice, code, tuple(actions)),) if actions else ()
        return (_decision(signal, node, config, "bar", code, bars), *about_node)
    actions = [*actions, *bars, SettleSignals(signal_ids=(signal.id,))]
    return (_decision(signal, node, config, choice, code, tuple(actions)),)


def needs_hardware(signal: SignalFact, config: PolicyConfig) -> bool:
    """The finding says that a device is of no use until it is reset or replaced."""
    return signal.kind in KINDS and bucket_of(signal, config) in ENDS


def where_of(signal: SignalFact, node: NodeFact | None) -> str:
    """`device 1 of node-2`."""
    return f"device {signal.device_index} of {node.name if node else signal.node_id}"


def resets(nodes: Iterable[NodeFact], *, now_s: float, left: int) -> tuple[Decision, ...]:
    """Devices that wait for a reset and are empty now, on nodes that can be told; one of a node
    at a time, those that wait longest first, and at most `left`: the acts that the disruption
    budget has left, none while it holds."""
    due: list[tuple[float, NodeFact, DeviceFact]] = []
    for node in nodes:
        waiting = [(d.reset_wanted_s, d.index, d) for d in node.devices if d.reset_wanted_s is not None and not d.held]
        if waiting and node.connected:
            since_s, _, device = min(waiting, key=lambda item: item[:2])
            due.append((since_s, node, device))
    due.sort(key=lambda item: (item[0], item[1].id))
    return tuple(_reset(now_s, *item) for item in due[: max(0, left)])


def _reset(now_s: float, since_s: float, node: NodeFact, device: DeviceFact) -> Decision:
    return Decision(
        rule=RULE,
        choice="reset_device",
        reason_code="reset_due",
        sentence=f"Device {device.index} of {node.name} is empty: it is reset now.",
        key=f"device_reset:{node.id}:{device.index}:{since_s:.3f}",
        actions=(ResetDevice(node_id=node.id, device_index=device.index),),
        evidence={"device": device.uuid, "waited_s": round(now_s - since_s, 3)},
        routine=True,
    )


def _ask(signal: SignalFact, config: PolicyConfig) -> str:
    if signal.kind == "xid":
        return verdict_of(signal, config).ask
    if signal.kind == DEVICE_READING:
        limit = READINGS.get(str(signal.evidence.get("reading")))
        return limit.ask if limit else ""
    return "look why it fell off the bus: reboot the node; if it comes again, ask NVIDIA's support"


def _decision(
    signal: SignalFact,
    node: NodeFact | None,
    config: PolicyConfig,
    choice: str,
    code: str,
    actions: tuple[Action, ...],
) -> Decision:
    settles = any(isinstance(action, SettleSignals) for action in actions)
    where = where_of(signal, node)
    what, why, evidence = _told(signal, where, config)
    ask = _ask(signal, config) if choice in (*_CHOICE.values(), "bar") else ""
    return Decision(
        rule=RULE,
        choice=choice,
        reason_code=code,
        sentence=f"{what[:1].upper()}{what[1:]}: {_WORDS[choice]}{why}{f'; to do: {ask}' if ask else ''}.",
        key=f"device_fault:{choice}:{signal.id}{':settled' if settles else ''}",
        actions=actions,
        evidence={**evidence, "ask": ask},
        signal_ids=(signal.id,),
        routine=choice in ("note", "bar") or (settles and len(actions) == 1 and not signal.of_fleet),
        title=short(_title(signal, where, config)),
    )


def _told(signal: SignalFact, where: str, config: PolicyConfig) -> tuple[str, str, dict[str, Scalar]]:
    """What happened, by whose word, and the evidence."""
    if signal.kind == "xid":
        verdict = verdict_of(signal, config)
        doubt = f"; {verdict.disagreement}" if verdict.disagreement else ""
        evidence: dict[str, Scalar] = {
            "xid": verdict.xid,
            "nvidia": verdict.nvidia,
            "gpud": verdict.gpud,
            "provenance": verdict.provenance,
            "repeats": verdict.repeats,
            "link": signal.evidence.get("link"),
        }
        by = f" (judged by {verdict.provenance}){doubt}"
        return f"XID {verdict.xid} ({verdict.description}) on {where}", by, evidence
    if signal.kind == DEVICE_READING:
        limit = READINGS.get(str(signal.evidence.get("reading")))
        source = limit.source if limit else "an unknown reading"
        words = _reading(signal)
        evidence = {**signal.evidence, "value": signal.value, "limit": signal.threshold, "source": source}
        return f"{words} (limit {signal.threshold:g}) on {where}", f" ({source})", evidence
    return f"{where} fell off the bus", "", {"xid": None, "provenance": "driver"}


def _title(signal: SignalFact, where: str, config: PolicyConfig) -> str:
    if signal.kind == "xid":
        return f"XID {verdict_of(signal, config).xid} on {where}"
    if signal.kind == DEVICE_READING:
        return f"{_reading(signal)} on {where}"
    return f"{where} fell off the bus"


def _reading(signal: SignalFact) -> str:
    """How much of what."""
    name = str(signal.evidence.get("reading"))
    limit = READINGS.get(name)
    return limit.in_words(signal.value) if limit else f"{signal.value:g} {name}"
