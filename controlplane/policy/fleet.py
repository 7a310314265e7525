"""`decide_fleet(snapshot, config)`: faults of the fleet's hardware, with or without a job.

A device that fails under a living replica is that job's affair (`policy.decide`); everything
else is decided here: an XID, a lost device or a bad reading where nothing runs, a reset that is
due, a risky device where there is nothing to save, when an incident that waits for hardware is over, and when a
node that is drained is empty. Called by `recovery.fleet_pass` each second; touches nothing itself.
"""

from collections.abc import Iterable, Mapping

import msgspec

from controlplane.policy import breaker, drains
from controlplane.policy.acts import nodes_out
from controlplane.policy.config import PolicyConfig
from controlplane.policy.consent import agreed, consent
from controlplane.policy.disruption import Allowance, is_held
from controlplane.policy.disruption_counts import ActKind, DisruptionCounts
from controlplane.policy.findings import KINDS
from controlplane.policy.plan import Alternative, BarDevice, Decision, ResolveIncident, SetNodeState
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.rules import device_fault, device_risk
from controlplane.policy.rules.registry import HARDWARE_RETURN, ceiling
from controlplane.policy.snapshot import NodeFact, SignalFact
from controlplane.protocol.states import IncidentOutcome, IncidentState, Mode, NodeState

RISK_RULE, RETURN_RULE = device_risk.RULE, HARDWARE_RETURN


