"""Nodes and their devices as the policy sees them, and how much of the fleet is suspect."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from controlplane.changes.assembly.rows import Device, Hosts, InUse, Known, Node
from controlplane.policy.snapshot import DeviceFact, NodeFact
from controlplane.protocol.states import NodeState

HOST_KEPT_S, WARM_KEPT_S = 900.0, 14_400.0
"""How long agents keep a rank host without ranks, and one that was warmed (agents.core.limits)."""


def hosts_up(hosts: Hosts, now_s: float) -> set[str]:
    """Ids of nodes where the job's rank host is up, as far as agents keep one."""
    warm = {node_id for node_id, at_s in hosts.warmed.items() if now_s - at_s <= WARM_KEPT_S}
    return {*hosts.used}.intersection(hosts.started) | warm


def nodes_of(
    nodes: Iterable[Node], devices: Mapping[str, list[DeviceFact]], known: Known, now_s: float
) -> tuple[NodeFact, ...]:
    """In the order of `nodes`."""
    up = hosts_up(known.hosts, now_s)
    return tuple(
        NodeFact(
            id=node.id,
            name=node.name,
            state=_state(node),
            connected=node.connected,
            silent_s=silent_s(node.unheard_s, node.closed_s),
            devices=tuple(devices.get(node.id, ())),
            warm=node.id in up,
            warmed_s=known.hosts.warmed.get(node.id),
            warm_asked_s=known.hosts.asked.get(node.id),
            reserved_for=known.reserved.get(node.id),
            unhealthy=known.unhealthy.get(node.id, ""),
            segment=node.segment,
            end=node.end,
            reservations=node.reservations,
        )
        for node in nodes
    )


def _state(node: Node) -> NodeState:
    """Quarantined for its missing events alone counts as cordoned: it gets no work, and what is found
    meanwhile may still quarantine it."""
    return NodeState.CORDONED if node.misses_events and node.state is NodeState.QUARANTINED else node.state


def silent_s(unheard_s: float | None, closed_s: float | None) -> float | None:
    """Seconds since a node was heard, by what `Node` knows. A closed connection is evidence of its own."""
    known = [value for value in (unheard_s, closed_s) if value is not None]
    return max(known) if known else None


def devices_of(rows: Iterable[Device], use: InUse) -> Mapping[str, list[DeviceFact]]:
    """By node id, in the order of `rows`."""
    held, reserved, resets = use.held, use.reserved, use.resets
    found: dict[str, list[DeviceFact]] = defaultdict(list)
    for node_id, device_id, index, uuid, healthy, present, risk, memory_bytes, model, _ in rows:
        found[node_id].append(
            DeviceFact(
                index=index,
                uuid=uuid,
                free=device_id not in held and device_id not in reserved,
                held=device_id in held,
                healthy=healthy and present,
                risk=risk,
                memory_bytes=memory_bytes,
                model=model,
                reset_wanted_s=resets.get(device_id),
            )
        )
    return found


def suspect_devices(named: Iterable[tuple[str, int | None]], sizes: Mapping[str, int]) -> set[tuple[str, int]]:
    """As (node id, index). `named`: by findings; without an index they name each of the node's, of which there
    are `sizes`."""
    found: set[tuple[str, int]] = set()
    for node_id, index in named:
        found |= {(node_id, each) for each in ([index] if index is not None else range(sizes.get(node_id, 0)))}
    return found
