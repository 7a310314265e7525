"""Questions that several rules ask of a snapshot. Pure look-ups, no judgement."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption_counts import DisruptionCounts
from controlplane.policy.membership import Refusal, install, missing_flushes, next_view
from controlplane.policy.once import per_snapshot
from controlplane.policy.snapshot import JobSnapshot, NodeFact, ReplicaFact, SignalFact
from controlplane.policy.timeouts import lease_s, setup_limit_s, transfer_limit_s
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.spec import max_contributors
from controlplane.protocol.states import UNFIT, AttemptState, JobState, ReplicaState

TERMINAL_JOB = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
LIVE_ATTEMPT = frozenset({AttemptState.STARTING, AttemptState.RUNNING})
MAX_NAMED = 3
"""Nodes that one sentence names."""


class Governed(Protocol):
    """What the disruption budget counts, see `JobSnapshot`."""

    @property
    def suspect_devices(self) -> int: ...

    @property
    def fleet_devices(self) -> int: ...

    @property
    def acts_last_window(self) -> int: ...

    @property
    def suspect_nodes(self) -> tuple[str, ...] | None: ...

    @property
    def segments(self) -> Mapping[str, str]: ...

    @property
    def divided(self) -> bool: ...

    @property
    def disruption(self) -> DisruptionCounts: ...


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


def is_of_view(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """A finding about an exchange is about that of the current view: by its epoch, which no clock that is set moves."""
    epoch = signal.evidence.get("epoch")
    if snapshot.view is not None and isinstance(epoch, int):
        return epoch >= snapshot.view.epoch
    return signal.seen_s >= snapshot.view_since_s


def too_small(snapshot: JobSnapshot) -> bool:
    """The current view has fewer members than must train: they wait for more."""
    view = current_view(snapshot)
    return view is not None and len(view.members) < snapshot.job.spec.resources.min_replicas


def held_ready(snapshot: JobSnapshot) -> bool:
    """Everybody in a view that is too small has flushed, so the next one may follow."""
    view = current_view(snapshot)
    if view is None or installed(snapshot) or not too_small(snapshot):
        return False
    return not missing_ranks(snapshot)


def commits_until_s(snapshot: JobSnapshot, config: PolicyConfig) -> float | None:
    """Until when (server seconds) the installed view is left alone to commit its first step; None
    when it has, or when it was ordered is not known."""
    if snapshot.installed_s is None or not installed(snapshot) or has_committed(snapshot):
        return None
    return snapshot.installed_s + config.admit_patience_s


def has_committed(snapshot: JobSnapshot) -> bool:
    """The installed view has committed a step."""
    ordered_s, progressed_s = snapshot.installed_s, snapshot.job.progressed_s
    return installed(snapshot) and (ordered_s is None or (progressed_s is not None and progressed_s > ordered_s))


def live_replicas(snapshot: JobSnapshot) -> tuple[ReplicaFact, ...]:
    """Replicas whose newest incarnation is not evicted."""
    return snapshot.live


def all_joined(replica: ReplicaFact) -> bool:
    """Every rank said hello and none has ended."""
    return replica.joined_ranks >= replica.world_size and replica.exited_ranks == 0


def is_member(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """This incarnation is in the current view."""
    return (replica.index, replica.incarnation) in snapshot.role_by_member


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
    told = snapshot.installed_role.get(replica.index)
    if told is not None:
        return told is MemberRole.STANDBY
    return role is MemberRole.STANDBY or replica.standby


def holds_state(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """Training can go on with it alone."""
    return contributes(snapshot, replica) or stands_by(snapshot, replica)


def _role(snapshot: JobSnapshot, replica: ReplicaFact) -> MemberRole | None:
    """What the current view calls this incarnation; None: it is no member."""
    return snapshot.role_by_member.get((replica.index, replica.incarnation))


def member_of(snapshot: JobSnapshot, replica: ReplicaFact) -> Member:
    """The replica as a member of the next view."""
    first = current_view(snapshot) is None
    role = MemberRole.CONTRIBUTOR if first or contributes(snapshot, replica) else MemberRole.JOINER
    if stands_by(snapshot, replica):
        role = MemberRole.STANDBY
    return Member(replica=replica.index, incarnation=replica.incarnation, role=role)


def following_view(
    snapshot: JobSnapshot,
    members: Iterable[ReplicaFact | Member],
    reason: str,
    *,
    at_step: int | None = None,
    left_out: Iterable[ReplicaFact] = (),
    returning: tuple[int, ...] = (),
) -> View:
    """The next view of the attempt that lives, over these replicas: see `membership.next_view`. What each is follows
    from the current view, but for one that is given as a member. Who is out still is what it was as long as no view
    has been installed since it was left out, and then a joiner: it is behind."""
    assert snapshot.attempt is not None, "views belong to an attempt"
    before = current_view(snapshot)
    if before is not None and installed(snapshot):
        behind = tuple(msgspec.structs.replace(each, role=MemberRole.JOINER) for each in before.left_out)
        before = msgspec.structs.replace(before, left_out=behind)
    return next_view(
        job_id=snapshot.job.id,
        attempt=snapshot.attempt.number,
        epoch=snapshot.job.epoch + 1,
        members=tuple(each if isinstance(each, Member) else member_of(snapshot, each) for each in members),
        before=before,
        reason=reason,
        at_step=at_step,
        left_out=tuple(member_of(snapshot, replica) for replica in left_out),
        returning=returning,
    )


@per_snapshot
def world_sizes(snapshot: JobSnapshot) -> dict[int, int]:
    """Ranks of each replica, by index."""
    return {replica.index: replica.world_size for replica in snapshot.replicas}


@per_snapshot
def missing_ranks(snapshot: JobSnapshot) -> dict[int, list[int]]:
    """Ranks of each replica whose flush of the current view is awaited, in order; empty without a view."""
    view, missing = current_view(snapshot), defaultdict[int, list[int]](list)
    for replica, rank in missing_flushes(view, snapshot.flushes, world_sizes(snapshot)) if view is not None else ():
        missing[replica].append(rank)
    return dict(missing)


@per_snapshot
def verdict_on_flushes(snapshot: JobSnapshot) -> Install | Refusal | None:
    """What the flushes of the current view come to: see `membership.install`."""
    view = current_view(snapshot)
    if view is None:
        return None
    return install(view, snapshot.flushes, world_sizes(snapshot), most_contributors(snapshot))


def most_contributors(snapshot: JobSnapshot) -> int | None:
    """How many replicas of the attempt compute at most, as its ranks were told; None: all that hold
    the state."""
    told = snapshot.attempt.max_contributors if snapshot.attempt is not None else None
    return told if told is not None else max_contributors(snapshot.job.spec)


def setup_patience_s(snapshot: JobSnapshot) -> float:
    """How long a replica's setup may last, from its placement."""
    return setup_limit_s(snapshot.job.spec.resiliency.timeouts, snapshot.learned.setup_limit_s)


