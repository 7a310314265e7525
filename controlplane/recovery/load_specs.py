"""What the queue needs of jobs' specs, worked out once in a process: a spec never changes. Reads alone."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from controlplane.jobs.models import Job
from controlplane.policy.queue.demand import first_demand, growth_demand, later_demand
from controlplane.policy.queue.rows import Demand
from controlplane.protocol.spec import TrainSpec
from controlplane.recovery.load_devices import NODES_A_QUERY
from controlplane.runtime.logs import get
from controlplane.runtime.pieces import batched

MAX_KEPT = 20_000
_kept: dict[str, "Kept"] = {}
_log = get(__name__)


class Kept(NamedTuple):
    """Of one spec. `limit_s`: its time limit, 0 for none."""

    first: Demand
    later: Demand
    grows: Demand
    steps: int
    least: int
    spares: int
    has_env: bool
    preemptible: bool
    limit_s: float


def specs_of(job_ids: Collection[str]) -> Mapping[str, Kept]:
    """By job; one whose spec nobody can read is left out."""
    missing = [job_id for job_id in job_ids if job_id not in _kept]
    if len(_kept) + len(missing) > MAX_KEPT:
        _kept.clear()
        missing = list(job_ids)
    for some in batched(missing, NODES_A_QUERY):
        for job_id, stored in Job.objects.filter(pk__in=some).values_list("id", "spec"):
            try:
                spec = msgspec.convert(stored["spec"], TrainSpec)
            except (LookupError, TypeError, msgspec.ValidationError) as error:
                # One row that nobody can read is in nobody's way: it has no place, and no end that could be expected.
                _log.warning("spec not read", job_id=job_id, error=str(error))
                continue
            _kept[job_id] = Kept(
                first=first_demand(spec),
                later=later_demand(spec),
                grows=growth_demand(spec),
                least=spec.resources.min_replicas,
                spares=max(0, spec.resources.spares.gpus),
                steps=spec.training.steps,
                has_env=bool(spec.env),
                preemptible=spec.scheduling.preemptible,
                limit_s=spec.scheduling.time_limit_s,
            )
    return {job_id: _kept[job_id] for job_id in job_ids if job_id in _kept}
