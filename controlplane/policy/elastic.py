"""A job that need not wait for all that it asks for (`scheduling.elastic`). Asked by the rule that places attempts."""

from controlplane.policy.layout import Layout
from controlplane.policy.placement import Pool
from controlplane.protocol.spec import TrainSpec, ranks_per_replica, replica_count


def later_replicas(spec: TrainSpec, layout: Layout, *, gave: bool) -> int:
    """How many more replicas of this layout a job takes when there is room: one that is elastic, or that `gave` some in
    the attempt before and takes them back. Another layout grows into none."""
    same = ranks_per_replica(layout.parallelism) == ranks_per_replica(spec.parallelism)
    return replica_count(spec) - layout.replicas if (spec.scheduling.elastic or gave) and same else 0


def may_start_smaller(spec: TrainSpec, pool: Pool) -> bool:
    """An elastic job need not wait for all that it asks for: the pool has room for `min_replicas`."""
    least = max(1, spec.resources.min_replicas) * ranks_per_replica(spec.parallelism)
    return spec.scheduling.elastic and pool.size >= least
