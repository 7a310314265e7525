"""Steps that a restart from a checkpoint had to train again, and whether they came out alike.

Called by `recovery.certificate`, which shows them beside its verdict: they are work that was lost
and no fault of the recovery. Their losses from before and after are compared as far as both are
there, which is a proof of its own and needs no run beside the job. Reads rows, writes nothing.
"""

from dataclasses import dataclass
from typing import Any

from controlplane.jobs.models import Job, StepRecord
from controlplane.recovery.course import Mark

MAX_COMPARED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Steps `first` to `last`, of which `again` are back; `compared` losses were there before and
    after, and differ by at most `largest_difference` (None: none was compared)."""

    first: int
    last: int
    again: int
    compared: int
    largest_difference: float | None

    def json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "steps": self.last - self.first + 1,
            "first": self.first,
            "last": self.last,
            "again": self.again,
            "compared": self.compared,
            "largest_difference": self.largest_difference,
        }


def repeated(job: Job, *, began: Mark, ended: Mark) -> Repeated | None:
    """What the attempts that began between the two trained again; None: nothing."""
    begun = job.attempts.filter(number__gt=began.attempt, number__lte=ended.attempt)
    ranges = []
    for number, resume in begun.values_list("number", "resume_step"):
        before = StepRecord.objects.filter(job=job, attempt__lt=number, step__gte=resume)
        reached = before.order_by("-step").values_list("step", flat=True).first()
        if reached is not None:
            ranges.append((resume, reached))
    if not ranges:
        return None
    first, last = min(low for low, _ in ranges), max(high for _, high in ranges)
    oldest = min(begun.values_list("number", flat=True))
    rows = StepRecord.objects.filter(job=job, step__gte=first, step__lte=last).order_by("attempt", "step")
    then = dict(rows.filter(attempt__lt=oldest).values_list("step", "loss")[:MAX_COMPARED])
    now = dict(rows.filter(attempt__gte=oldest).values_list("step", "loss")[:MAX_COMPARED])
    pairs = [(then[step], now[step]) for step in then.keys() & now.keys()]
    differences = [abs(before - after) for before, after in pairs if before is not None and after is not None]
    return Repeated(
        first=first,
        last=last,
        again=rows.filter(attempt__gte=oldest).order_by().values("step").distinct().count(),
        compared=len(differences),
        largest_difference=max(differences, default=None),
    )
