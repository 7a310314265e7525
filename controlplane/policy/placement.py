"""Which rank runs on which device: deterministic, all or nothing (S0.1, S0.2).

A replica stays on one node when one can hold it (tensor parallel traffic stays on
NVLink); else in one segment (an NVLink domain or a block of the network, as agents name it)
when one can hold it; else it takes as few segments as it can. No tensor parallel group is
divided over nodes for the sake of a segment. Segments are a preference: what can be placed
without them can be placed with them. Warm nodes come first, so that a spare that is already
up is used before a cold one, and among equals one near the replica's old place; before all of them come those that are
reserved for the job's project, which nobody else could use; degraded
nodes come last but for those that have said nothing lately: their link may be half open. A first attempt has the
shape that was asked for (`Pool.shaped`): so many devices on each of so many nodes.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import NamedTuple

import msgspec

from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.snapshot import NodeFact, Placement
from controlplane.protocol.spec import TrainSpec
from controlplane.protocol.states import NodeState

Slot = tuple[str, int]
Devices = tuple[str, tuple[int, ...]]
PLACEABLE = frozenset({NodeState.READY, NodeState.DEGRADED})


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices one job may take: (node id, device index)s by node, nodes in order of preference.
    `segments` of the nodes that named one; any other node is a segment of its own. `unlisted`: so many devices
    of each segment lie on nodes that are no choice (`policy.elsewhere`)."""

    nodes: tuple[Devices, ...]
    segments: Mapping[str, str] = {}
    unlisted: Mapping[str, int] = {}

    @property
    def size(self) -> int:
        """Number of devices."""
        return sum(len(devices) for _, devices in self.nodes) + sum(self.unlisted.values())

    def without(self, taken: Iterable[Slot]) -> "Pool":
        """The pool less these devices; empty nodes disappear."""
        gone = by_node(taken)
        if not gone:
            return self
        left = (
            (node, tuple(d for d in devices if d not in gone[node]) if node in gone else devices)
            for node, devices in self.nodes
        )
        return msgspec.structs.replace(self, nodes=tuple(entry for entry in left if entry[1]))

    def without_nodes(self, nodes: Iterable[str]) -> "Pool":
        """The pool less whole nodes."""
        gone = frozenset(nodes)
        kept = tuple((node, devices) for node, devices in self.nodes if node not in gone)
        return msgspec.structs.replace(self, nodes=kept)

    def shaped(self, nodes: int, gpus_per_node: int) -> "Pool":
        """What a job may be placed on that asks for so many devices on each of so many nodes: as many of
        each node that has them free, and no node with fewer. Raises Unsatisfiable with the numbers."""
        kept = tuple((node, devices[:gpus_per_node]) for node, devices in self.nodes if len(devices) >= gpus_per_node)
        if len(kept) < nodes:
            have = "1 node has" if len(kept) == 1 else f"{len(kept)} nodes have"
            raise Unsatisfiable(
                f"{nodes} x {gpus_per_node} devices are asked for (nodes x gpus_per_node), {have} {gpus_per_node} free"
            )
        return Pool(nodes=kept, segments=self.segments)

    def segment_of(self, node_id: str) -> tuple[bool, str]:
        """Equal for two nodes exactly when they are near each other."""
        segment = self.segments.get(node_id, "")
        return bool(segment), segment or node_id


def of_type(nodes: Iterable[NodeFact], gpu_type: str | None) -> tuple[NodeFact, ...]:
    """The nodes with those of their devices alone whose model has the words of `gpu_type` in it, in
    that order and whatever their case: "H100" is in "NVIDIA H100 80GB HBM3", not in "GH100". None:
    any device."""
    if gpu_type is None:
        return tuple(nodes)
    return tuple(
        msgspec.structs.replace(node, devices=tuple(d for d in node.devices if is_type(d.model, gpu_type)))
        for node in nodes
    )


def is_type(model: str, gpu_type: str) -> bool:
    """A device of this model is what a job of `gpu_type` asks for."""
    return _pattern(gpu_type.lower()).search(model.lower()) is not None


@lru_cache(maxsize=64)
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9]){re.escape(words)}(?![a-z0-9])")


class Offer(NamedTuple):
    """What one node lends a job, and what speaks against the node: in this order the worse."""

    quiet: bool
    worn: bool
    shared: bool
    cold: bool
    foreign: bool
    node_id: str
    devices: tuple[int, ...]


def build_pool(
    nodes: tuple[NodeFact, ...],
    *,
    job_id: str,
    own: Iterable[Slot] = (),
    excluded: Iterable[Slot] = (),
    use_reserved: bool = True,
    near: Iterable[str] = (),
    fresh_s: float = math.inf,
    alone: Collection[str] = (),
) -> Pool:
    """Devices of `nodes` that `job_id` may be placed on now: see `offers_of` and `ordered`."""
    segments = {node.id: node.segment for node in nodes if node.segment}
    offers = offers_of(
        nodes,
        job_id=job_id,
        own=by_node(own),
        excluded=by_node(excluded),
        use_reserved=use_reserved,
        fresh_s=fresh_s,
        alone=alone,
    )
    return ordered(offers, segments, near)


def by_node(slots: Iterable[Slot]) -> dict[str, set[int]]:
    """The device indices of each node."""
    found: dict[str, set[int]] = defaultdict(set)
    for node_id, index in slots:
        found[node_id].add(index)
    return found


