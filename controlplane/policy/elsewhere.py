"""Decide by a snapshot that does not hold the whole fleet, as if it did (ADR 0036).

What is listed of the fleet is what placement could choose: of everything that it orders the first entries,
as many as all that is placed can use up. So the choice is that on the whole fleet, exactly.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from controlplane.policy.asked import Again, Asks, Elsewhere, Need
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.placement import of_type, offers_of
from controlplane.policy.plan import Plan
from controlplane.policy.snapshot import BarFact, JobSnapshot, NodeFact, ReplicaFact, SignalFact

Answer = Callable[[JobSnapshot, Asks], JobSnapshot]
Decide = Callable[[JobSnapshot, PolicyConfig], Plan]


class Lent(NamedTuple):
    """What a node that is not the job's own would lend it: a node against which nothing speaks but, in this order
    the worse, that it is `quiet` or `worn` (`placement.Offer`). `memory_bytes` of the smallest
    free device."""

    quiet: bool
    worn: bool
    node_id: str
    free: int
    segment: str = ""
    memory_bytes: int | None = None


def decide_asking(
    snapshot: JobSnapshot, config: PolicyConfig, answer: Answer, *, judge: Decide = decide
) -> tuple[JobSnapshot, Plan]:
    """The plan, and the snapshot with all that was asked: of that one the plan follows again, without a question.
    It ends, as nothing is asked twice and rules place few things."""
    while True:
        try:
            return snapshot, judge(snapshot, config)
        except Asks as asks:
            snapshot = answer(snapshot, asks)


def own_nodes(
    replicas: Iterable[ReplicaFact], signals: Iterable[SignalFact], bars: Iterable[BarFact]
) -> frozenset[str]:
    """Ids of nodes that matter to a job whatever it asks: it runs there, or something is said of them."""
    homes = {node_id for replica in replicas for node_id in replica.node_ids}
    named = {signal.node_id for signal in signals if signal.node_id is not None}
    return frozenset(homes | named | {bar.node_id for bar in bars})


def answered(
    snapshot: JobSnapshot,
    needs: tuple[Need, ...],
    lent: Sequence[Lent],
    nodes_of: Callable[[set[str]], Iterable[NodeFact]],
    again: Callable[[], Again | None],
) -> JobSnapshot:
    """The snapshot with these `needs` answered from what all nodes beyond its own lend. `nodes_of` some ids: the
    nodes as facts. `again`: what the project's quota has for the next attempt, read once, where that is asked for."""
    assert snapshot.elsewhere is not None, "a snapshot of the whole fleet asks nothing"
    answered_before = any(need.again for need in snapshot.elsewhere.needs)
    quota = again() if any(need.again for need in needs) and not answered_before else snapshot.elsewhere.again
    segments = {node.segment for node in snapshot.nodes if node.segment}
    listed = {node_id for need in needs for node_id in choose(lent, need, segments)}
    rest: dict[str, int] = defaultdict(int)
    for offer in lent:
        if offer.node_id not in listed:
            rest[offer.segment] += offer.free
    sizes = [o.memory_bytes for o in lent if o.node_id not in listed and o.memory_bytes is not None]
    known = set(snapshot.node_by_id)
    more = nodes_of(listed - known) if listed - known else ()
    return msgspec.structs.replace(
        snapshot,
        nodes=tuple(sorted((*snapshot.nodes, *more), key=lambda node: node.id)),
        elsewhere=msgspec.structs.replace(
            snapshot.elsewhere,
            needs=needs,
            free_devices=dict(sorted(rest.items())),
            memory_bytes=min(sizes, default=None),
            again=quota,
        ),
    )


