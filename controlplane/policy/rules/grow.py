"""Others have devices of the job, or it began with fewer replicas than it asks for: it takes one more, and catches up.

Asked behind everybody in the queue of the same or a higher priority: `snapshot.queue` says whether one replica more
would leave all of them what they claim. One at a time, and while nothing else happens to the job. The replica joins as
any does: those that train wait for nothing.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import attempt_live, contributes, installed, live_replicas, node_name, stands_by
from controlplane.policy.failures import actionable
from controlplane.policy.ladder import start_slots
from controlplane.policy.plan import GROWS, Decision, SetYielded, StartReplica
from controlplane.policy.pools import alone
from controlplane.policy.queue.place import HAS_ROOM
from controlplane.policy.requests import of_kind, why_over
from controlplane.policy.slots import empty_slots
from controlplane.policy.snapshot import AttemptFact, JobSnapshot, ReplicaFact
from controlplane.protocol.spec import ranks_per_replica
from controlplane.protocol.states import JobState, ReplicaState, RequestKind

RULE = "grow"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one replica."""
    attempt, place = snapshot.attempt, snapshot.queue
    if attempt is None or place is None or not may_grow(snapshot) or actionable(snapshot, config):
        return ()
    if not place.may_start or place.turn not in HAS_ROOM:
        return ()
    slot = _slot(snapshot, attempt)
    started = start_slots(snapshot, config, (slot,))
    if not started or (place.alone and not {each.node_id for each in started[0].placements} <= alone(snapshot)):
        return ()
    return (_grows(snapshot, attempt, started[0]),)


def may_grow(snapshot: JobSnapshot) -> bool:
    """Some of its replicas do not run for now, all others train, and nothing is asked of it."""
    attempt = snapshot.attempt
    if attempt is None or not attempt.yielded or not attempt_live(snapshot) or why_over(snapshot):
        return False
    if snapshot.job.state is not JobState.RUNNING or not installed(snapshot) or empty_slots(snapshot):
        return False
    if of_kind(snapshot, RequestKind.PREEMPT) or of_kind(snapshot, RequestKind.EVICT):
        return False
    return all(contributes(snapshot, each) or stands_by(snapshot, each) for each in live_replicas(snapshot))


def _slot(snapshot: JobSnapshot, attempt: AttemptFact) -> ReplicaFact:
    """The one that was emptied last; one that has never run where none is empty."""
    empty = [replica for replica in snapshot.replicas if replica.state is ReplicaState.EVICTED]
    if empty:
        return max(empty, key=lambda slot: (slot.state_since_s, -slot.index))
    index = max((replica.index for replica in snapshot.replicas), default=-1) + 1
    return ReplicaFact(
        index=index,
        incarnation=snapshot.job.past_lives.get(index, 0),
        state=ReplicaState.EVICTED,
        state_since_s=snapshot.now_s,
        world_size=ranks_per_replica(attempt.layout),
        stopped=True,
    )


def _grows(snapshot: JobSnapshot, attempt: AttemptFact, start: StartReplica) -> Decision:
    nodes = ", ".join(sorted({node_name(snapshot, placement.node_id) for placement in start.placements}))
    runs = attempt.replicas - attempt.yielded
    return Decision(
        rule=RULE,
        choice="grow",
        reason_code=GROWS,
        sentence=f"{runs} of {attempt.replicas} replicas train, and nobody of its priority or a higher one waits for"
        f" what is free: replica {start.replica} starts on {nodes}, as incarnation {start.incarnation}.",
        key=f"grow:{start.replica}.{start.incarnation}",
        actions=(start, SetYielded(number=attempt.number, replicas=attempt.yielded - 1, grows=True)),
        evidence={"replicas": runs, "asked": attempt.replicas, "nodes": nodes},
    )
