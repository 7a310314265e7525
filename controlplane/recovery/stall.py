"""How long training stood still because of an incident.

Called with its phases (`recovery.incidents`), which it stands beside. Survivors measure it on
their own clocks: time in exchanges that came to nothing and in view changes, the longest of them
in each step. Where nobody survived it is the time from the last step of one attempt to the first
of the next. Slower steps with fewer replicas are no stall: the effective time has them. Reads
rows, writes nothing.
"""

from datetime import datetime

from django.db.models import Sum

from controlplane.jobs.models import StepRecord
from controlplane.recovery.models import Incident
from controlplane.runtime.clock import now


def stall_of(incident: Incident) -> float | None:
    """Seconds, over the steps that were committed while it was open; None while there is none."""
    if incident.job is None:
        return None
    ended = incident.ended_at or now()
    rows = StepRecord.objects.filter(job=incident.job, at__gt=incident.opened_at, at__lte=ended)
    if not rows.exists():
        return None
    within_s = rows.aggregate(total=Sum("stall_s"))["total"] or 0.0
    return float(within_s) + sum(_between_s(incident, number, ended) for number in _attempts_begun(incident, ended))


def _attempts_begun(incident: Incident, ended: datetime) -> list[int]:
    assert incident.job is not None, "only a job's incident has a stall"
    begun = incident.job.attempts.filter(number__gt=1, started_at__gt=incident.opened_at, started_at__lte=ended)
    return list(begun.values_list("number", flat=True))


def _between_s(incident: Incident, number: int, ended: datetime) -> float:
    """From the last commit before an attempt to its first one; 0 while it has none."""
    rows = StepRecord.objects.filter(job=incident.job)
    last = rows.filter(attempt__lt=number).order_by("-attempt", "-step").first()
    first = rows.filter(attempt=number, at__lte=ended).order_by("step").first()
    return (first.at - last.at).total_seconds() if first and last else 0.0
