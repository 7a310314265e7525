"""What starting again takes: devices for a slot or an attempt, when it is due, what is given up.

Used by `ways` and `ends`, which weigh and judge, and by the rules, which carry it out.
"""

from controlplane.policy.asked import Need, near, require
from controlplane.policy.bars import lifted
from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import Allowance, is_held
from controlplane.policy.disruption_counts import ActKind
from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.facts import (
    is_member,
    nodes_of,
    setup_patience_s,
)
from controlplane.policy.findings import PROVING
from controlplane.policy.placement import Pool, Slot, place_replica, slots_of
from controlplane.policy.plan import SetNodeState, StartReplica
from controlplane.policy.pools import pool_for, size_for
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, Placement, ReplicaFact, SignalFact
from controlplane.protocol.states import UNFIT, NodeState, ReplicaState

_OPEN_NODES = (NodeState.READY, NodeState.DEGRADED)


def setup_over(snapshot: JobSnapshot) -> bool:
    """The attempt has had its whole set-up time."""
    attempt = snapshot.attempt
    return attempt is not None and snapshot.now_s - attempt.started_s >= setup_patience_s(snapshot)


def may_still_start(snapshot: JobSnapshot, config: PolicyConfig, *, soon: bool = False) -> bool:
    """An evicted slot has somewhere to start, so it is worth waiting for. `soon`: not one that
    nodes have refused over and over."""
    evicted = [
        replica
        for replica in snapshot.replicas
        if replica.state is ReplicaState.EVICTED and not (soon and seldom(replica, config))
    ]
    return any(
        pool_for(snapshot, config, leaving=(replica,)).size >= replica.world_size
        and may_start(snapshot, config, replica)
        for replica in evicted
    )


def backoff_s(failed: int, config: PolicyConfig) -> float:
    """Pause before the next start: doubles with each of the `failed` that came to nothing."""
    if failed <= 0:
        return 0.0
    doubling = 2.0 ** min(16, failed - 1)
    return min(config.start_backoff_max_s, config.start_backoff_s * doubling)


def start_slots(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    slots: tuple[ReplicaFact, ...],
    failures: tuple[Failure, ...] = (),
) -> tuple[StartReplica, ...]:
    """The next incarnation of as many of these slots as there are devices for, in order.

    A slot may take its own devices back (its agent ends the old processes first), never
    those of another slot, and nothing that a failure blames. Where its last start was refused
    it is tried again only if there is no other place.
    """
    bad_nodes, bad_slots = _blamed(failures)
    tp = snapshot.attempt.layout.tp if snapshot.attempt is not None else 1
    for ranks in sorted({slot.world_size for slot in slots}) if snapshot.job.env_opens else ():
        need = Need(replicas=len(slots), ranks=ranks, near=near(snapshot, map(nodes_of, slots)))
        require(snapshot, need, config.fresh_s)
    taken: list[tuple[str, int]] = []
    starts: list[StartReplica] = []
    for slot in sorted(slots, key=lambda replica: replica.index):
        pool = pool_for(snapshot, config, leaving=(slot,), bad_nodes=bad_nodes, bad_slots=bad_slots).without(taken)
        placements = _placed(pool, slot, tp=tp)
        if not placements:
            continue
        taken += slots_of(placements)
        newest = max(slot.incarnation, snapshot.job.ahead.incarnations.get(slot.index, 0))
        starts.append(StartReplica(replica=slot.index, incarnation=newest + 1, placements=placements))
    return tuple(starts)


def attempt_pool(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...] = ()) -> Pool:
    """Where the next attempt may go. What only bars keep it from is taken back where no replica
    would find a place without."""
    bad_nodes, bad_slots = _blamed(failures)
    pool = pool_for(snapshot, config, leaving=snapshot.replicas, bad_nodes=bad_nodes, bad_slots=bad_slots)
    if pool.size >= max((replica.world_size for replica in snapshot.replicas), default=1):
        return pool
    kept = tuple(slot for failure in failures if "barred" not in failure.evidence for slot in failure.bad_slots)
    return pool_for(lifted(snapshot), config, leaving=snapshot.replicas, bad_nodes=bad_nodes, bad_slots=kept)


