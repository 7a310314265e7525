"""Which replicas have failed, and how that is known.

Detectors in order of strength; the first that speaks about a replica names its failure.
`proved` ones rest on positive evidence (a process is gone, a device is gone). The others
rest on silence or slowness: they never speak while our own side is blind, and the storm
governor may hold them. A replica whose ranks all wait for others is never a culprit.
"""

from collections.abc import Callable

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.exits import EXIT_DISAMBIGUATE, EXIT_FAILED_VALIDATION, culprit, ending, explain
from controlplane.policy.facts import (
    about,
    current_view,
    installed,
    is_member,
    is_storm,
    live_replicas,
    node_name,
    node_of,
    nodes_of,
    on_replica,
    refusals,
    signals_of,
    world_sizes,
)
from controlplane.policy.membership import Refusal, install, missing_flushes
from controlplane.policy.placement import Slot, slots_of
from controlplane.policy.plan import Scalar
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.policy.timeouts import setup_limit_s
from controlplane.policy.xid import XidBucket, look_up
from controlplane.protocol.states import ReplicaState


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One failed replica incarnation. `gone`: its processes need no stopping to be safe.
    `bad_slots`, `bad_nodes`: where nothing may be started because of it; `cordon` nodes
    to take out of service, `quarantine` those whose fault is proved."""

    replica: ReplicaFact
    kind: str
    proved: bool
    sentence: str
    hung: bool = False
    gone: bool = False
    bad_slots: tuple[Slot, ...] = ()
    bad_nodes: tuple[str, ...] = ()
    cordon: tuple[str, ...] = ()
    quarantine: tuple[str, ...] = ()
    signal_ids: tuple[str, ...] = ()
    evidence: dict[str, Scalar] = {}


Detector = Callable[[JobSnapshot, PolicyConfig, ReplicaFact], Failure | None]


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


# --- proved ---------------------------------------------------------------------


def _unfit(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """Its agent refused to start it: nothing ran, and that node is the wrong one for it."""
    if not (said := refusals(snapshot, replica)):
        return None
    return Failure(
        replica=replica,
        kind="unfit_node",
        proved=True,
        gone=replica.exited_ranks >= replica.world_size,
        sentence=f"its start on {node_name(snapshot, said[0].node_id or '')} failed: {said[0].evidence['detail']}",
        bad_nodes=tuple(sorted({signal.node_id for signal in said if signal.node_id})),
        signal_ids=_ids(said),
    )


def _exited(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    signals = tuple(s for s in signals_of(snapshot, "rank_exit") if about(s, replica))
    if not signals and replica.exited_ranks == 0:
        return None
    if snapshot.job.committed_step >= snapshot.job.spec.training.steps and _all_clean(signals):
        return None
    signal = culprit(signals)
    code = int(signal.value) if signal else None
    blamed = _slot_of_rank(replica, signal.rank if signal else None)
    where = node_name(snapshot, blamed[0]) if blamed else "its node"
    bad = (blamed,) if blamed and code in (EXIT_DISAMBIGUATE, EXIT_FAILED_VALIDATION) else ()
    ended = f"{replica.exited_ranks} ranks ended on {where}"
    if signal is not None:
        ended = f"rank {signal.rank} on {where} {explain(int(signal.value))}"
    return Failure(
        replica=replica,
        kind="rank_exit",
        proved=True,
        gone=replica.exited_ranks >= replica.world_size,
        sentence=ended,
        bad_slots=bad,
        quarantine=(bad[0][0],) if bad and code == EXIT_FAILED_VALIDATION else (),
        signal_ids=_ids(signals),
        evidence={
            "exit_code": code,
            "cause": ending(code).cause if code is not None else None,
            "exited_ranks": replica.exited_ranks,
            "node": where,
        },
    )


def _device_gone(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    signals = tuple(
        s
        for s in snapshot.signals
        if on_replica(s, replica) and (s.kind == "device_lost" or (s.kind == "xid" and _is_fatal(s, config)))
    )
    if not signals:
        return None
    first = signals[0]
    where = f"device {first.device_index} of {node_name(snapshot, first.node_id)}"
    if first.kind == "xid":
        verdict = look_up(int(first.value), config.xid_overrides)
        what = f"XID {verdict.xid} ({verdict.description}) on {where}, by {verdict.provenance}"
    else:
        what = f"{where} fell off the bus"
    nodes = tuple(sorted({s.node_id for s in signals if s.node_id}))
    return Failure(
        replica=replica,
        kind="device_lost" if first.kind == "device_lost" else "xid_fatal",
        proved=True,
        sentence=what,
        bad_nodes=nodes,
        cordon=nodes,
        signal_ids=_ids(signals),
        evidence={"xid": int(first.value) if first.kind == "xid" else None, "device": where},
    )


def _behind(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    view = current_view(snapshot)
    if view is None or snapshot.install is not None:
        return None
    answer = install(view, snapshot.flushes, world_sizes(snapshot))
    if not isinstance(answer, Refusal) or (answer.replica, answer.incarnation) != (replica.index, replica.incarnation):
        return None
    return Failure(
        replica=replica,
        kind="behind",
        proved=True,
        sentence=f"it cannot be brought to the group's step: {answer.reason}",
        evidence={"flush": answer.reason},
    )


# --- inferred -------------------------------------------------------------------


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
        signal_ids=_ids(signals),
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
        signal_ids=_ids(signals),
        evidence={"nodes": names, "witness": witness, "silent_s": max(s.value for s in signals)},
    )


def _witness(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, signal: SignalFact) -> str | None:
    """What confirms that a silent node is really out. Steps committed since it went
    silent prove the opposite: no step commits without every member."""
    progressed_s = snapshot.job.progressed_s
    still_s = snapshot.now_s - (progressed_s if progressed_s is not None else signal.seen_s)
    if still_s < config.witness_s and progressed_s is not None:
        return None
    if any(error.seen_s >= snapshot.view_since_s for error in signals_of(snapshot, "outer_error")):
        return "the exchange failed"
    if still_s >= config.witness_s and _all_others_wait(snapshot, replica):
        return "all others wait for it in the exchange"
    node = node_of(snapshot, signal.node_id)
    silent_s = node.silent_s if node and node.silent_s is not None else 0.0
    out = node is not None and not node.connected and silent_s >= config.lease_s
    if out and (progressed_s is None or still_s >= config.lease_s):
        return f"its lease of {config.lease_s:.0f} s has run out"
    return None


def _all_others_wait(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """Every other member waits in the exchange, and one node alone is silent.

    A member that does not wait may be the one that holds everybody up, so it clears the
    accused. Several silent nodes at once say more about the network, or about us, than
    about them: then only the lease decides.
    """
    if not installed(snapshot) or not is_member(snapshot, replica):
        return False
    members = [other for other in live_replicas(snapshot) if is_member(snapshot, other)]
    homes = {node for member in members for node in nodes_of(member)}
    silent = {signal.node_id for signal in signals_of(snapshot, "node_silent")} & homes
    others = [other for other in members if not silent & set(nodes_of(other))]
    return len(silent) == 1 and bool(others) and all(other.waiting for other in others)


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
    dark = any(not node.connected for node in snapshot.nodes if node.id in nodes_of(replica))
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
        signal_ids=_ids(silent),
        evidence={"view_age_s": round(age_s, 3), "missing_ranks": ranks},
    )


def _setup_timeout(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    limit_s = setup_limit_s(snapshot.job.spec.resiliency.timeouts)
    signals = tuple(s for s in signals_of(snapshot, "setup_timeout") if about(s, replica))
    age_s = snapshot.now_s - replica.state_since_s
    late = age_s >= limit_s and replica.joined_ranks < replica.world_size
    if replica.state is not ReplicaState.FORMING or not (signals or late):
        return None
    sentence = f"{replica.joined_ranks} of {replica.world_size} ranks joined in {age_s:.0f} s of {limit_s:.0f} s"
    for s in signals:
        sentence = str(s.evidence.get("detail") or f"{s.value:.0f} s in setup, {s.threshold:.0f} s are allowed")
    return Failure(
        replica=replica,
        kind="setup_timeout",
        proved=False,
        sentence=sentence,
        signal_ids=_ids(signals),
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
        signal_ids=_ids(errors),
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


def _is_fatal(signal: SignalFact, config: PolicyConfig) -> bool:
    return look_up(int(signal.value), config.xid_overrides).bucket is XidBucket.FATAL


def _all_clean(signals: tuple[SignalFact, ...]) -> bool:
    return all(signal.value == 0 for signal in signals)


def _slot_of_rank(replica: ReplicaFact, rank: int | None) -> Slot | None:
    slots = slots_of(p for p in replica.placements if rank is None or p.rank == rank)
    return slots[0] if slots else None


def _ids(signals: tuple[SignalFact, ...]) -> tuple[str, ...]:
    return tuple(signal.id for signal in signals)


# A lost device also ends the process on it: the device is the cause, so it speaks first.
PROVED: tuple[Detector, ...] = (_device_gone, _unfit, _exited, _behind)
INFERRED: tuple[Detector, ...] = (
    _overdue,
    _node_silent,
    _unflushed,
    _setup_timeout,
    _catch_up_timeout,
    _unreachable,
)
