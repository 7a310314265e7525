"""The database as certificates are judged by it (`changes.due.certificates.CertificateRows`).

Called by `recovery.certificate`. Whether what was trained is what would have been trained is judged here, by the
runs that are made for it. Reads rows, writes nothing.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from django.db.models import Max, Min, QuerySet

from controlplane.changes.due import certificates as core
from controlplane.changes.due.checks import LOSSES, RECOMPUTED, Check, Window
from controlplane.changes.due.course import Step
from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Job, StepRecord
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, spec_of
from controlplane.jobs.step_rows import whole
from controlplane.protocol.spec import Parallelism, micro_batch_count, ranks_per_replica
from controlplane.recovery import course, proof, recompute
from controlplane.recovery.course import Mark, Proved
from controlplane.recovery.fencing import CourseRows
from controlplane.recovery.reference import LIMIT_MAX, read_reference
from controlplane.runtime import windows
from controlplane.runtime.clock import now

SHOWN_DIGITS = 3
"""Of a difference between losses: a loss in full would tell which text it is the loss of."""


class CertificateRows(CourseRows):
    """Of the one incident that is judged, or of whoever else is (`recovery.resumptions`)."""

    def __init__(self, incident: Proved, job: Job) -> None:
        super().__init__(job)
        self._incident = incident

    @property
    def _steps(self) -> QuerySet[StepRecord]:
        return StepRecord.objects.filter(job=self._job)

    def course(self, incident: str) -> tuple[Mark, Mark]:
        """By its marks."""
        return course.began(self._incident), course.ended(self._incident)

    def over_s(self, incident: str) -> float:
        """Whatever the clock was set to."""
        return windows.age_s(self._incident.ended_at or now())

    def newest_until(self, mark: Mark, limit: int) -> Sequence[StepRecord]:
        """By attempt and number."""
        return whole(self._steps.filter(mark.until()).order_by("-attempt", "-step")[:limit])

    def newest_between(self, began: Mark, ended: Mark, limit: int) -> tuple[Sequence[StepRecord], int]:
        """By attempt and number."""
        rows = self._steps.filter(began.after() & ended.until()).order_by("-attempt", "-step")
        found = whole(rows[:limit])
        return found, rows.count() if len(found) == limit else len(found)

    def oldest_after(self, mark: Mark, limit: int) -> Sequence[StepRecord]:
        """By attempt and number."""
        return whole(self._steps.filter(mark.after()).order_by("attempt", "step")[:limit])

    def since_report_s(self, step: Step) -> float:
        """Whatever the clock was set to."""
        return windows.age_s(_at(step))

    def apart_s(self, one: Step, other: Step) -> float:
        """As the clock told."""
        return abs(_at(one) - _at(other)).total_seconds()

    def newest_step(self) -> int:
        """As the job's row has it."""
        return self._job.committed_step

    def micro_batch_count(self) -> int:
        """By the spec."""
        return micro_batch_count(spec_of(self._job).spec)

    def ranks_of(self, attempt: int) -> int:
        """By its layout."""
        return ranks_per_replica(msgspec.convert(self._job.attempts.get(number=attempt).layout, Parallelism))

    def missing(self, first: int, last: int) -> Sequence[int]:
        """Counted before they are sought."""
        known = self._steps.filter(step__gte=first, step__lte=last).values_list("step", flat=True).distinct()
        if known.count() == last - first + 1:
            return ()
        there = set(known)
        return [number for number in range(first, last + 1) if number not in there]

    def spans(self) -> Sequence[tuple[int, int]]:
        """As they come."""
        rows = self._steps.order_by().values("attempt").annotate(low=Min("step"), high=Max("step"))
        begun = dict(self._job.attempts.values_list("number", "resume_step"))
        return [
            (min(low, begun.get(attempt, low + 1) - 1), high)
            for attempt, low, high in rows.values_list("attempt", "low", "high")
        ]

    def first_since(self, epoch: int) -> tuple[int, int] | None:
        """By attempt and number."""
        later = self._steps.filter(epoch__gte=epoch).order_by("attempt", "step")
        return later.values_list("attempt", "step").first()

    def saves_before(self, epoch: int, *, attempt: int) -> Sequence[tuple[int, int, int]]:
        """As they come."""
        rows = Checkpoint.objects.filter(job=self._job, epoch__lt=epoch, state__in=COMMITTED_CHECKPOINTS)
        return list(rows.filter(attempt__gte=attempt).values_list("attempt", "step", "epoch"))

    def equality(self, incident: str, window: Window) -> Check:
        """By a sampled step that a replica computed again, where that was chosen, else on the server."""
        row = recompute.of(self._incident)
        if row is None:
            return losses_of(self._incident, self._job, window)
        found = recompute.verdict(row)
        return Check(name=RECOMPUTED, ok=found.ok, detail=found.detail, value=_rounded(found.value), limit=1.0)

    def equality_comes(self, incident: str) -> bool:
        """Either of them."""
        waits = recompute.is_waiting(self._incident)
        return waits or (recompute.of(self._incident) is None and proof.comes(self._incident))

    def equality_put_off(self, incident: str) -> bool:
        """Either of them."""
        waits = recompute.is_waiting(self._incident)
        return waits or proof.is_put_off(self._incident) or proof.is_queued(self._incident)

    def equality_given_up(self, incident: str) -> bool:
        """A run may take longer than the last reports."""
        limit_s = proof.GIVE_UP_S if proof.comes(self._incident) else core.GIVE_UP_S
        return proof.waited_s(self._incident) >= limit_s


def _at(step: Step) -> datetime:
    assert isinstance(step, StepRecord), "one of those that were read here"
    return step.at


def losses_of(incident: Proved, job: Job, window: Window) -> Check:
    """Every loss is that of the undisturbed run, before and after the membership changed."""
    name, reference = LOSSES, proof.read(incident) or read_reference(job)
    if reference is None:
        return Check(name=name, ok=None, detail=proof.why_missing(incident))
    steps = [step for step in window.steps if isinstance(step, StepRecord)]
    expected = [(step, reference.of(step.step)) for step in steps]
    judged = [(step, abs(step.loss - loss)) for step, loss in expected if step.loss is not None and loss is not None]
    if not window.reaches_beyond([step for step, _ in judged]):
        end = reference.first_step + len(reference.losses)
        return Check(name=name, ok=None, detail=f"the undisturbed run ends at step {end}, not beyond the recovery")
    step, worst = max(judged, key=lambda pair: pair[1] / reference.limit(pair[0].step))
    if worst > reference.limit(step.step) and proof.is_by_shared(incident):
        return Check(name=name, ok=None, detail="a run shared with other incidents differs: one of its own is made")
    limit = reference.limit(step.step)
    detail = (
        f"compared {len(judged)} of {len(window.steps)} steps ({judged[0][0].step} to {judged[-1][0].step}) with an"
        f" undisturbed run from step {reference.first_step}; largest difference {worst:.1e} at step {step.step},"
        f" allowed {limit:.1e} ({reference.tolerance:.0e} for each step since the run began, at most {LIMIT_MAX:.0e})"
    )
    return Check(name=name, ok=worst <= limit, detail=detail, value=_rounded(worst), limit=_rounded(limit))


def _rounded(value: float | None) -> float | None:
    """As it is shown; what is judged is judged in full."""
    return None if value is None else float(f"{value:.{SHOWN_DIGITS}g}")
