"""Which rank runs on which device: deterministic, all or nothing (S0.1, S0.2).

A replica stays on one node when one can hold it (tensor parallel traffic stays on
NVLink); else it takes whole nodes in order. Warm nodes come first, so that a spare that
is already up is used before a cold one; degraded nodes come last.
"""

from collections.abc import Iterable

import msgspec

from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.snapshot import NodeFact, Placement
from controlplane.protocol.states import NodeState

Slot = tuple[str, int]
PLACEABLE = frozenset({NodeState.READY, NodeState.DEGRADED})


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices one job may take: (node id, device index)s by node, nodes in order of preference."""

    nodes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Number of devices."""
        return sum(len(devices) for _, devices in self.nodes)

    def without(self, taken: Iterable[Slot]) -> "Pool":
        """The pool less these devices; empty nodes disappear."""
        gone = frozenset(taken)
        left = [(node, tuple(d for d in devices if (node, d) not in gone)) for node, devices in self.nodes]
        return Pool(nodes=tuple((node, devices) for node, devices in left if devices))

    def without_nodes(self, nodes: Iterable[str]) -> "Pool":
        """The pool less whole nodes."""
        gone = frozenset(nodes)
        return Pool(nodes=tuple((node, devices) for node, devices in self.nodes if node not in gone))


def build_pool(
    nodes: tuple[NodeFact, ...],
    *,
    job_id: str,
    own: Iterable[Slot] = (),
    occupied: Iterable[Slot] = (),
    excluded: Iterable[Slot] = (),
    use_reserved: bool = True,
) -> Pool:
    """Devices `job_id` may be placed on now.

    `own` are held by processes of this job that end before the new ones start, so they
    count as free; `occupied` are held by its live ranks; `excluded` are suspected. A
    node reserved for another job lends none, one reserved for this job only if
    `use_reserved`.
    """
    own_slots, barred = frozenset(own), frozenset(occupied) | frozenset(excluded)
    usable: list[tuple[tuple[bool, bool, bool, str], str, tuple[int, ...]]] = []
    for node in nodes:
        ours = node.reserved_for == job_id
        if not _may_take(node, ours, use_reserved):
            continue
        devices = tuple(
            device.index
            for device in sorted(node.devices, key=lambda device: device.index)
            if (node.id, device.index) not in barred
            and device.healthy
            and (device.free or (ours and not device.held) or (node.id, device.index) in own_slots)
        )
        rank = (node.state is NodeState.DEGRADED, not node.warm, not ours, node.id)
        if devices:
            usable.append((rank, node.id, devices))
    return Pool(nodes=tuple((node, devices) for _, node, devices in sorted(usable)))


def _may_take(node: NodeFact, ours: bool, use_reserved: bool) -> bool:
    if node.state not in PLACEABLE or not node.connected or node.unhealthy:
        return False
    if node.reserved_for is not None and not ours:
        return False
    return use_reserved or not ours


def place_replica(pool: Pool, world_size: int) -> tuple[Placement, ...]:
    """Devices for one replica: the first node that holds it whole, else as few nodes as
    possible, fullest first. Raises Unsatisfiable."""
    if pool.size < world_size:
        raise Unsatisfiable(f"a replica needs {world_size} devices, {pool.size} are free")
    for node, devices in pool.nodes:
        if len(devices) >= world_size:
            return tuple(Placement(rank=r, node_id=node, device_index=devices[r]) for r in range(world_size))
    order = sorted(range(len(pool.nodes)), key=lambda i: (-len(pool.nodes[i][1]), i))
    slots = [(pool.nodes[i][0], device) for i in order for device in pool.nodes[i][1]][:world_size]
    return tuple(Placement(rank=r, node_id=node, device_index=d) for r, (node, d) in enumerate(slots))


def place_gang(pool: Pool, replicas: int, world_size: int) -> tuple[tuple[Placement, ...], ...]:
    """All replicas or none. Raises Unsatisfiable with the numbers."""
    needed = replicas * world_size
    if pool.size < needed:
        raise Unsatisfiable(f"{replicas} replicas of {world_size} need {needed} devices, {pool.size} are free")
    placed: list[tuple[Placement, ...]] = []
    for _ in range(replicas):
        chosen = place_replica(pool, world_size)
        placed.append(chosen)
        pool = pool.without(slots_of(chosen))
    return tuple(placed)


def choose_spares(pool: Pool, devices: int) -> tuple[str, ...]:
    """Whole free nodes that together hold at least `devices`, in order. Raises Unsatisfiable."""
    if devices <= 0:
        return ()
    chosen: list[str] = []
    held = 0
    for node, free in sorted(pool.nodes, key=lambda item: (-len(item[1]), item[0])):
        chosen.append(node)
        held += len(free)
        if held >= devices:
            return tuple(sorted(chosen))
    raise Unsatisfiable(f"{devices} spare devices are asked for, {held} are left after placing the job")


def slots_of(placements: Iterable[Placement]) -> tuple[Slot, ...]:
    """(node, device) of each placement."""
    return tuple((placement.node_id, placement.device_index) for placement in placements)