class HardwareIncident(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An incident that hardware keeps open. `devices`: indices on the node that its findings name; `beside`: other
    nodes that they name, each with its devices; `out`: one of them is of no use until it is reset or replaced;
    `lost`: its job failed, which no repair changes; `refuted`: its findings were withdrawn."""

    id: str
    title: str
    state: IncidentState
    node_id: str
    devices: tuple[int, ...]
    beside: tuple[tuple[str, tuple[int, ...]], ...] = ()
    out: bool = False
    lost: bool = False
    refuted: bool = False


class FleetSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Open findings about hardware under no living replica, the nodes and incidents that they and
    the returns concern, and what the disruption budget counts (see `JobSnapshot`), with the `segments`
    of all nodes by id. `requests`: the
    drains of nodes that have not ended. `recommended`: what was only recommended about the fleet, with what people said
    of it; `paused`: detection is, as the control plane's own side is not healthy. Server seconds."""

    now_s: float
    signals: tuple[SignalFact, ...] = ()
    nodes: tuple[NodeFact, ...] = ()
    incidents: tuple[HardwareIncident, ...] = ()
    acts_last_window: int = 0
    fleet_devices: int = 0
    suspect_devices: int = 0
    suspect_nodes: tuple[str, ...] | None = None
    segments: dict[str, str] = {}
    requests: tuple[RequestFact, ...] = ()
    disruption: DisruptionCounts = DisruptionCounts()
    recommended: tuple[Recommendation, ...] = ()
    paused: bool = False

    @property
    def divided(self) -> bool:
        """Its nodes are not all in one segment."""
        return len(set(self.segments.values())) > 1


def decide_fleet(snapshot: FleetSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """Everything to be decided now; equal snapshots give equal decisions."""
    nodes = {node.id: node for node in snapshot.nodes}
    left = Allowance(snapshot, config)
    found: list[Decision] = []
    for signal in snapshot.signals:
        node = nodes.get(signal.node_id or "")
        if signal.kind in KINDS:
            found += _judge(snapshot, config, signal, node, left)
        elif signal.kind == RISK_RULE:
            found.append(_asked(snapshot, config, _watch(signal, node)))
    resets = 0 if is_held(snapshot, config) else config.max_acts - snapshot.acts_last_window
    due = device_fault.resets(snapshot.nodes, now_s=snapshot.now_s, left=resets)
    found += [_asked(snapshot, config, decision) for decision in due]
    acts = ceiling(config, device_fault.RULE) is Mode.ENFORCE
    returns = (_back(incident, nodes, acts=acts) for incident in snapshot.incidents)
    emptied = drains.answers(snapshot.requests, nodes, now_s=snapshot.now_s)
    tripped = breaker.decisions(snapshot, config)
    return (*tripped, *found, *(decision for decision in returns if decision is not None), *emptied)


def _judge(
    snapshot: FleetSnapshot, config: PolicyConfig, signal: SignalFact, node: NodeFact | None, left: Allowance
) -> tuple[Decision, ...]:
    """About a device without work. What takes its node out of service is held once the pass has used the caps up."""
    place = (signal.node_id or "",)
    held = is_held(snapshot, config, place)
    answer = [_asked(snapshot, config, each) for each in device_fault.judge(signal, node, config, held=held)]
    acts = [act for each in answer if each.mode is Mode.ENFORCE for act in nodes_out(snapshot, each)]
    if acts and not left.takes(ActKind.CORDON, place):
        answer = [_asked(snapshot, config, each) for each in device_fault.judge(signal, node, config, held=True)]
    return tuple(msgspec.structs.replace(each, acts=tuple(nodes_out(snapshot, each))) for each in answer)


def _asked(snapshot: FleetSnapshot, config: PolicyConfig, decision: Decision) -> Decision:
    """As far as its rule may go by itself; what is only recommended has its price, and people's word carries it out."""
    mode = ceiling(config, decision.rule)
    if mode is not Mode.RECOMMEND:
        return msgspec.structs.replace(decision, mode=mode)
    waits = Alternative(action="wait", cost_gpu_s=None, why_not="nothing runs on it; what is started there is at risk")
    priced = msgspec.structs.replace(
        decision,
        mode=mode,
        cost_gpu_s=out_of_use_gpu_s(snapshot, config, decision),
        alternatives=(*decision.alternatives, *((waits,) if decision.actions else ())),
    )
    why = consent(snapshot, priced, config, after_s=config.fleet_act_after_s, paused=snapshot.paused)
    return agreed(priced, why) if why else priced


def out_of_use_gpu_s(snapshot: FleetSnapshot, config: PolicyConfig, decision: Decision) -> float | None:
    """GPU-seconds that devices take no work because of it, for as long as a repair is taken to last (`bar_s`); None:
    it takes nothing out of use."""
    nodes = {node.id: node for node in snapshot.nodes}
    out: set[tuple[str, int]] = set()
    for action in decision.actions:
        if isinstance(action, BarDevice):
            out.add((action.node_id, action.device_index))
        elif isinstance(action, SetNodeState) and action.to is NodeState.CORDONED and action.node_id in nodes:
            out |= {(action.node_id, device.index) for device in nodes[action.node_id].devices}
    return len(out) * config.bar_s if out else None


def _watch(signal: SignalFact, node: NodeFact | None) -> Decision:
    """A risky device without work: nothing to save; told, so that somebody may look."""
    where = device_fault.where_of(signal, node)
    return Decision(
        rule=RISK_RULE,
        choice="watch",
        reason_code="nothing_to_save",
        sentence=f"{where[:1].upper()}{where[1:]} scores {signal.value:.2f} (limit {signal.threshold:.2f}):"
        " no job runs on it, so there is nothing to save; it is watched.",
        key=f"risk_watch:{signal.id}",
        actions=(),
        evidence={"score": signal.value, "threshold": signal.threshold, **device_risk.parts_of(signal)},
        signal_ids=(signal.id,),
        title=f"{where[:1].upper()}{where[1:]} is at risk",
    )


def _back(incident: HardwareIncident, nodes: Mapping[str, NodeFact], *, acts: bool) -> Decision | None:
    """The incident is over: its hardware works again, all of it, is gone for good, or was never at fault. `acts`: the
    rule that takes hardware out may do so; in a correlated failure it does not, and what failed still shows it."""
    outcome = IncidentOutcome.RECOVERED
    places = ((incident.node_id, incident.devices), *incident.beside)
    left = [(nodes[node_id], devices) for node_id, devices in places if node_id in nodes]
    # Where what to do was only recorded nothing was taken out, so that nothing can be back.
    acted = acts or incident.state is not IncidentState.OPEN
    ready = all(node.state is NodeState.READY for node, _ in left)
    if not left:
        why, outcome = "Its node was taken out of the fleet.", IncidentOutcome.MITIGATED
    elif not incident.out and incident.state is IncidentState.MITIGATED and ready:
        why = f"{_listed(node.name for node, _ in left)} takes work again."
    elif incident.out and acted and all(devices and _healthy(node, devices) for node, devices in left):
        # Returning a node heals those of its devices that are there; one that is not stays out.
        healed = "; ".join(f"Device {_listed(devices)} of {node.name} is healthy again" for node, devices in left)
        shut = "".join(
            f"; {'the node' if len(left) == 1 else node.name} is {node.state} until a person returns it"
            for node, _ in left
            if node.state is not NodeState.READY
        )
        why = f"{healed}{shut}."
    elif incident.refuted:
        why = "What was found is gone again."
    else:
        return None
    outcome = IncidentOutcome.LOST if incident.lost else outcome
    return Decision(
        rule=RETURN_RULE,
        choice="resolve",
        reason_code="hardware_back" if outcome is IncidentOutcome.RECOVERED else str(outcome),
        sentence=why,
        key=f"hardware_return:{incident.id}",
        actions=(ResolveIncident(note=why, outcome=outcome, incident_id=incident.id),),
        routine=True,
    )


def _listed(what: Iterable[object]) -> str:
    return ", ".join(map(str, what))


def _healthy(node: NodeFact, indices: tuple[int, ...]) -> bool:
    known = {device.index: device for device in node.devices}
    return all(index in known and known[index].healthy for index in indices)
