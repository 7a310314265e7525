"""Questions that several rules ask of a snapshot. Pure look-ups, no judgement."""

from collections.abc import Iterable

from controlplane.policy import numerics
from controlplane.policy.config import PolicyConfig
from controlplane.policy.placement import Pool, Slot, build_pool, slots_of
from controlplane.policy.snapshot import JobSnapshot, NodeFact, ReplicaFact, SignalFact
from controlplane.policy.timeouts import setup_limit_s
from controlplane.policy.xid import XidBucket, look_up
from controlplane.protocol.membership import Member, MemberRole, View
from controlplane.protocol.states import UNFIT, AttemptState, JobState, ReplicaState

LIVE_REPLICA = frozenset(
    {ReplicaState.FORMING, ReplicaState.ACTIVE, ReplicaState.SPARE, ReplicaState.SUSPECT, ReplicaState.CATCHING_UP}
)
TERMINAL_JOB = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
LIVE_ATTEMPT = frozenset({AttemptState.STARTING, AttemptState.RUNNING})
MAX_NAMED = 3
"""Nodes that one sentence names."""


def attempt_live(snapshot: JobSnapshot) -> bool:
    """An attempt exists and is not being ended."""
    return snapshot.attempt is not None and snapshot.attempt.state in LIVE_ATTEMPT


def current_view(snapshot: JobSnapshot) -> View | None:
    """The view of the current attempt; a view of an older attempt is history."""
    view, attempt = snapshot.view, snapshot.attempt
    if view is None or attempt is None or view.attempt != attempt.number:
        return None
    return view


def installed(snapshot: JobSnapshot) -> bool:
    """The current view has been installed."""
    view = current_view(snapshot)
    return view is not None and snapshot.install is not None and snapshot.install.epoch == view.epoch


def commits_until_s(snapshot: JobSnapshot, config: PolicyConfig) -> float | None:
    """Until when (server seconds) the installed view is left alone to commit its first step; None
    when it has, or when it was ordered is not known."""
    ordered_s, progressed_s = snapshot.installed_s, snapshot.job.progressed_s
    if ordered_s is None or not installed(snapshot) or (progressed_s is not None and progressed_s > ordered_s):
        return None
    return ordered_s + config.admit_patience_s


def live_replicas(snapshot: JobSnapshot) -> tuple[ReplicaFact, ...]:
    """Replicas whose newest incarnation is not evicted."""
    return tuple(replica for replica in snapshot.replicas if replica.state in LIVE_REPLICA)


def all_joined(replica: ReplicaFact) -> bool:
    """Every rank said hello and none has ended."""
    return replica.joined_ranks >= replica.world_size and replica.exited_ranks == 0


