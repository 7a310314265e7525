"""Where a job may start something now: the devices that nothing speaks against.

What nodes lend with nobody leaving is worked out once for each pass; asked for one slot after the
other, only the nodes of that slot are looked at again (ADR 0030).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from controlplane.policy import findings, leaving, numerics
from controlplane.policy.asked import Need, require
from controlplane.policy.bars import bad_places, standing
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import node_of, nodes_of, signals_of
from controlplane.policy.once import per_pass, per_snapshot
from controlplane.policy.placement import Offer, Pool, Slot, by_node, of_type, offers_of, ordered
from controlplane.policy.reserved import is_own
from controlplane.policy.snapshot import LIVE_REPLICA, JobSnapshot, NodeFact, ReplicaFact, SignalFact
from controlplane.protocol.states import QUEUED_JOB


def pool_for(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    *,
    leaving: tuple[ReplicaFact, ...] = (),
    bad_nodes: tuple[str, ...] = (),
    bad_slots: tuple[Slot, ...] = (),
    use_reserved: bool = True,
) -> Pool:
    """Devices on which this job may start something now. Those of `leaving` replicas
    count as free (their agent ends the old processes first), except on bad nodes. None while the values of
    its environment are lost: nothing of it could start."""
    if not snapshot.job.env_opens:
        return Pool(nodes=())
    homes = {node_id for replica in leaving for node_id in nodes_of(replica)}
    offers = _open_to(snapshot, config, homes, leaving=leaving, use_reserved=use_reserved)
    pool = ordered(offers, _named_segments(snapshot), homes, unlisted=_unlisted(snapshot))
    return pool.without(bad_slots).without_nodes((*bad_nodes, *_closed(snapshot, config)))


def size_for(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    *,
    leaving: tuple[ReplicaFact, ...] = (),
    bad_nodes: tuple[str, ...] = (),
    bad_slots: tuple[Slot, ...] = (),
) -> int:
    """Number of devices of that pool, for who asks for no more: which of them is taken first costs most of it."""
    if not snapshot.job.env_opens:
        return 0
    homes = {node_id for replica in leaving for node_id in nodes_of(replica)}
    gone, closed = by_node(bad_slots), {*bad_nodes, *_closed(snapshot, config)}
    offers = _open_to(snapshot, config, homes, leaving=leaving, use_reserved=True)
    listed = sum(
        len(offer.devices) - len(gone.get(offer.node_id, set()).intersection(offer.devices))
        for offer in offers
        if offer.node_id not in closed
    )
    return listed + sum(_unlisted(snapshot).values())


def _open_to(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    homes: set[str],
    *,
    leaving: tuple[ReplicaFact, ...],
    use_reserved: bool,
) -> list[Offer]:
    """What all nodes lend once `leaving` have left their `homes`."""
    require(snapshot, Need(), config.fresh_s)
    lent = _lent(snapshot, config) if use_reserved else _lent_unreserved(snapshot, config)
    offers = [offer for offer in lent if offer.node_id not in homes]
    offers += _offers(snapshot, config, homes, leaving=leaving, use_reserved=use_reserved)
    return [offer for offer in offers if offer.node_id in alone(snapshot)] if _kept_in(snapshot) else offers


def _closed(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[str, ...]:
    """Ids of nodes on which nothing is started, whatever they lend."""
    silent = (signal.node_id for signal in signals_of(snapshot, "node_silent") if signal.node_id)
    _, barred = bad_places(standing(snapshot, config))
    return (*silent, *barred, *leaving.closed(snapshot, config))


def _unlisted(snapshot: JobSnapshot) -> Mapping[str, int]:
    return snapshot.elsewhere.free_devices if snapshot.elsewhere is not None and not _kept_in(snapshot) else {}


def _kept_in(snapshot: JobSnapshot) -> bool:
    """It passes others in the queue because it starts where nobody else could."""
    return snapshot.queue is not None and snapshot.queue.alone and snapshot.job.state in QUEUED_JOB


@per_snapshot
def alone(snapshot: JobSnapshot) -> frozenset[str]:
    """Ids of the nodes that are reserved for the job's project now."""
    project, now_s = snapshot.job.project, snapshot.now_s
    return frozenset(n.id for n in snapshot.nodes if n.reservations and is_own(n.reservations, project, now_s))


