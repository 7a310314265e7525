"""The ways out of a failure: when the attempt must restart, what a replacement needs.

Used by the rules `replica_failure`, `restart` and `replace`, which carry them out.
"""

import msgspec

from controlplane.policy import numerics
from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.exits import EXIT_DO_NOT_REQUEUE
from controlplane.policy.facts import (
    all_joined,
    attempt_live,
    current_view,
    holds_state,
    installed,
    is_member,
    live_replicas,
    nodes_of,
    pool_for,
    setup_patience_s,
    signals_of,
    world_sizes,
)
from controlplane.policy.failures import fresh_outer_errors
from controlplane.policy.membership import install, missing_flushes
from controlplane.policy.placement import Pool, place_replica, slots_of
from controlplane.policy.plan import ORDERED, UNPAID, SetNodeState, StartReplica
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, Placement, ReplicaFact
from controlplane.protocol.states import UNFIT, NodeState, ReplicaState

_OPEN_NODES = (NodeState.READY, NodeState.DEGRADED)
_TOO_FEW = ("all_lost", "no_contributor", "below_min_replicas")
"""Reasons that say only how many are left, so that why they are gone is the cause."""


class RestartReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why the attempt cannot go on. `final`: nor can any other attempt."""

    code: str
    sentence: str
    final: bool = False
    signal_ids: tuple[str, ...] = ()


def restart_reason(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> RestartReason | None:
    """None: enough replicas that hold the newest state are left to go on without a stop."""
    if not attempt_live(snapshot):
        return None
    why = _cannot_go_on(snapshot, config, failures)
    suffered = {failure.kind for failure in failures} - set(UNPAID)
    if why is not None and failures and not suffered and why.code in _TOO_FEW:
        return _named(snapshot, why, failures)
    if why is None and spent(snapshot) and (suffered or fresh_outer_errors(snapshot, config)):
        # The others could go on, but every way on is a restart of some rung.
        return RestartReason(code="budget_spent", sentence="another restart would be needed")
    return why


def _named(snapshot: JobSnapshot, why: RestartReason, failures: tuple[Failure, ...]) -> RestartReason:
    """Too few are left, through an order or through refused starts alone: called by that name."""
    if any(failure.kind == ORDERED for failure in failures):
        return msgspec.structs.replace(why, code=ORDERED)
    lost = {failure.replica.index for failure in failures}
    if why.code == "all_lost" and all(replica.refused for replica in snapshot.replicas if replica.index not in lost):
        return RestartReason(code=UNFIT, sentence="no node would start a replica")
    return why


def _cannot_go_on(snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...]) -> RestartReason | None:
    """Why no smaller rung than a new attempt is left."""
    asked = next((f for f in failures if f.evidence.get("exit_code") == EXIT_DO_NOT_REQUEUE), None)
    if asked is not None:
        return RestartReason(
            code="do_not_requeue", sentence=f"{asked.sentence}: it asks not to be restarted", final=True
        )
    alike = numerics.reproduced(snapshot)
    if alike:
        what = f"step {numerics.step_of(alike[0])} gives the same refused result on {len(alike)} devices"
        return RestartReason(
            code="numerics_reproduced",
            sentence=f"{what}: the software or the data is to blame, no device",
            signal_ids=tuple(signal.id for signal in alike),
        )
    if signals_of(snapshot, "nan_loss"):
        return RestartReason(code="nan_loss", sentence="the loss is not a number, in every replica alike")
    lost = {failure.replica.index for failure in failures}
    left = [replica for replica in live_replicas(snapshot) if replica.index not in lost]
    if current_view(snapshot) is None:
        return _never_starts(snapshot, config, failures, left)
    return _too_few(snapshot, failures, [replica for replica in left if holds_state(snapshot, replica)])


def _never_starts(
    snapshot: JobSnapshot, config: PolicyConfig, failures: tuple[Failure, ...], left: list[ReplicaFact]
) -> RestartReason | None:
    """Before the first view: all that came up failed, or its set-up time is over and nothing
    that may still come makes up the number that must be."""
    attempt = snapshot.attempt
    assert attempt is not None, "called for a live attempt"
    if failures:
        return None if left else RestartReason(code="all_lost", sentence="no replica came up")
    needed = max(1, snapshot.job.spec.resources.min_replicas)
    if len(left) >= needed or not setup_over(snapshot) or may_still_start(snapshot, config):
        return None
    if not all(all_joined(replica) for replica in left):
        return None
    return RestartReason(
        code="below_min_replicas",
        sentence=f"{len(left)} of {attempt.replicas} replicas came up, {needed} must be, and no free device fits"
        " another",
    )


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


def _too_few(snapshot: JobSnapshot, failures: tuple[Failure, ...], holders: list[ReplicaFact]) -> RestartReason | None:
    needed = max(1, snapshot.job.spec.resources.min_replicas)
    if not holders:
        return RestartReason(code="no_contributor", sentence="no replica with the newest state is left")
    if len(holders) < needed:
        return RestartReason(code="below_min_replicas", sentence=f"{len(holders)} replicas are left, {needed} must be")
    view = current_view(snapshot)
    if view is None or installed(snapshot) or failures:
        return None
    flushed = not missing_flushes(view, snapshot.flushes, world_sizes(snapshot))
    if flushed and install(view, snapshot.flushes, world_sizes(snapshot)) is None:
        return RestartReason(code="no_contributor", sentence="every member flushed and none of them contributes")
    return None


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
    bad_nodes = tuple(node for failure in failures for node in failure.bad_nodes)
    bad_slots = tuple(slot for failure in failures for slot in failure.bad_slots)
    tp = snapshot.attempt.layout.tp if snapshot.attempt is not None else 1
    taken: list[tuple[str, int]] = []
    starts: list[StartReplica] = []
    for slot in sorted(slots, key=lambda replica: replica.index):
        pool = pool_for(snapshot, config, leaving=(slot,), bad_nodes=bad_nodes, bad_slots=bad_slots).without(taken)
        placements = _placed(pool, slot, tp=tp)
        if not placements:
            continue
        taken += slots_of(placements)
        starts.append(StartReplica(replica=slot.index, incarnation=slot.incarnation + 1, placements=placements))
    return tuple(starts)


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


def out_of_service(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> tuple[SetNodeState, ...]:
    """Nodes that the failures blame: quarantined on proof of a fault, else cordoned."""
    moves = []
    for node in snapshot.nodes:
        if any(node.id in failure.quarantine for failure in failures):
            if node.state in (*_OPEN_NODES, NodeState.CORDONED):
                moves.append(SetNodeState(node_id=node.id, to=NodeState.QUARANTINED))
        elif any(node.id in failure.cordon for failure in failures) and node.state in _OPEN_NODES:
            moves.append(SetNodeState(node_id=node.id, to=NodeState.CORDONED))
    return tuple(moves)


def in_view(snapshot: JobSnapshot, failures: tuple[Failure, ...]) -> bool:
    """One of the failed replicas is a member, so the others need a new view."""
    return any(is_member(snapshot, failure.replica) for failure in failures)
