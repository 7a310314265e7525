"""Where a job would run if it were submitted now: the policy's own gang placement."""

from typing import Any

from controlplane.jobs.models import Job
from controlplane.policy.errors import Unsatisfiable
from controlplane.policy.placement import build_pool, place_gang
from controlplane.protocol.spec import JobSpec, ranks_per_replica, replica_count
from controlplane.recovery.load import node_facts

NOBODY = "job_dry_run"


def try_placement(spec: JobSpec) -> list[dict[str, Any]] | None:
    """One entry a rank; None when the fleet cannot hold the whole job at this moment."""
    nodes = node_facts(Job(id=NOBODY, name=spec.metadata.name))
    names = {node.id: node.name for node in nodes}
    pool = build_pool(nodes, job_id=NOBODY)
    try:
        layout = spec.spec.parallelism
        gang = place_gang(pool, replica_count(spec.spec), ranks_per_replica(layout), tp=layout.tp)
    except Unsatisfiable:
        return None
    return [
        {
            "replica": index,
            "rank": place.rank,
            "node_id": place.node_id,
            "node_name": names[place.node_id],
            "device_index": place.device_index,
        }
        for index, replica in enumerate(gang)
        for place in replica
    ]
