"""Is the loss after a restart what it was before? Called with each step that brings a loss.

A checkpoint can hold the right bytes of wrong numbers: whoever resumes from it trains on from a
state that is worse than the one before the restart. The first steps after a resume are compared
with the last ones before its step; well above them is a finding, `loss_spike`, once an attempt.
What follows is the policy's to say.
"""

from statistics import median

from controlplane.jobs.models import Job, Rank, StepRecord
from controlplane.policy.signals.numbers import LossSpike
from controlplane.protocol.rank import StepReport
from controlplane.recovery import signals
from controlplane.recovery.steps import finite

WINDOW_STEPS = 16
"""So many steps before the checkpoint, and so many after the resume, are looked at."""
MIN_BEFORE, MIN_AFTER = 4, 3
RATIO = 2.0
"""The median after is above so many times the highest before: noise does not do that."""


def is_spike(before: list[float], after: list[float]) -> bool:
    """Losses of the last steps before the checkpoint and of the first since the resume."""
    if len(before) < MIN_BEFORE or len(after) < MIN_AFTER:
        return False
    return median(after) > RATIO * max(before) > 0.0


def look(job: Job, rank: Rank, said: StepReport) -> bool:
    """Raise the finding where this step's loss makes it one; True when it did."""
    attempt = rank.replica.attempt
    first = attempt.resume_step
    loss = None if said.loss is None else finite(said.loss)
    if loss is None or not first or not first <= said.step < first + WINDOW_STEPS:
        return False
    told = StepRecord.objects.filter(job=job, loss__isnull=False)
    since = told.filter(attempt=attempt.number, step__gte=first, step__lt=first + WINDOW_STEPS).exclude(step=said.step)
    after = [*since.values_list("loss", flat=True), loss]
    if len(after) < MIN_AFTER:
        return False
    earlier = told.filter(attempt__lt=attempt.number, step__lt=first, step__gte=first - WINDOW_STEPS)
    before = list(earlier.values_list("loss", flat=True))
    if not is_spike(before, after):
        return False
    found = LossSpike(
        job_id=job.id,
        attempt=attempt.number,
        steps_before=len(before),
        resume_step=first,
        steps=len(after),
        before=max(before),
        after=median(after),
    )
    signals.raise_signal(found)
    return True
