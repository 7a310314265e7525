"""What each project uses and waits for now, by the rows that the queue plans with (`recovery.load_queue`). It reads."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Count

from controlplane.jobs.models import Job
from controlplane.jobs.services import TERMINAL
from controlplane.recovery import load_queue


@dataclass(slots=True, kw_only=True)
class Use:
    """Devices that count for its quota, which its jobs hold with as many spares as they ask for; what its waiting jobs
    wait for; how many have not ended."""

    in_use_gpus: int = 0
    waiting_gpus: int = 0
    waiting_jobs: int = 0
    live_jobs: int = 0

    def borrowed_gpus(self, quota_gpus: int | None) -> int:
        """How many it holds beyond its quota; of a project without one none."""
        return 0 if quota_gpus is None else max(0, self.in_use_gpus - quota_gpus)


def use_of_projects() -> Mapping[str, Use]:
    """By name of the project; one without jobs has the `Use` of nothing."""
    found: dict[str, Use] = defaultdict(Use)
    for project, number in load_queue.used().items():
        found[project].in_use_gpus = number
    for job in load_queue.waiting():
        if job.held:
            continue
        use = found[job.project]
        use.waiting_gpus += job.demand.devices + job.demand.spares
        use.waiting_jobs += 1
    live = Job.objects.exclude(state__in=TERMINAL).order_by().values_list("project").annotate(number=Count("pk"))
    for project, number in live:
        found[project].live_jobs = number
    return found