def attempt_size(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> int:
    """Number of devices of `attempt_pool`."""
    bad_nodes, bad_slots = _blamed(failures)
    size = size_for(snapshot, config, leaving=snapshot.replicas, bad_nodes=bad_nodes, bad_slots=bad_slots)
    if size >= max((replica.world_size for replica in snapshot.replicas), default=1):
        return size
    return attempt_pool(snapshot, config, failures).size


def _blamed(failures: tuple[Failure, ...]) -> tuple[tuple[str, ...], tuple[Slot, ...]]:
    """(ids of nodes, devices) on which nothing is started for what failed there."""
    return (
        tuple(node for failure in failures for node in failure.bad_nodes),
        tuple(slot for failure in failures for slot in failure.bad_slots),
    )


def _placed(pool: Pool, slot: ReplicaFact, *, tp: int) -> tuple[Placement, ...]:
    """One place for the slot; (): there is none."""
    for choice in (pool.without_nodes(nodes_of(slot)), pool) if slot.refused else (pool,):
        try:
            return place_replica(choice, slot.world_size, tp=tp)
        except Unsatisfiable:
            continue
    return ()


def may_start(snapshot: JobSnapshot, config: PolicyConfig, slot: ReplicaFact) -> bool:
    """Neither the slot's starts nor the job's budget are used up (which pays for no start that
    follows a person's order or a refusal); `due_s` says when the next one is due. Refused
    starts are tried for ever: nothing ran, so nothing of the job is known to be at fault."""
    free = bool(slot.ordered_out) or slot.refused
    return slot.failed_starts - slot.refused_starts <= config.max_failed_starts and (free or not spent(snapshot))


def due_s(slot: ReplicaFact, config: PolicyConfig) -> float:
    """Server time from which the slot may be started again."""
    pause_s = config.refused_retry_s if seldom(slot, config) else backoff_s(slot.failed_starts, config)
    return slot.state_since_s + pause_s


def seldom(slot: ReplicaFact, config: PolicyConfig) -> bool:
    """Nodes have refused it over and over: it is tried now and then, and nobody waits for it."""
    return slot.failed_starts > config.max_failed_starts


def attempt_due_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """Server time from which the next attempt may be placed; later than now only after nodes
    would start nothing of the last ones."""
    attempt = snapshot.attempt
    if attempt is None or attempt.end_code != UNFIT:
        return 0.0
    return attempt.started_s + backoff_s(attempt.refused_attempts, config)


def out_of_service(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]
) -> tuple[SetNodeState, ...]:
    """Nodes that the failures blame: quarantined on proof of a fault, else cordoned; none that the
    disruption budget holds, for then a person decides about nodes."""
    left = Allowance(snapshot, config)
    quarantine = {node_id for failure in failures for node_id in failure.quarantine}
    cordon = {node_id for failure in failures for node_id in failure.cordon}
    moves = []
    for node in (
        snapshot.node_by_id[node_id] for node_id in sorted((quarantine | cordon) & snapshot.node_by_id.keys())
    ):
        if node.id in quarantine:
            leaves = node.state in (*_OPEN_NODES, NodeState.DRAINING, NodeState.CORDONED)
            if leaves and left.takes(ActKind.CORDON, (node.id,)):
                moves.append(SetNodeState(node_id=node.id, to=NodeState.QUARANTINED))
        elif node.state in _OPEN_NODES and left.takes(ActKind.CORDON, (node.id,)):
            moves.append(SetNodeState(node_id=node.id, to=NodeState.CORDONED))
    return tuple(moves)


def stays_open(snapshot: JobSnapshot, config: PolicyConfig, signal: SignalFact) -> bool:
    """A device's finding that the disruption budget holds: its node is not cordoned, so the finding alone keeps new
    work off the device until it is judged."""
    return signal.kind in PROVING and is_held(snapshot, config, (signal.node_id or "",))


def in_view(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> bool:
    """One of the failed replicas is a member, so the others need a new view."""
    return any(is_member(snapshot, failure.replica) for failure in failures)
