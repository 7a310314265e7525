"""Is the loss after a restart what it was before? Called with each step that brings a loss.

A checkpoint can hold the right bytes of wrong numbers: whoever resumes from it trains on from a
state that is worse than the one before the restart. The first steps after a resume are compared
with the last ones before its step; well above them is a finding, `loss_spike`, once an attempt.
What follows is the policy's to say.
"""

from collections.abc import Iterable
from statistics import median

from controlplane.jobs.models import Attempt, Job, Rank, StepRecord
from controlplane.policy.numerics import NEWEST_STEPS as WINDOW_STEPS
from controlplane.policy.numerics import OF_LOSS, SPIKE_RATIO, losses_now
from controlplane.policy.signals.numbers import LossSpike
from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.rank import StepReport
from controlplane.recovery import signals
from controlplane.recovery.steps import finite

MIN_BEFORE, MIN_AFTER = 4, 3


def is_spike(before: list[float], after: list[float]) -> bool:
    """Losses of the last steps before the checkpoint and of the first since the resume."""
    if len(before) < MIN_BEFORE or len(after) < MIN_AFTER:
        return False
    return median(after) > SPIKE_RATIO * max(before) > 0.0


def with_losses(found: Iterable[SignalFact], attempt: Attempt | None) -> list[SignalFact]:
    """Findings about the loss with what it is now; the others as they are."""
    found = list(found)
    if attempt is None or not any(signal.kind in OF_LOSS for signal in found):
        return found
    steps = StepRecord.objects.filter(job_id=attempt.job_id, attempt=attempt.number).order_by("-step")
    newest = list(steps.values_list("step", "loss")[:WINDOW_STEPS])
    return [losses_now(signal, newest) if signal.kind in OF_LOSS else signal for signal in found]


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
