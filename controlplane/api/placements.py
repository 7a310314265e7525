"""Where a job would run if it were submitted now: by the code that decides it."""

from typing import Any

from controlplane.access.rights import Rights
from controlplane.jobs.models import Job
from controlplane.policy.errors import PolicyError
from controlplane.policy.layout import plan_layout
from controlplane.policy.placement import Pool, build_pool, of_type, place_gang
from controlplane.policy.rules.lifecycle import first_attempt, may_start_smaller
from controlplane.policy.snapshot import Placement
from controlplane.protocol.spec import JobSpec, TrainSpec, ranks_per_replica
from controlplane.recovery import load_queue
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.load_queue import NOBODY


def try_placement(spec: JobSpec, rights: Rights) -> tuple[list[dict[str, Any]] | None, str]:
    """One entry a rank; None and what is missing when it is not its turn, or the fleet cannot hold the whole job
    and its spares at this moment."""
    place = load_queue.place_of_new(spec, rights)
    if place is not None and not place.may_start:
        return None, place.sentence
    nodes = node_facts(Job(id=NOBODY, name=spec.metadata.name))
    names = {node.id: node.name for node in nodes}
    pool = build_pool(of_type(nodes, spec.spec.resources.gpu_type), job_id=NOBODY)
    try:
        gang = _gang(spec.spec, pool)
    except PolicyError as error:
        return None, str(error)
    placement = [
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
    return placement, ""


def _gang(spec: TrainSpec, pool: Pool) -> tuple[tuple[Placement, ...], ...]:
    """All of it, or as many replicas as an elastic job begins with. Raises PolicyError."""
    try:
        return first_attempt(spec, pool)[1]
    except PolicyError:
        if not may_start_smaller(spec, pool.size):
            raise
    layout = plan_layout(spec, pool.size)
    return place_gang(pool, layout.replicas, ranks_per_replica(layout.parallelism), tp=layout.parallelism.tp)
