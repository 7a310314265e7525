"""Projects as `policy.queue` plans with them: their quotas, and how many devices count for each. Reads alone."""

from collections.abc import Iterable

from controlplane.access.project_models import Project
from controlplane.changes.assembly.queue import used_by_project
from controlplane.policy.queue.rows import Share
from controlplane.runtime.prepared import Prepared

_WITH_QUOTA = Prepared(lambda: Project.objects.filter(quota_gpus__isnull=False).order_by("name"))
_ANY_QUOTA = Prepared(lambda: Project.objects.filter(quota_gpus__isnull=False).values_list("pk")[:1])


def any_quota() -> bool:
    """Some project has one."""
    return bool(_ANY_QUOTA())


def has_quota(project: str) -> bool:
    """This one has."""
    return Project.objects.filter(name=project, quota_gpus__isnull=False).exists()


def shares_of(jobs: Iterable[tuple[str, int, int, int]]) -> tuple[Share, ...]:
    """Every project with a quota. `jobs`: see `used_by_project`, of all that have devices."""
    rows = _WITH_QUOTA()
    if not rows:
        return ()
    used = used_by_project(jobs)
    return tuple(
        Share(
            name=row.name,
            quota=row.quota_gpus,
            borrow=row.borrow_limit_gpus,
            lend=row.lend_limit_gpus,
            weight=row.weight,
            used=used.get(row.name, 0),
        )
        for row in rows
    )
