"""A job's spares in rows and orders: reserved, let go, their rank hosts started ahead. Called by
`apply`, in the unit of work of the decision."""

from collections.abc import Sequence

from controlplane.dispatch import services as dispatch
from controlplane.jobs.models import Attempt, Job
from controlplane.policy import plan
from controlplane.protocol.commands import WarmHost
from controlplane.scheduling import services as scheduling

WARM_TTL_S = 240.0
"""A host that imports everything on a loaded machine takes minutes, and answers when it is up."""


def keep(job: Job, attempt: Attempt, action: plan.KeepSpares, *, decision_id: str) -> None:
    """Carry the order out."""
    scheduling.release_nodes(job, action.release)
    scheduling.reserve_nodes(job, action.reserve)
    warm(job, attempt, action.warm, decision_id=decision_id)


def warm(job: Job, attempt: Attempt, node_ids: Sequence[str], *, decision_id: str) -> None:
    """Order the job's rank host started on these nodes; where one is up it waits longer."""
    dispatch.enqueue_all(
        WarmHost(job_id=job.id, attempt=attempt.number, user=job.owner),
        node_ids=node_ids,
        job_id=job.id,
        attempt=attempt.number,
        epoch=job.epoch,
        decision_id=decision_id,
        ttl_s=WARM_TTL_S,
    )