def is_member(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """This incarnation is in the current view."""
    view = current_view(snapshot)
    if view is None:
        return False
    return any(m.replica == replica.index and m.incarnation == replica.incarnation for m in view.members)


def contributes(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """Its gradients count: told so by an install or a catch-up, or, before the first
    install of an attempt, named a contributor by the view (all loaded one checkpoint)."""
    role = _role(snapshot, replica)
    if role is None or stands_by(snapshot, replica):
        return False
    return replica.contributing or role is MemberRole.CONTRIBUTOR


def stands_by(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """It holds the state at weight zero: told so by the install of the current view or, before
    that has come, by the view or by a catch-up."""
    role = _role(snapshot, replica)
    if role is None:
        return False
    if installed(snapshot) and snapshot.install is not None:
        if replica.index in snapshot.install.standbys:
            return True
        if replica.index in snapshot.install.contributors:
            return False
    return role is MemberRole.STANDBY or replica.standby


def holds_state(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """Training can go on with it alone."""
    return contributes(snapshot, replica) or stands_by(snapshot, replica)


def _role(snapshot: JobSnapshot, replica: ReplicaFact) -> MemberRole | None:
    """What the current view calls this incarnation; None: it is no member."""
    view = current_view(snapshot)
    if view is None or not is_member(snapshot, replica):
        return None
    return next(member.role for member in view.members if member.replica == replica.index)


def member_of(snapshot: JobSnapshot, replica: ReplicaFact) -> Member:
    """The replica as a member of the next view."""
    first = current_view(snapshot) is None
    role = MemberRole.CONTRIBUTOR if first or contributes(snapshot, replica) else MemberRole.JOINER
    if stands_by(snapshot, replica):
        role = MemberRole.STANDBY
    return Member(replica=replica.index, incarnation=replica.incarnation, role=role)


def world_sizes(snapshot: JobSnapshot) -> dict[int, int]:
    """Ranks of each replica, by index."""
    return {replica.index: replica.world_size for replica in snapshot.replicas}


def setup_patience_s(snapshot: JobSnapshot) -> float:
    """How long a replica's setup may last, from its placement."""
    return setup_limit_s(snapshot.job.spec.resiliency.timeouts, snapshot.learned.setup_limit_s)


def tag(replica: ReplicaFact) -> str:
    """`index.incarnation`, for keys."""
    return f"{replica.index}.{replica.incarnation}"


def node_of(snapshot: JobSnapshot, node_id: str | None) -> NodeFact | None:
    """The node, if it is in the snapshot."""
    return next((node for node in snapshot.nodes if node.id == node_id), None)


def node_name(snapshot: JobSnapshot, node_id: str | None) -> str:
    """The node's name for sentences."""
    node = node_of(snapshot, node_id)
    return node.name if node else str(node_id)


def segment_evidence(snapshot: JobSnapshot, node_ids: Iterable[str]) -> dict[str, str]:
    """The named segments of these nodes, for evidence; empty where none is named."""
    found = {node.segment for node in snapshot.nodes if node.id in set(node_ids)} - {""}
    return {"segments": ", ".join(sorted(found))} if found else {}


def nodes_of(replica: ReplicaFact) -> tuple[str, ...]:
    """Ids of the nodes this replica runs on, sorted."""
    return tuple(sorted({placement.node_id for placement in replica.placements}))


def signals_of(snapshot: JobSnapshot, kind: str) -> tuple[SignalFact, ...]:
    """Open findings of one kind, by id."""
    return tuple(signal for signal in snapshot.signals if signal.kind == kind)


def about(signal: SignalFact, replica: ReplicaFact) -> bool:
    """The signal names this very incarnation."""
    return signal.replica == replica.index and signal.incarnation in (None, replica.incarnation)


def on_replica(signal: SignalFact, replica: ReplicaFact) -> bool:
    """The signal names a device (or a whole node) this replica runs on."""
    return any(
        placement.node_id == signal.node_id and signal.device_index in (None, placement.device_index)
        for placement in replica.placements
    )


def occupied(snapshot: JobSnapshot, *, but: tuple[int, ...] = ()) -> tuple[Slot, ...]:
    """Devices under processes of this job that live or are not proved gone, less those
    of the replica indices in `but`."""
    return tuple(
        slot
        for replica in snapshot.replicas
        if replica.index not in but and (replica.state in LIVE_REPLICA or not replica.stopped)
        for slot in slots_of(replica.placements)
    )


def _accuses(signal: SignalFact, config: PolicyConfig) -> bool:
    if signal.kind == "device_lost" or numerics.accuses(signal):
        return True
    if signal.kind != "xid":
        return False
    return look_up(int(signal.value), config.xid_overrides).bucket in (XidBucket.FATAL, XidBucket.DEGRADED)


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
    count as free (their agent ends the old processes first), except on bad nodes."""
    gone = tuple(replica.index for replica in leaving)
    silent = tuple(signal.node_id for signal in signals_of(snapshot, "node_silent") if signal.node_id)
    pool = build_pool(
        snapshot.nodes,
        job_id=snapshot.job.id,
        own=tuple(slot for replica in leaving for slot in slots_of(replica.placements)),
        occupied=occupied(snapshot, but=gone),
        excluded=(*suspected(snapshot, config), *bad_slots),
        use_reserved=use_reserved,
        near=tuple(node_id for replica in leaving for node_id in nodes_of(replica)),
    )
    return pool.without_nodes((*bad_nodes, *silent))


def refusals(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[SignalFact, ...]:
    """Starts of this incarnation that an agent refused because of its node's checks."""
    return tuple(
        signal
        for signal in signals_of(snapshot, "setup_timeout")
        if about(signal, replica) and signal.evidence.get("reason") == UNFIT
    )


def left_out(snapshot: JobSnapshot) -> str:
    """Which nodes nothing is started on because of their own checks, and why; "" for none."""
    unfit = [node for node in snapshot.nodes if node.unhealthy]
    named = ", ".join(f"{node.name} ({node.unhealthy})" for node in unfit[:MAX_NAMED])
    more = f" and {len(unfit) - MAX_NAMED} more" if len(unfit) > MAX_NAMED else ""
    return f" Not used, because their checks fail: {named}{more}." if unfit else ""


def is_storm(snapshot: JobSnapshot, config: PolicyConfig) -> bool:
    """Too much of the fleet looks bad, or too much was done lately, to trust silence."""
    limit = max(config.storm_min_devices, config.storm_fraction * snapshot.fleet_devices)
    return snapshot.suspect_devices > limit or snapshot.acts_last_window >= config.max_acts