def offers_of(
    nodes: Iterable[NodeFact],
    *,
    job_id: str,
    own: Mapping[str, Collection[int]],
    excluded: Mapping[str, Collection[int]],
    use_reserved: bool = True,
    fresh_s: float = math.inf,
    alone: Collection[str] = (),
) -> tuple[Offer, ...]:
    """What each of `nodes` lends, if anything; `own` and `excluded` are device indices by node.

    `own` are held by processes of this job that end before the new ones start, so they
    count as free; `excluded` are held by its live ranks, or suspected. A
    node that is another job's spare lends none, one that is this job's only if
    `use_reserved`. `alone`: ids of nodes that its project has for itself. One that is silent for longer than `fresh_s`
    seconds is used after all that speak, however warm it is.
    """
    found = []
    for node in nodes:
        ours = node.reserved_for == job_id
        if not _may_take(node, ours, use_reserved):
            continue
        mine, barred = own.get(node.id, ()), excluded.get(node.id, ())
        devices = [
            device.index
            for device in node.devices
            if device.healthy
            and (device.free or device.index in mine or (ours and not device.held))
            and device.index not in barred
        ]
        quiet = node.silent_s is not None and node.silent_s > fresh_s
        if devices:
            worn = node.state is NodeState.DEGRADED
            shared = node.id not in alone
            found.append(Offer(quiet, worn, shared, not node.warm, not ours, node.id, tuple(sorted(devices))))
    return tuple(found)


def ordered(
    offers: Iterable[Offer],
    segments: Mapping[str, str],
    near: Iterable[str] = (),
    *,
    unlisted: Mapping[str, int] | None = None,
) -> Pool:
    """The offers as a pool. Among nodes as warm as each other those in a segment of `near` (node ids:
    where what is placed was before) are preferred."""
    home = {segments[node_id] for node_id in near if segments.get(node_id)}

    def rank(offer: Offer) -> tuple[bool, bool, bool, bool, bool, bool, str]:
        away = segments.get(offer.node_id, "") not in home
        return offer.quiet, offer.worn, offer.shared, offer.cold, away, offer.foreign, offer.node_id

    nodes = tuple((o.node_id, o.devices) for o in sorted(offers, key=rank))
    return Pool(nodes=nodes, segments=segments, unlisted=unlisted or {})


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
    if whole is None and _free(pool.nodes) < world_size:
        raise Unsatisfiable(f"a replica needs {world_size} devices, and some of the {pool.size} have just been taken")
    chosen = whole if whole is not None else min(_ways(pool, world_size), key=cost)
    return _placements(chosen)


def place_gang(pool: Pool, replicas: int, world_size: int, *, tp: int = 1) -> tuple[tuple[Placement, ...], ...]:
    """All replicas or none. Raises Unsatisfiable with the numbers."""
    needed = replicas * world_size
    if pool.size < needed:
        raise Unsatisfiable(f"{replicas} replicas of {world_size} need {needed} devices, {pool.size} are free")
    placed: list[tuple[Placement, ...]] = []
    first = 0
    entries = list(pool.nodes)
    for number, (node, devices) in enumerate(entries):
        whole = min(replicas - len(placed), len(devices) // world_size)
        for first in range(0, whole * world_size, world_size):
            placed.append(_placements((node, device) for device in devices[first : first + world_size]))
        entries[number] = (node, devices[whole * world_size :])
    pool = msgspec.structs.replace(pool, nodes=tuple(entry for entry in entries if entry[1]))
    for _ in range(replicas - len(placed)):
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

    def in_all(group: Sequence[Devices]) -> int:
        named, segment = pool.segment_of(group[0][0])
        return _free(group) + (pool.unlisted.get(segment, 0) if named else 0)

    yield from (_fill([group], world_size) for group in groups if _free(group) >= world_size)
    groups.sort(key=in_all, reverse=True)
    sizes = accumulate(map(_free, groups))
    few = next(number for number, size in enumerate(sizes, start=1) if size >= world_size)
    yield _fill(groups[:few], world_size)
    yield _fill([pool.nodes], world_size)


def _fill(groups: Iterable[Sequence[Devices]], world_size: int) -> tuple[Slot, ...]:
    """Devices of one group after the other, in each the fullest nodes first."""
    order = (entry for group in groups for entry in sorted(group, key=lambda entry: -len(entry[1])))
    return tuple(islice(((node, device) for node, devices in order for device in devices), world_size))


def _free(group: Sequence[Devices]) -> int:
    return sum(len(devices) for _, devices in group)


def _placements(slots: Iterable[Slot]) -> tuple[Placement, ...]:
    return tuple(Placement(rank=rank, node_id=node, device_index=d) for rank, (node, d) in enumerate(slots))


def slots_of(placements: Iterable[Placement]) -> tuple[Slot, ...]:
    """(node, device) of each placement."""
    return tuple((placement.node_id, placement.device_index) for placement in placements)


def first_pool(spec: TrainSpec, pool: Pool) -> Pool:
    """Of a pool what a first attempt takes: `gpus_per_node` devices of each of `nodes` nodes. Later ones, and what is
    started again, take what is left. Too few devices in all are counted by who places. Raises Unsatisfiable."""
    asked = spec.resources
    return pool if pool.size < asked.nodes * asked.gpus_per_node else pool.shaped(asked.nodes, asked.gpus_per_node)
