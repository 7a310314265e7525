"""Who trains in an attempt's first view, as soon as it is due. Pure look-ups, once a pass."""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import all_joined, attempt_live, current_view, live_replicas
from controlplane.policy.failures import actionable
from controlplane.policy.ladder import may_still_start, setup_over
from controlplane.policy.once import per_pass
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact


@per_pass
def first_members(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[ReplicaFact, ...]:
    """All that have come, when every replica that can still come has, or the time for it is over; () while
    the view is not due: others are on their way, too few have come, or one of them has just failed."""
    if not attempt_live(snapshot) or current_view(snapshot) is not None:
        return ()
    failed = {failure.replica.index for failure in actionable(snapshot, config)}
    live = [replica for replica in live_replicas(snapshot) if replica.index not in failed]
    joined = tuple(replica for replica in live if all_joined(replica))
    enough = len(joined) >= max(1, snapshot.job.spec.resources.min_replicas)
    if failed or not enough:
        return ()
    coming = len(joined) < len(live) or may_still_start(snapshot, config, soon=True)
    return () if coming and not setup_over(snapshot) else joined
