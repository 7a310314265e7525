"""What a job's start takes of the fleet, from its spec."""

from controlplane.policy.queue.rows import Demand
from controlplane.protocol.spec import TrainSpec, ranks_per_replica, replica_count


def first_demand(spec: TrainSpec) -> Demand:
    """Of a job that has never been placed: all that it asks for, its spares too (`lifecycle.first_attempt`); of an
    elastic one as much as of one that has trained."""
    if spec.scheduling.elastic:
        return later_demand(spec)
    asked, ranks, replicas = spec.resources, ranks_per_replica(spec.parallelism), replica_count(spec)
    return Demand(
        devices=asked.nodes * asked.gpus_per_node,
        most=replicas * ranks,
        touches=max(asked.nodes, _touches(replicas, ranks, asked.gpus_per_node)),
        nodes=asked.nodes,
        of_each=asked.gpus_per_node,
        spares=max(0, asked.spares.gpus),
        gpu_type=asked.gpu_type,
    )


def later_demand(spec: TrainSpec) -> Demand:
    """Of a job that has trained: it is elastic, and continues with `min_replicas` or more, wherever they are."""
    asked, ranks, replicas = spec.resources, ranks_per_replica(spec.parallelism), replica_count(spec)
    return Demand(
        devices=max(1, asked.min_replicas) * ranks,
        most=replicas * ranks + max(0, asked.spares.gpus),
        touches=replicas * ranks + max(0, asked.spares.gpus),
        gpu_type=asked.gpu_type,
    )


def growth_demand(spec: TrainSpec) -> Demand:
    """Of a job that trains with fewer replicas than it asks for: one more, wherever its devices are."""
    ranks = ranks_per_replica(spec.parallelism)
    return Demand(devices=ranks, most=ranks, touches=ranks, gpu_type=spec.resources.gpu_type)


def _touches(replicas: int, ranks: int, of_each: int) -> int:
    """At most so many nodes: whole replicas on each, or each replica on nodes of its own."""
    if ranks <= of_each:
        return -(-replicas // (of_each // ranks))
    return replicas * -(-ranks // of_each)
