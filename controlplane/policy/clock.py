"""One clock for a whole snapshot: times written before the server's clock was set are moved with it.

Durations are the difference of two of the server's times. A clock that is set back leaves times
in the future, one that is set forward makes everything look old; neither says anything about a
node or a replica. Asked by `decide` before any rule; it decides nothing.
"""

import msgspec

from controlplane.policy.known_end import KnownEnd
from controlplane.policy.snapshot import AttemptFact, JobSnapshot, NodeFact, ReplicaFact, SignalFact
from controlplane.protocol.states import EndSource

AHEAD_S = 1.0
"""Server processes may differ by so much: a time that far ahead is no sign of a step."""


def on_one_clock(snapshot: JobSnapshot) -> JobSnapshot:
    """The snapshot with every time that its ages are counted from as the present clock would have
    told it. A time in the future that no known step explains is not known: an age counted from
    it is 0, and progress then was not measured."""
    if not _torn(snapshot):
        return snapshot
    job, attempt = snapshot.job, snapshot.attempt
    return msgspec.structs.replace(
        snapshot,
        job=msgspec.structs.replace(
            job,
            progressed_s=_known(snapshot, job.progressed_s),
            incident_opened_s=_moved(snapshot, job.incident_opened_s),
            looked_s=_moved(snapshot, job.looked_s),
            begun_s=_moved(snapshot, job.begun_s),
        ),
        attempt=None if attempt is None else _attempt(snapshot, attempt),
        replicas=tuple(_replica(snapshot, replica) for replica in snapshot.replicas),
        signals=tuple(_signal(snapshot, signal) for signal in snapshot.signals),
        nodes=tuple(_node(snapshot, node) for node in snapshot.nodes),
        bars=tuple(msgspec.structs.replace(bar, since_s=_at(snapshot, bar.since_s)) for bar in snapshot.bars),
        recommended=tuple(
            msgspec.structs.replace(each, at_s=_at(snapshot, each.at_s)) for each in snapshot.recommended
        ),
        view_since_s=_at(snapshot, snapshot.view_since_s),
        installed_s=_known(snapshot, snapshot.installed_s),
        saves=msgspec.structs.replace(
            snapshot.saves,
            last_started_s=_moved(snapshot, snapshot.saves.last_started_s),
            last_committed_s=_moved(snapshot, snapshot.saves.last_committed_s),
            last_emergency_s=_moved(snapshot, snapshot.saves.last_emergency_s),
        ),
    )


def _torn(snapshot: JobSnapshot) -> bool:
    """Some of its times are of another clock than its `now_s`."""
    if snapshot.clock_set_s is not None:
        return True
    times = [snapshot.job.progressed_s, snapshot.view_since_s, snapshot.installed_s]
    times += [replica.state_since_s for replica in snapshot.replicas]
    times += [signal.seen_s for signal in snapshot.signals]
    times += [bar.since_s for bar in snapshot.bars]
    times += [each.at_s for each in snapshot.recommended]
    times += [time_s for node in snapshot.nodes for time_s in (node.warmed_s, node.warm_asked_s)]
    times += [snapshot.attempt.started_s] if snapshot.attempt is not None else []
    return any(time_s is not None and time_s > snapshot.now_s + AHEAD_S for time_s in times)


def _at(snapshot: JobSnapshot, time_s: float) -> float:
    """A time by the present clock, at the latest now."""
    set_s, now_s = snapshot.clock_set_s, snapshot.now_s
    if set_s is not None and (time_s < set_s or time_s > now_s + AHEAD_S):
        time_s += snapshot.clock_step_s
    return min(time_s, now_s)


def _moved(snapshot: JobSnapshot, time_s: float | None) -> float | None:
    return None if time_s is None else _at(snapshot, time_s)


def _known(snapshot: JobSnapshot, time_s: float | None) -> float | None:
    """As `_moved`; None where it is in the future and no step of the clock explains that."""
    if time_s is None or (snapshot.clock_set_s is None and time_s > snapshot.now_s + AHEAD_S):
        return None
    return _at(snapshot, time_s)


def _attempt(snapshot: JobSnapshot, attempt: AttemptFact) -> AttemptFact:
    return msgspec.structs.replace(attempt, started_s=_at(snapshot, attempt.started_s))


def _replica(snapshot: JobSnapshot, replica: ReplicaFact) -> ReplicaFact:
    return msgspec.structs.replace(
        replica,
        state_since_s=_at(snapshot, replica.state_since_s),
        ordered_s=_moved(snapshot, replica.ordered_s),
        out_s=_moved(snapshot, replica.out_s),
    )


def _node(snapshot: JobSnapshot, node: NodeFact) -> NodeFact:
    return msgspec.structs.replace(
        node,
        warmed_s=_moved(snapshot, node.warmed_s),
        warm_asked_s=_moved(snapshot, node.warm_asked_s),
        end=_end(snapshot, node.end),
    )


def _end(snapshot: JobSnapshot, end: KnownEnd | None) -> KnownEnd | None:
    """A notice says how long is left, so it moves with the clock; a window is a moment of the calendar."""
    set_s = snapshot.clock_set_s
    if end is None or set_s is None or end.source is not EndSource.SPOT or end.said_s >= set_s:
        return end
    by_s = snapshot.clock_step_s
    return msgspec.structs.replace(end, leaves_s=end.leaves_s + by_s, said_s=end.said_s + by_s)


def _signal(snapshot: JobSnapshot, signal: SignalFact) -> SignalFact:
    return msgspec.structs.replace(
        signal,
        seen_s=_at(snapshot, signal.seen_s),
        came_s=_moved(snapshot, signal.came_s),
        renewed_s=_moved(snapshot, signal.renewed_s),
    )
