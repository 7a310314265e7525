"""Which rank runs on which device: deterministic, all or nothing (S0.1, S0.2).

A replica stays on one node when one can hold it (tensor parallel traffic stays on
NVLink); else in one segment (an NVLink domain or a block of the network, as agents name it)
when one can hold it; else it takes as few segments as it can. No tensor parallel group is
divided over nodes for the sake of a segment. Segments are a preference: what can be placed
without them can be placed with them. Warm nodes come first, so that a spare that is already
up is used before a cold one, and among equals one near the replica's old place; degraded
nodes come last.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.snapshot import NodeFact, Placement
from controlplane.protocol.states import NodeState

Slot = tuple[str, int]
Devices = tuple[str, tuple[int, ...]]
PLACEABLE = frozenset({NodeState.READY, NodeState.DEGRADED})


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices one job may take: (node id, device index)s by node, nodes in order of preference.
    `segments` of the nodes that named one; any other node is a segment of its own."""

    nodes: tuple[Devices, ...]
    segments: dict[str, str] = {}

    @property
    def size(self) -> int:
        """Number of devices."""
        return sum(len(devices) for _, devices in self.nodes)

    def without(self, taken: Iterable[Slot]) -> "Pool":
        """The pool less these devices; empty nodes disappear."""
        gone = frozenset(taken)
        left = [(node, tuple(d for d in devices if (node, d) not in gone)) for node, devices in self.nodes]
        return Pool(nodes=tuple((node, devices) for node, devices in left if devices), segments=self.segments)

    def without_nodes(self, nodes: Iterable[str]) -> "Pool":
        """The pool less whole nodes."""
        gone = frozenset(nodes)
        kept = tuple((node, devices) for node, devices in self.nodes if node not in gone)
        return Pool(nodes=kept, segments=self.segments)

    def segment_of(self, node_id: str) -> tuple[bool, str]:
        """Equal for two nodes exactly when they are near each other."""
        segment = self.segments.get(node_id, "")
        return bool(segment), segment or node_id


def build_pool(
    nodes: tuple[NodeFact, ...],
    *,
    job_id: str,
    own: Iterable[Slot] = (),
    occupied: Iterable[Slot] = (),
    excluded: Iterable[Slot] = (),
    use_reserved: bool = True,
    near: Iterable[str] = (),
) -> Pool:
    """Devices `job_id` may be placed on now.

    `own` are held by processes of this job that end before the new ones start, so they
    count as free; `occupied` are held by its live ranks; `excluded` are suspected. A
    node reserved for another job lends none, one reserved for this job only if
    `use_reserved`. Among nodes as warm as each other those in a segment of `near` (node ids:
    where what is placed was before) are preferred.
    """
    own_slots, barred, old = frozenset(own), frozenset(occupied) | frozenset(excluded), frozenset(near)
    segments = {node.id: node.segment for node in nodes if node.segment}
    home = {segments[node_id] for node_id in old if node_id in segments}
    usable: list[tuple[tuple[bool, bool, bool, bool, str], str, tuple[int, ...]]] = []
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
        rank = (node.state is NodeState.DEGRADED, not node.warm, node.segment not in home, not ours, node.id)
        if devices:
            usable.append((rank, node.id, devices))
    return Pool(nodes=tuple((node, devices) for _, node, devices in sorted(usable)), segments=segments)


def _may_take(node: NodeFact, ours: bool, use_reserved: bool) -> bool:
    if node.state not in PLACEABLE or not node.connected or node.unhealthy:
        return False
    if node.reserved_for is not None and not ours:
        return False
    return use_reserved or not ours


def place_replica(pool: Pool, world_size: int, *, tp: int = 1) -> tuple[Placement, ...]:
    """Devices for one replica whose tensor parallel groups are `tp` ranks in a row: the first
    node that holds it whole; else of all ways tried (each segment alone, as few as can be, the
    fullest nodes wherever they are) the one that divides the fewest groups over nodes, then takes
    the fewest segments, the fewest nodes, the preferred ones. Raises Unsatisfiable."""
    if pool.size < world_size:
        raise Unsatisfiable(f"a replica needs {world_size} devices, {pool.size} are free")
    place = {node: number for number, (node, _) in enumerate(pool.nodes)}

    def cost(slots: tuple[Slot, ...]) -> tuple[int, int, int, int]:
        nodes = [node for node, _ in slots]
        divided = sum(len(set(nodes[first : first + tp])) > 1 for first in range(0, world_size, tp))
        segments = {pool.segment_of(node) for node in nodes}
        return divided, len(segments), len(set(nodes)), min((place[node] for node in nodes), default=0)

    whole = next((_fill([[entry]], world_size) for entry in pool.nodes if len(entry[1]) >= world_size), None)
    chosen = whole if whole is not None else min(_ways(pool, world_size), key=cost)
    return tuple(Placement(rank=r, node_id=node, device_index=d) for r, (node, d) in enumerate(chosen))


def place_gang(pool: Pool, replicas: int, world_size: int, *, tp: int = 1) -> tuple[tuple[Placement, ...], ...]:
    """All replicas or none. Raises Unsatisfiable with the numbers."""
    needed = replicas * world_size
    if pool.size < needed:
        raise Unsatisfiable(f"{replicas} replicas of {world_size} need {needed} devices, {pool.size} are free")
    placed: list[tuple[Placement, ...]] = []
    for _ in range(replicas):
        chosen = place_replica(pool, world_size, tp=tp)
        placed.append(chosen)
        pool = pool.without(slots_of(chosen))
    return tuple(placed)


def choose_spares(pool: Pool, devices: int, *, near: Iterable[str] = ()) -> tuple[str, ...]:
    """Whole free nodes that together hold at least `devices`, in order; of those as large as
    each other first the ones in a segment of the nodes `near`. Raises Unsatisfiable."""
    if devices <= 0:
        return ()
    home = {pool.segment_of(node) for node in near}
    chosen: list[str] = []
    held = 0
    for node, free in sorted(
        pool.nodes, key=lambda item: (-len(item[1]), pool.segment_of(item[0]) not in home, item[0])
    ):
        chosen.append(node)
        held += len(free)
        if held >= devices:
            return tuple(sorted(chosen))
    raise Unsatisfiable(f"{devices} spare devices are asked for, {held} are left after placing the job")


def _ways(pool: Pool, world_size: int) -> Iterator[tuple[Slot, ...]]:
    """Every arrangement that is worth a comparison; the last one always exists."""
    by_segment: dict[tuple[bool, str], list[Devices]] = {}
    for entry in pool.nodes:
        by_segment.setdefault(pool.segment_of(entry[0]), []).append(entry)
    groups = list(by_segment.values())
    yield from (_fill([group], world_size) for group in groups if _free(group) >= world_size)
    groups.sort(key=_free, reverse=True)
    few = 1
    while sum(map(_free, groups[:few])) < world_size:
        few += 1
    yield _fill(groups[:few], world_size)
    yield _fill([pool.nodes], world_size)


def _fill(groups: Iterable[Sequence[Devices]], world_size: int) -> tuple[Slot, ...]:
    """Devices of one group after the other, in each the fullest nodes first."""
    order = (entry for group in groups for entry in sorted(group, key=lambda entry: -len(entry[1])))
    return tuple(islice(((node, device) for node, devices in order for device in devices), world_size))


def _free(group: Sequence[Devices]) -> int:
    return sum(len(devices) for _, devices in group)


def slots_of(placements: Iterable[Placement]) -> tuple[Slot, ...]:
    """(node, device) of each placement."""
    return tuple((placement.node_id, placement.device_index) for placement in placements)