def why_none(snapshot: JobSnapshot, words: str) -> str:
    """Why nothing of the job is started: in `words`, unless it is for its environment."""
    return words if snapshot.job.env_opens else "the values of its env were sealed with another HOLDFAST_SECRET_KEY"


@per_pass
def _lent(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Offer, ...]:
    """Without anybody leaving."""
    return _offers(snapshot, config, _lenders(snapshot), use_reserved=True)


@per_pass
def _lent_unreserved(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Offer, ...]:
    return _offers(snapshot, config, _lenders(snapshot), use_reserved=False)


def _offers(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    node_ids: Iterable[str],
    *,
    leaving: tuple[ReplicaFact, ...] = (),
    use_reserved: bool,
) -> tuple[Offer, ...]:
    typed = _of_its_type(snapshot)
    nodes = tuple(typed[node_id] for node_id in node_ids if node_id in typed)
    barred, _ = bad_places(standing(snapshot, config))
    excluded = by_node((*suspected(snapshot, config), *barred))
    own: dict[str, list[int]] = defaultdict(list)
    # What is proved gone holds nothing: its devices may be another's by now, whose end is not proved.
    for replica in (each for each in leaving if not each.stopped):
        for node_id, devices in _held_by(replica):
            own[node_id].extend(devices)
    _exclude_occupied(snapshot, nodes, excluded, but={replica.index for replica in leaving})
    return offers_of(
        nodes,
        job_id=snapshot.job.id,
        own=own,
        excluded=excluded,
        use_reserved=use_reserved,
        fresh_s=config.fresh_s,
        alone=alone(snapshot),
    )


def _held_by(replica: ReplicaFact) -> Iterable[tuple[str, Sequence[int]]]:
    """Devices under its processes that are not proved gone, by node."""
    if not replica.released:
        return replica.by_node.items()
    gone = frozenset(replica.released)
    return [(place.node_id, (place.device_index,)) for place in replica.placements if place.rank not in gone]


def _exclude_occupied(
    snapshot: JobSnapshot, nodes: tuple[NodeFact, ...], excluded: dict[str, set[int]], *, but: set[int]
) -> None:
    """Devices under processes of this job that live or are not proved gone, less those of the replica
    indices in `but`."""
    here = _replicas_on(snapshot)
    for node in nodes:
        for replica in here.get(node.id, ()):
            if replica.index not in but:
                excluded[node.id].update(replica.by_node[node.id])


@per_snapshot
def _replicas_on(snapshot: JobSnapshot) -> dict[str, list[ReplicaFact]]:
    """Replicas whose processes live or are not proved gone, by node."""
    found: dict[str, list[ReplicaFact]] = defaultdict(list)
    for replica in snapshot.replicas:
        if replica.state in LIVE_REPLICA or not replica.stopped:
            for node_id in replica.node_ids:
                found[node_id].append(replica)
    return found


@per_pass
def suspected(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Slot, ...]:
    """Devices an open hardware finding names: nothing is started there. An XID that the
    catalogue blames on the program, or ignores, accuses no device."""
    return tuple(
        (signal.node_id, device.index)
        for signal in snapshot.signals
        if _accuses(signal, config) and signal.node_id is not None
        for node in (node_of(snapshot, signal.node_id),)
        if node is not None
        for device in node.devices
        if signal.device_index in (None, device.index)
    )


def _accuses(signal: SignalFact, config: PolicyConfig) -> bool:
    return numerics.accuses(signal) or findings.accuses(signal, config)


@per_snapshot
def _of_its_type(snapshot: JobSnapshot) -> dict[str, NodeFact]:
    nodes = of_type(snapshot.nodes, snapshot.job.spec.resources.gpu_type)
    return {node.id: node for node in nodes}


@per_snapshot
def _lenders(snapshot: JobSnapshot) -> tuple[str, ...]:
    """Ids of the nodes that could lend a device with nobody leaving."""
    job_id = snapshot.job.id
    return tuple(node.id for node in _of_its_type(snapshot).values() if _lends(node, ours=node.reserved_for == job_id))


def _lends(node: NodeFact, *, ours: bool) -> bool:
    # Of each device of a fleet: `any` over a generator takes twice as long.
    for device in node.devices:  # noqa: SIM110
        if device.free or (ours and not device.held):
            return True
    return False


@per_snapshot
def _named_segments(snapshot: JobSnapshot) -> dict[str, str]:
    return {node.id: node.segment for node in _of_its_type(snapshot).values() if node.segment}
