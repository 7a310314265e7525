"""How long training stood still because of an incident.

Called with its phases (`recovery.incidents`), which it stands beside. Survivors measure it on
their own clocks: time in exchanges that came to nothing and in view changes, the longest of them
in each step. Where nobody survived it is the time from the last step of one attempt to the first
of the next. Slower steps with fewer replicas are no stall: the effective time has them. Reads
rows, writes nothing.
"""

from django.db.models import Sum

from controlplane.jobs.models import Job, StepRecord
from controlplane.recovery import course
from controlplane.recovery.course import Mark
from controlplane.recovery.models import Incident
from controlplane.runtime import windows


def stall_of(incident: Incident) -> float | None:
    """Seconds, over the steps that were committed while it was open; None while there is none."""
    if incident.job is None:
        return None
    began, ended = course.began(incident), course.ended(incident)
    rows = StepRecord.objects.filter(began.after() & ended.until(), job=incident.job)
    if not rows.exists():
        return None
    within_s = rows.aggregate(total=Sum("stall_s"))["total"] or 0.0
    begun = range(began.attempt + 1, ended.attempt + 1)
    return float(within_s) + sum(_between_s(incident.job, number, ended) for number in begun)


def _between_s(job: Job, number: int, ended: Mark) -> float:
    """From the last commit before an attempt to its first one; 0 while it has none."""
    rows = StepRecord.objects.filter(job=job)
    last = rows.filter(attempt__lt=number).order_by("-attempt", "-step").first()
    first = rows.filter(ended.until(), attempt=number).order_by("step").first()
    return windows.between_s(last.at, first.at) if first and last else 0.0
