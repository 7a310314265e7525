"""Which replicas have failed, and how that is known.

Detectors in order of strength; the first that speaks about a replica names its failure.
`proved` ones rest on positive evidence (a process is gone, a device is gone). The others
rest on silence or slowness: they never speak while our own side is blind, and the storm
governor may hold them. A replica whose ranks all wait for others is never a culprit.
"""

import math

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    about,
    contributes,
    current_view,
    installed,
    is_member,
    is_storm,
    live_replicas,
    node_name,
    node_of,
    nodes_of,
    on_replica,
    setup_patience_s,
    signals_of,
    world_sizes,
)
from controlplane.policy.membership import missing_flushes
from controlplane.policy.proved import PROVED, Detector, Failure, signal_ids
from controlplane.policy.snapshot import JobSnapshot, NodeFact, ReplicaFact, SignalFact
from controlplane.protocol.states import ReplicaState


def find_failures(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """Every failed replica of the current attempt, by index."""
    detectors = PROVED if snapshot.blind else (*PROVED, *INFERRED)
    found = []
    for replica in live_replicas(snapshot):
        spoken = (detector(snapshot, config, replica) for detector in detectors)
        failure = next((failure for failure in spoken if failure is not None), None)
        if failure is not None:
            found.append(failure)
    return tuple(found)


def actionable(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """Failures that may be acted on now: in a storm only the proved ones."""
    failures = find_failures(snapshot, config)
    if not is_storm(snapshot, config):
        return failures
    return tuple(failure for failure in failures if failure.proved)


def held(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Failure, ...]:
    """Failures the storm governor keeps for a person."""
    acted = {failure.replica.index for failure in actionable(snapshot, config)}
    return tuple(f for f in find_failures(snapshot, config) if f.replica.index not in acted)


def _overdue(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    signals = tuple(s for s in signals_of(snapshot, "rank_overdue") if about(s, replica))
    if not signals or (replica.waiting and not _mute(snapshot, signals)):
        return None
    worst = max(signals, key=lambda s: (s.value, s.id))
    mute = _mute(snapshot, signals)
    silence = ", and its process says nothing: it is stopped, or its interpreter is locked" if mute else ""
    return Failure(
        replica=replica,
        kind="hang",
        proved=False,
        hung=True,
        sentence=f"rank {worst.rank} made no progress for {worst.value:.1f} s, {worst.threshold:.1f} s are allowed"
        + silence,
        signal_ids=signal_ids(signals),
        evidence={
            "age_s": worst.value,
            "timeout_s": worst.threshold,
            "rank": worst.rank,
            "cause": "frozen" if mute else "stuck",
        },
    )


def _mute(snapshot: JobSnapshot, signals: tuple[SignalFact, ...]) -> bool:
    """A stopped process says nothing at all: that it last said "waiting" excuses nothing."""
    limit_s = snapshot.job.spec.resiliency.timeouts.silence_s
    silent = [signal.evidence.get("silent_s") for signal in signals]
    return any(isinstance(value, (int, float)) and value > limit_s for value in silent)


def _node_silent(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    signals = tuple(s for s in signals_of(snapshot, "node_silent") if on_replica(s, replica))
    if not signals:
        return None
    witness = next(filter(None, (_witness(snapshot, config, replica, s) for s in signals)), None)
    if witness is None:
        return None
    nodes = tuple(sorted({s.node_id for s in signals if s.node_id}))
    names = ", ".join(node_name(snapshot, node) for node in nodes)
    return Failure(
        replica=replica,
        kind="node_silent",
        proved=False,
        sentence=f"{names} is silent for {max(s.value for s in signals):.1f} s and {witness}",
        bad_nodes=nodes,
        signal_ids=signal_ids(signals),
        evidence={"nodes": names, "witness": witness, "silent_s": max(s.value for s in signals)},
    )


def _witness(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, signal: SignalFact) -> str | None:
    """What confirms that a silent node is really out. Steps committed since it went
    silent prove the opposite: no step commits without every member."""
    progressed_s = snapshot.job.progressed_s
    moved_s = progressed_s if progressed_s is not None else signal.seen_s
    still_s = snapshot.now_s - moved_s
    if still_s < config.witness_s and progressed_s is not None:
        return None
    if any(error.seen_s >= snapshot.view_since_s for error in signals_of(snapshot, "outer_error")):
        return "the exchange failed"
    if _all_others_wait(snapshot, config, replica, moved_s):
        return "all others wait for it in the exchange"
    node = node_of(snapshot, signal.node_id)
    if node is not None and lease_over(node, config) and (progressed_s is None or still_s >= config.lease_s):
        return f"its lease of {config.lease_s:.0f} s has run out"
    return None


def lease_over(node: NodeFact, config: PolicyConfig) -> bool:
    """Its lease has run out. A connection that is only gone may come back: it ends with the
    web process that holds it, and the agent takes a while to find another."""
    return not node.connected and node.silent_s is not None and node.silent_s >= config.lease_s


def _all_others_wait(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, moved_s: float) -> bool:
    """Every other member waits in the exchange, one that computes among them, and one node
    alone is silent. The job has stood still since `moved_s`.

    They wait for each other since they were told to enter the view; each has said so itself
    after half of the time that they must have waited, for a word from before a step was
    committed, or from before they entered, is not about this exchange.
    A member that does not wait may be the one that holds everybody up, so it clears the
    accused. One that computes nothing waits through every step, so it accuses nobody.
    Several silent nodes at once say more about the network, or about us, than about them:
    then only the lease decides.
    """
    if not installed(snapshot) or not is_member(snapshot, replica):
        return False
    entered_s = snapshot.installed_s if snapshot.installed_s is not None else snapshot.view_since_s
    began_s = max(moved_s, entered_s)
    if snapshot.now_s - began_s < config.witness_s:
        return False
    members = [other for other in live_replicas(snapshot) if is_member(snapshot, other)]
    homes = {node for member in members for node in nodes_of(member)}
    silent = {signal.node_id for signal in signals_of(snapshot, "node_silent")} & homes
    others = [other for other in members if not silent & set(nodes_of(other))]
    computing = any(contributes(snapshot, other) for other in others)
    waiting = all(other.waiting and _heard_s(snapshot, other) - began_s >= config.witness_s / 2.0 for other in others)
    return len(silent) == 1 and computing and waiting


def _heard_s(snapshot: JobSnapshot, replica: ReplicaFact) -> float:
    """Server time of the last word from all of its nodes; minus infinity: not known."""
    silent = [node.silent_s for node in snapshot.nodes if node.id in nodes_of(replica)]
    known = [silent_s for silent_s in silent if silent_s is not None]
    return snapshot.now_s - max(known) if known and len(known) == len(silent) else -math.inf


def _unflushed(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    view = current_view(snapshot)
    if view is None or installed(snapshot) or not is_member(snapshot, replica):
        return None
    age_s = snapshot.now_s - snapshot.view_since_s
    missing = [
        rank for index, rank in missing_flushes(view, snapshot.flushes, world_sizes(snapshot)) if index == replica.index
    ]
    if not missing or age_s < config.flush_timeout_s:
        return None
    silent = tuple(
        s
        for s in snapshot.signals
        if (s.kind == "rank_overdue" and about(s, replica)) or (s.kind == "node_silent" and on_replica(s, replica))
    )
    dark = any(lease_over(node, config) for node in snapshot.nodes if node.id in nodes_of(replica))
    if not silent and not dark and age_s < config.flush_limit_s:
        return None
    ranks = ", ".join(map(str, missing))
    return Failure(
        replica=replica,
        kind="unflushed",
        proved=False,
        hung=not dark,
        sentence=f"view {view.epoch} waits for rank {ranks} since {age_s:.1f} s",
        bad_nodes=tuple(sorted({s.node_id for s in silent if s.kind == "node_silent" and s.node_id})),
        signal_ids=signal_ids(silent),
        evidence={"view_age_s": round(age_s, 3), "missing_ranks": ranks},
    )


def _setup_timeout(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    limit_s = setup_patience_s(snapshot)
    signals = tuple(s for s in signals_of(snapshot, "setup_timeout") if about(s, replica))
    age_s = snapshot.now_s - replica.state_since_s
    late = age_s >= limit_s and replica.joined_ranks < replica.world_size
    if replica.state is not ReplicaState.FORMING or not (signals or late):
        return None
    if signals:
        last = signals[-1]
        told = f"{last.value:.0f} s in setup, {last.threshold:.0f} s are allowed"
        sentence = str(last.evidence.get("detail") or told)
    else:
        sentence = f"{replica.joined_ranks} of {replica.world_size} ranks joined in {age_s:.0f} s of {limit_s:.0f} s"
    return Failure(
        replica=replica,
        kind="setup_timeout",
        proved=False,
        sentence=sentence,
        signal_ids=signal_ids(signals),
        evidence={"joined_ranks": replica.joined_ranks, "age_s": round(age_s, 3), "limit_s": limit_s},
    )


def _catch_up_timeout(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    age_s = snapshot.now_s - replica.state_since_s
    over = replica.contributing or replica.standby
    if replica.state is not ReplicaState.CATCHING_UP or over or age_s < config.catch_up_limit_s:
        return None
    return Failure(
        replica=replica,
        kind="catch_up_timeout",
        proved=False,
        sentence=f"it did not catch up within {config.catch_up_limit_s:.0f} s",
        evidence={"age_s": round(age_s, 3)},
    )


def _unreachable(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """After so many views with unchanged members the exchange still fails: leave out the
    one that the others cannot reach."""
    errors = fresh_outer_errors(snapshot, config)
    if not errors or snapshot.reissued_views < config.max_reissues or _suspect(snapshot, errors) != replica.index:
        return None
    return Failure(
        replica=replica,
        kind="unreachable",
        proved=False,
        sentence=f"the exchange failed again after {snapshot.reissued_views} views with the same members",
        signal_ids=signal_ids(errors),
        evidence={"reissued_views": snapshot.reissued_views},
    )


def fresh_outer_errors(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[SignalFact, ...]:
    """Exchange failures of the installed view that no death has explained in time."""
    if not installed(snapshot):
        return ()
    fresh = tuple(s for s in signals_of(snapshot, "outer_error") if s.seen_s >= snapshot.view_since_s)
    if not fresh or snapshot.now_s - min(s.seen_s for s in fresh) < config.outer_error_grace_s:
        return ()
    return fresh


def _suspect(snapshot: JobSnapshot, errors: tuple[SignalFact, ...]) -> int | None:
    """Named by a reporter, else the one member that did not complain, else the first reporter."""
    for error in errors:
        named = error.evidence.get("suspect_replica")
        if isinstance(named, int) and not isinstance(named, bool):
            return named
    reporters = {error.replica for error in errors}
    silent = [r.index for r in live_replicas(snapshot) if is_member(snapshot, r) and r.index not in reporters]
    if len(silent) == 1:
        return silent[0]
    return min((index for index in reporters if index is not None), default=None)


INFERRED: tuple[Detector, ...] = (
    _overdue,
    _node_silent,
    _unflushed,
    _setup_timeout,
    _catch_up_timeout,
    _unreachable,
)