def choose(lent: Iterable[Lent], need: Need, own_segments: Collection[str]) -> set[str]:
    """Ids of the nodes among which placement chooses for this need, whatever the job's own nodes are."""
    base = sorted(lent, key=lambda offer: offer[:3])
    listed: set[str] = set()
    if need.replicas:
        places = [offer._replace(free=need.of_each or offer.free) for offer in base if offer.free >= need.of_each]
        fits = [offer for offer in places if offer.free >= need.ranks]
        listed |= _first(fits, need.replicas, lambda offer: offer.free // need.ranks)
        for segments in need.near:
            close = (offer for offer in fits if offer.segment in segments)
            listed |= _first(close, need.replicas, lambda offer: offer.free // need.ranks)
        if sum(offer.free // need.ranks for offer in fits) < need.replicas:
            listed |= _divided([offer for offer in places if offer.free < need.ranks], need)
    if need.spare_devices:
        listed |= _spares(base, need, listed, own_segments)
    return listed


def _divided(small: list[Lent], need: Need) -> set[str]:
    """For replicas that no node holds whole: of each segment the fullest, and the first, by which segments are
    ordered. Each replica leaves at most one node in part unused."""
    wanted = need.replicas * (need.ranks + max((offer.free for offer in small), default=0))
    listed = set()
    for group in _by_segment(small).values():
        listed.add(group[0].node_id)
        listed |= _first(sorted(group, key=lambda offer: -offer.free), wanted, lambda offer: offer.free)
    return listed


def _spares(base: list[Lent], need: Need, listed: set[str], own_segments: Collection[str]) -> set[str]:
    """Of what is left beside the places: the largest, anywhere and in each segment that may be near."""
    left = sorted((o for o in base if o.node_id not in listed), key=lambda offer: (-offer.free, offer.node_id))
    close = {offer.segment for offer in base if offer.node_id in listed} | {*own_segments}
    found = _first(left, need.spare_devices, lambda offer: offer.free)
    for segment, group in _by_segment(left).items():
        if segment and segment in close:
            found |= _first(group, need.spare_devices, lambda offer: offer.free)
    return found


def _first(offers: Iterable[Lent], wanted: int, worth: Callable[[Lent], int]) -> set[str]:
    """The first of them that are worth so much together; all where they are not."""
    found: set[str] = set()
    for offer in offers:
        if wanted <= 0:
            break
        found.add(offer.node_id)
        wanted -= worth(offer)
    return found


def _by_segment(offers: Iterable[Lent]) -> Mapping[str, list[Lent]]:
    found: dict[str, list[Lent]] = defaultdict(list)
    for offer in offers:
        found[offer.segment].append(offer)
    return found


def parted(snapshot: JobSnapshot, again: Callable[[], Again | None] = lambda: None) -> tuple[JobSnapshot, Answer]:
    """A snapshot of the whole fleet as one that holds the job's own nodes, and who answers for the others: what
    `recovery.load` and `recovery.load_candidates` are to rows. `again`: see `answered`."""
    job = snapshot.job
    own = own_nodes(snapshot.replicas, snapshot.signals, snapshot.bars)
    mine: list[NodeFact] = []
    others: list[NodeFact] = []
    for node in snapshot.nodes:
        matters = node.id in own or node.warm or node.unhealthy or node.reserved_for == job.id or node.end is not None
        matters = matters or bool(node.reservations)
        waits = any(device.reset_wanted_s is not None for device in node.devices)
        (mine if matters or waits or node.warm_asked_s is not None else others).append(node)
    suspect = {*(snapshot.suspect_nodes or ())}
    told = Elsewhere(
        divided=snapshot.divided, segments={node.id: node.segment for node in others if node.id in suspect}
    )

    def answer(asked: JobSnapshot, asks: Asks) -> JobSnapshot:
        lent = lent_by(of_type(others, job.spec.resources.gpu_type), job.id, asks.fresh_s)
        return answered(asked, asks.needs, lent, lambda ids: (node for node in others if node.id in ids), again)

    return msgspec.structs.replace(snapshot, nodes=tuple(mine), elsewhere=told), answer


def lent_by(nodes: Iterable[NodeFact], job_id: str, fresh_s: float) -> list[Lent]:
    """What these nodes, none of them the job's own, would lend it."""
    found = []
    by_id = {node.id: node for node in nodes}
    for offer in offers_of(by_id.values(), job_id=job_id, own={}, excluded={}, fresh_s=fresh_s):
        node, free = by_id[offer.node_id], {*offer.devices}
        sizes = [d.memory_bytes for d in node.devices if d.index in free and d.memory_bytes is not None]
        found.append(Lent(offer.quiet, offer.worn, node.id, len(free), node.segment, min(sizes, default=None)))
    return found