def catch_up_patience_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """How long a replica may take to catch up: what it fetches is what a save writes."""
    learned = snapshot.learned
    return transfer_limit_s(config.catch_up_limit_s, learned.catch_up_s, learned.save_p95_s)


def tag(replica: ReplicaFact) -> str:
    """`index.incarnation`, for keys."""
    return f"{replica.index}.{replica.incarnation}"


def node_of(snapshot: JobSnapshot, node_id: str | None) -> NodeFact | None:
    """The node, if it is in the snapshot."""
    return None if node_id is None else snapshot.node_by_id.get(node_id)


def node_name(snapshot: JobSnapshot, node_id: str | None) -> str:
    """The node's name for sentences."""
    node = node_of(snapshot, node_id)
    return node.name if node else str(node_id)


def segment_evidence(snapshot: JobSnapshot, node_ids: Iterable[str]) -> dict[str, str]:
    """The named segments of these nodes, for evidence; empty where none is named."""
    found = {snapshot.segments.get(node_id, "") for node_id in node_ids} - {""}
    return {"segments": ", ".join(sorted(found))} if found else {}


def nodes_of(replica: ReplicaFact) -> tuple[str, ...]:
    """Ids of the nodes this replica runs on, sorted."""
    return replica.node_ids


def homes_of(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[NodeFact, ...]:
    """Those of the nodes it runs on that are in the snapshot, by id."""
    nodes = snapshot.node_by_id
    return tuple(nodes[node_id] for node_id in replica.node_ids if node_id in nodes)


def signals_of(snapshot: JobSnapshot, kind: str) -> tuple[SignalFact, ...]:
    """Open findings of one kind, by id."""
    return snapshot.signals_by_kind.get(kind, ())


def signals_about(snapshot: JobSnapshot, kind: str, replica: ReplicaFact) -> tuple[SignalFact, ...]:
    """Open findings of one kind that name this very incarnation, by id."""
    return tuple(s for s in snapshot.signals_by_replica.get((kind, replica.index), ()) if about(s, replica))


def signals_on(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[SignalFact, ...]:
    """Open findings, of any kind, that name a device or a whole node this replica runs on, by id."""
    named = {
        signal.id
        for node_id in replica.node_ids
        for signal in snapshot.signals_by_node.get(node_id, ())
        if on_replica(signal, replica)
    }
    return tuple(signal for signal in snapshot.signals if signal.id in named) if named else ()


def about(signal: SignalFact, replica: ReplicaFact) -> bool:
    """The signal names this very incarnation."""
    return signal.replica == replica.index and signal.incarnation in (None, replica.incarnation)


def on_replica(signal: SignalFact, replica: ReplicaFact) -> bool:
    """The signal names a device (or a whole node) this replica runs on."""
    devices = replica.by_node.get(signal.node_id or "", ())
    return bool(devices) and (signal.device_index is None or signal.device_index in devices)


def refusals(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[SignalFact, ...]:
    """Starts of this incarnation that an agent refused because of its node's checks."""
    return tuple(
        signal for signal in signals_about(snapshot, "setup_timeout", replica) if signal.evidence.get("reason") == UNFIT
    )


def left_out(snapshot: JobSnapshot) -> str:
    """Which nodes nothing is started on because of their own checks, and why; "" for none."""
    unfit = [node for node in snapshot.nodes if node.unhealthy]
    named = ", ".join(f"{node.name} ({node.unhealthy})" for node in unfit[:MAX_NAMED])
    more = f" and {len(unfit) - MAX_NAMED} more" if len(unfit) > MAX_NAMED else ""
    return f" Not used, because their checks fail: {named}{more}." if unfit else ""


def is_correlated_failure(snapshot: JobSnapshot, config: PolicyConfig) -> bool:
    """Too much of the fleet looks bad, or too much was done lately, to trust silence. What one
    node or one failure domain takes along is one event, however many devices it has."""
    return correlated_failure_of(snapshot, config)


def correlated_failure_of(snapshot: Governed, config: PolicyConfig) -> bool:
    """`is_correlated_failure` of a job's or of the fleet's snapshot."""
    if snapshot.acts_last_window >= config.max_acts:
        return True
    limit = max(config.correlated_min_devices, config.correlated_fraction * snapshot.fleet_devices)
    return snapshot.suspect_devices > limit and is_spread(snapshot, config)


def is_spread(snapshot: Governed, config: PolicyConfig) -> bool:
    """What looks bad lies in more than one failure domain."""
    return _spread(snapshot) >= config.correlated_min_nodes


def _spread(snapshot: Governed) -> float:
    """Failure domains of the suspect nodes; where the fleet names one at most, their number."""
    if snapshot.suspect_nodes is None:
        return math.inf
    segments = snapshot.segments
    if not snapshot.divided:
        return len(set(snapshot.suspect_nodes))
    return len({segments.get(node_id) or node_id for node_id in snapshot.suspect_nodes})


def lease_of(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """Seconds of silence after which what runs on a node may be ended and placed elsewhere."""
    learned = snapshot.learned
    known = [step_s for step_s in (learned.step_s, learned.step_max_s) if step_s is not None]
    return lease_s(snapshot.job.spec.resiliency.timeouts, max(known, default=None), floor_s=config.lease_s)


def is_left_out(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """Out of the view for now: nothing of it was ended, and it may come back."""
    view = current_view(snapshot)
    out = replica.state is ReplicaState.SUSPECT and not is_member(snapshot, replica)
    return out and view is not None and view.waits(replica.index, replica.incarnation)


def is_heard(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """It is at hand, and how long its nodes were silent is known."""
    return is_at_hand(snapshot, replica) and all(node.silent_s is not None for node in homes_of(snapshot, replica))


def is_at_hand(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """Every node it runs on is connected, and no finding says that one is silent: so far as a blind server can know."""
    silent = {signal.node_id for signal in signals_of(snapshot, "node_silent") if still_silent(snapshot, signal)}
    return all(node.connected and node.id not in silent for node in homes_of(snapshot, replica))


def still_silent(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """The finding that a node is silent holds by what is seen of the node now."""
    node = node_of(snapshot, signal.node_id)
    return node is None or node.silent_s is None or node.silent_s >= signal.threshold
