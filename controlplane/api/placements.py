"""Where a job would run if it were submitted now: by the code that decides it."""

from typing import Any

from controlplane.access.rights import Rights
from controlplane.jobs.models import Job
from controlplane.policy import leaving, reserved
from controlplane.policy.errors import PolicyError
from controlplane.policy.layout import plan_layout
from controlplane.policy.placement import Pool, build_pool, of_type, place_gang
from controlplane.policy.rules.lifecycle import first_attempt, may_start_smaller
from controlplane.policy.snapshot import Placement
from controlplane.protocol.spec import JobSpec, TrainSpec, ranks_per_replica
from controlplane.recovery import load_queue
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.load_queue import NOBODY
from controlplane.runtime.clock import now_s


def try_placement(spec: JobSpec, rights: Rights) -> tuple[list[dict[str, Any]] | None, str]:
    """One entry a rank; None and what is missing when it is not its turn, or the fleet cannot hold the whole job
    and its spares at this moment."""
    place = load_queue.place_of_new(spec, rights)
    if place is not None and not place.may_start:
        return None, place.sentence
    project, moment_s = spec.metadata.project, now_s()
    nodes = node_facts(Job(id=NOBODY, name=spec.metadata.name, project=project))
    names = {node.id: node.name for node in nodes}
    over_s = load_queue.demand_of_new(spec.spec).over_s
    own = {node.id for node in nodes if reserved.is_own(node.reservations, project, moment_s)}
    open_nodes = [
        node
        for node in nodes
        if leaving.takes(node, over_s, moment_s) and reserved.takes(node.reservations, project, over_s, moment_s)
        if node.id in own or place is None or not place.alone
    ]
    pool = build_pool(of_type(open_nodes, spec.spec.resources.gpu_type), job_id=NOBODY, alone=own)
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
