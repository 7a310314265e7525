"""Half of the replicas or fewer stand still at once for what they share: a switch, a storage, an input (ADR 0062).

They are late in a step, at the same time, on several nodes, and their processes speak. The others go on without them
(`leave_out`), and nothing of one is ended before `few_limit_s` of its own are over, and the time of the longest step,
which who gets loose has to end before it is seen to. It comes back then. One that is out of the view for it is kept for
so long also when it is the last one.

Limits are over one after the other: while another one may be late too, those that are stand until the last of them
is late for `GATHER_S`, so that a rack costs one view; no longer than `common_grace_s` after the first.

Where too few would be left that hold the state, all wait for as long. More than half are another thing (`common`),
unless some of them are out already and enough are left: then the others still train.

Used by `failures`. It decides nothing.
"""

import msgspec

from controlplane.policy.common import Common, Hung, another_is_at_work, named_by, speaks
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import contributes, holds_state, is_left_out, is_member, live_replicas
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.protocol.states import Section

GATHER_S = 1.0


def stall_of_few(snapshot: JobSnapshot, config: PolicyConfig, hung: Hung) -> Common | None:
    """Those of these hangs, or None where there are none."""
    if hung.section != Section.STEP or config.few_limit_s <= 0.0:
        return None
    speaking = tuple(failure for failure in hung.failures if speaks(failure))
    out = {failure.replica.index for failure in speaking if _is_out_for_it(snapshot, hung, failure)}
    several = _on_several_nodes(snapshot, hung, speaking)
    over_s = snapshot.now_s - limit_s(snapshot, config)
    late = tuple(f for f in speaking if _seen_s(hung, f) > over_s and (several or f.replica.index in out))
    computing, named = [each for each in live_replicas(snapshot) if contributes(snapshot, each)], named_by(hung)
    if not late or (_most_are_late(computing, named) and not out):
        return None
    found = Common(
        section=hung.section,
        failures=late,
        late=len(late),
        of=len({each.index for each in computing} | (named - {None})),
        unit="replicas",
        since_s=min(_seen_s(hung, failure) for failure in late),
        until_s=max(_seen_s(hung, failure) for failure in late) + limit_s(snapshot, config),
        moved=tuple(signal.id for signal in hung.moved),
    )
    if not _enough_without(snapshot, late):
        return msgspec.structs.replace(found, scarce=True)
    fresh = tuple(failure for failure in late if failure.replica.index not in out)
    return msgspec.structs.replace(found, few=True, gathering=_gathering(snapshot, config, hung, fresh, computing))


def _gathering(
    snapshot: JobSnapshot, config: PolicyConfig, hung: Hung, fresh: tuple[Failure, ...], computing: list[ReplicaFact]
) -> tuple[Failure, ...]:
    """Those that are not out yet, while another one may be late in a moment."""
    if not fresh or not another_is_at_work(computing, hung.signals()):
        return ()
    seen = [_seen_s(hung, failure) for failure in fresh]
    over_s = min(max(seen) + GATHER_S, min(seen) + config.common_grace_s)
    return fresh if snapshot.now_s < over_s else ()


def _seen_s(hung: Hung, failure: Failure) -> float:
    return min(signal.seen_s for signal in hung.findings[failure.replica.index])


def limit_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """For how long one is not ended, from when it was found late."""
    return min(config.few_limit_s + (snapshot.learned.step_max_s or 0.0), config.common_limit_s)


def _is_out_for_it(snapshot: JobSnapshot, hung: Hung, failure: Failure) -> bool:
    """It was left out since it was found late. One that was out before is late for itself."""
    replica = failure.replica
    return is_left_out(snapshot, replica) and replica.state_since_s >= _seen_s(hung, failure)


def _most_are_late(computing: list[ReplicaFact], named: set[int | None]) -> bool:
    """Of those that compute."""
    late = sum(replica.index in named for replica in computing)
    return late >= 2 and 2 * late > len(computing)


def _enough_without(snapshot: JobSnapshot, late: tuple[Failure, ...]) -> bool:
    """The members that would be left hold the newest state, and are as many as the job needs."""
    gone = {failure.replica.index for failure in late}
    stay = (each for each in live_replicas(snapshot) if is_member(snapshot, each) and each.index not in gone)
    return sum(holds_state(snapshot, each) for each in stay) >= max(1, snapshot.job.spec.resources.min_replicas)


def _on_several_nodes(snapshot: JobSnapshot, hung: Hung, speaking: tuple[Failure, ...]) -> bool:
    """Of several replicas, and not all of their late ranks are on one node, which would be the cause."""
    named = (*hung.moved, *(signal for failure in speaking for signal in hung.findings[failure.replica.index]))
    found = [signal for signal in named if signal.replica in snapshot.replica_by_index]
    if len({signal.replica for signal in found}) < 2:
        return False
    return len({_node_of(snapshot, signal) for signal in found}) > 1


def _node_of(snapshot: JobSnapshot, signal: SignalFact) -> str | None:
    """Where its rank is; of a finding that names no node, the first of its replica."""
    if signal.node_id is not None or signal.replica is None:
        return signal.node_id
    return min(snapshot.replica_by_index[signal.replica].node_ids, default=None)
