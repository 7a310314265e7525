"""The next moment a pass over a job is due even if nothing rings.

Deadlines are data: the loader stores the answer in an indexed column, the tick sweeps it.
Too early costs one more pass, too late costs a stuck job, so everything that waits for
time to pass is listed here.
"""

from collections.abc import Iterator

from controlplane.policy import consent, flaps, leaving, stuck, time_limit
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    attempt_live,
    catch_up_patience_s,
    commits_until_s,
    current_view,
    installed,
    is_heard,
    is_left_out,
    live_replicas,
    setup_patience_s,
    signals_of,
    too_small,
)
from controlplane.policy.failures import flush_limit_s
from controlplane.policy.ladder import attempt_due_s, due_s
from controlplane.policy.rehearsal import wait_s
from controlplane.policy.requests import moments
from controlplane.policy.rules import look, straggler
from controlplane.policy.rules.spares import cold_at_s
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.silence import acts_at_s, nodes_told_silent
from controlplane.policy.slots import empty_slots, relieved
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.ways import hold_limit_s
from controlplane.protocol.states import QUEUED_JOB, JobState, ReplicaState

LASTING = with_trait(Trait.LASTS)


def next_pass_s(snapshot: JobSnapshot, config: PolicyConfig, changed: bool) -> float | None:
    """Server seconds. `changed`: this pass did something, so another follows soon."""
    if changed:
        return snapshot.now_s + config.follow_up_s
    ahead = [moment for moment in _moments(snapshot, config) if moment > snapshot.now_s]
    return min(ahead, default=None)


def _moments(snapshot: JobSnapshot, config: PolicyConfig) -> Iterator[float]:
    now_s = snapshot.now_s
    retry_s = now_s + config.capacity_retry_s
    # A slow rank stays slow for hours, and so may a node be unfit: what tells of the end rings.
    pressing = any(signal.kind not in LASTING for signal in snapshot.signals)
    if not _waits_its_turn(snapshot) and (_seeks(snapshot) or pressing or snapshot.blind):
        yield now_s + config.outer_error_grace_s if pressing else retry_s
    if snapshot.job.state in QUEUED_JOB:
        yield attempt_due_s(snapshot, config)
    if snapshot.job.end_held_until_s is not None:
        yield snapshot.job.end_held_until_s
    yield from (*moments(snapshot, config), *consent.moments(snapshot), *_ends(snapshot, config))
    attempt = snapshot.attempt
    if attempt is None or not attempt_live(snapshot):
        return
    if current_view(snapshot) is None:
        yield attempt.started_s + setup_patience_s(snapshot)
    elif not installed(snapshot):
        yield snapshot.view_since_s + config.flush_timeout_s
        yield from (snapshot.view_since_s + flush_limit_s(snapshot, config, each) for each in live_replicas(snapshot))
        if too_small(snapshot):
            yield snapshot.view_since_s + hold_limit_s(snapshot, config) + config.follow_up_s
    else:
        yield snapshot.view_since_s + config.shrunk_stable_s
        if (until_s := commits_until_s(snapshot, config)) is not None:
            yield until_s
    # Slow for so long, the others may go on without it.
    yield from (straggler.lasts_s(snapshot, each) for each in signals_of(snapshot, "straggler"))
    if snapshot.job.incident_opened_s is not None:
        yield snapshot.job.incident_opened_s + config.quiet_incident_s
        yield now_s + config.quiet_incident_s
    if snapshot.job.training_s is not None:
        left_s = wait_s(snapshot.job.spec, training_s=snapshot.job.training_s, fired=snapshot.job.faults_fired)
        # Training time passes no faster than the clock; due and not given: its target is out.
        if left_s is not None:
            yield now_s + max(left_s, config.follow_up_s)
    look_s = look.due_s(snapshot)
    if look_s is not None:
        # Due and not taken: something is wrong, or has been just now.
        yield max(look_s, now_s + config.quiet_incident_s)
    if (stuck_s := stuck.next_look_s(snapshot, config)) is not None:
        yield stuck_s
    back = [r for r in live_replicas(snapshot) if is_left_out(snapshot, r) and is_heard(snapshot, r)]
    if back:
        # It works on: that it waits, so that it may come back, rings nothing.
        yield retry_s
        yield from (flaps.returns_s(replica, config) for replica in back)
    for node_silent in signals_of(snapshot, "node_silent"):
        yield node_silent.seen_s + config.witness_s
        # The others' wait is a witness from this moment on, and nothing rings then.
        if snapshot.job.progressed_s is not None:
            yield snapshot.job.progressed_s + config.witness_s
    if snapshot.job.state is JobState.RUNNING and snapshot.job.spec.resources.spares.gpus:
        mine = (node for node in snapshot.nodes if node.reserved_for == snapshot.job.id)
        yield from (cold_at_s(node, config) for node in mine)
        yield now_s + config.spares_look_s
    for node in nodes_told_silent(snapshot).values():
        if (over_s := acts_at_s(snapshot, config, node)) is not None:
            yield over_s
    yield from _replica_moments(snapshot, config, retry_s)


def _ends(snapshot: JobSnapshot, config: PolicyConfig) -> Iterator[float]:
    """Of the job, and of nodes."""
    yield from time_limit.moments(snapshot)
    yield from leaving.moments(snapshot, config)


def _seeks(snapshot: JobSnapshot) -> bool:
    """It waits for devices, and for no person."""
    return snapshot.job.state in QUEUED_JOB and not snapshot.job.parked_by


def _waits_its_turn(snapshot: JobSnapshot) -> bool:
    """Others are ahead of it in the queue: it is woken when it may start, and nothing else concerns it."""
    waits = snapshot.job.state in QUEUED_JOB and snapshot.queue is not None and not snapshot.queue.seeks
    return waits and not attempt_live(snapshot)


def _replica_moments(snapshot: JobSnapshot, config: PolicyConfig, retry_s: float) -> Iterator[float]:
    limit_s = setup_patience_s(snapshot)
    flushes = not installed(snapshot)
    for replica in live_replicas(snapshot):
        waits = flushes or replica.state in (ReplicaState.FORMING, ReplicaState.CATCHING_UP)
        if waits and not is_heard(snapshot, replica):
            # Its limit may be over, and then it is judged when it is heard, or its lease is over.
            yield retry_s
        if replica.state is ReplicaState.FORMING:
            yield replica.state_since_s + limit_s
        elif replica.state is ReplicaState.CATCHING_UP:
            yield replica.state_since_s + catch_up_patience_s(snapshot, config)
    if snapshot.attempt is not None and snapshot.attempt.yielded:
        yield retry_s
    for replica in empty_slots(snapshot):
        yield due_s(replica, config)
        yield retry_s
    if relieved(snapshot):
        yield retry_s
