"""A job's own time limit: when it is asked to save and leave, and when it has ended at the latest.

The limit counts from the start of the job's first attempt, whatever became of it since: recoveries and preemptions
count. Asked by `lifecycle`, which ends the job, and by `deadlines`. Pure.
"""

from collections.abc import Iterator

from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.timeouts import grace_needed_s

MOST_OF_IT = 0.5
"""The grace takes at most this share of the limit: a job whose saves take longer than that trains all the same."""


def ends_s(snapshot: JobSnapshot) -> float | None:
    """Server Unix seconds at which the job has ended at the latest; None: it has no limit, or has not begun."""
    limit_s, begun_s = snapshot.job.spec.scheduling.time_limit_s, snapshot.job.begun_s
    return begun_s + limit_s if limit_s > 0.0 and begun_s is not None else None


def leaves_s(snapshot: JobSnapshot) -> float | None:
    """From when on its ranks save and leave: the grace of its spec before that, or what its saves are known to need."""
    end_s = ends_s(snapshot)
    if end_s is None:
        return None
    settings = snapshot.job.spec.scheduling
    grace_s = max(settings.preempt_grace_s, grace_needed_s(snapshot.learned.save_p95_s))
    return end_s - min(grace_s, MOST_OF_IT * settings.time_limit_s)


def moments(snapshot: JobSnapshot) -> Iterator[float]:
    """When it is to leave, though nothing rings."""
    if (leaves := leaves_s(snapshot)) is not None:
        yield leaves
