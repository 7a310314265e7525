"""How long training stood still because of an incident.

Called with its phases (`recovery.incidents`), which it stands beside. Survivors measure it on
their own clocks: time in exchanges that came to nothing and in view changes, the longest of them
in each step. Where nobody survived it is the time from the last step of one attempt to the first
of the next. Slower steps with fewer replicas are no stall: the effective time has them. Each second
belongs to one incident at most (`changes.due.stalls`). Reads rows, writes nothing.
"""

from collections.abc import Iterator, Sequence

from django.db.models import F, OuterRef, Q, QuerySet, Subquery

from controlplane.changes.due import stalls
from controlplane.changes.due.course import Mark
from controlplane.changes.due.stalls import Moved, Span, Stall, Stop
from controlplane.jobs.models import Job, StepRecord
from controlplane.recovery import course
from controlplane.recovery.models import Decision, Incident
from controlplane.runtime import windows
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared

_COMMITTED: Prepared[int] = Prepared(
    lambda job, since, after, attempt, until: StepRecord.objects.filter(
        Q(attempt__gt=since) | Q(attempt=since, step__gt=after),
        Q(attempt__lt=attempt) | Q(attempt=attempt, step__lte=until),
        job=job,
    ).values_list("pk", flat=True)[:1],
    job=TEXT, since=NUMBER, after=NUMBER, attempt=NUMBER, until=NUMBER,
)  # fmt: skip
"""Any step after the one mark and no later than the other."""


def stall_of(incident: Incident) -> Stall | None:
    """Over the steps that were committed while it was open; None while there is none."""
    job = incident.job
    if job is None:
        return None
    began, ended = course.began(incident), course.ended(incident)
    until = {"attempt": ended.of_attempt, "until": ended.step}
    if _COMMITTED.first(job=job.pk, since=began.of_attempt, after=began.step, **until) is None:
        return None
    rows = StepRecord.objects.filter(began.after() & ended.until(), job=job)
    stops = [*_within(rows), *_between(job, began, ended)]
    if not stops:
        return Stall()
    return stalls.stall_of(incident.pk, stops, _spans(incident, job, began), _moved(job, stops))


def _within(rows: QuerySet[StepRecord]) -> Iterator[Stop]:
    """Of these steps, those in which ranks waited."""
    same = StepRecord.objects.filter(job=OuterRef("job"), attempt=OuterRef("attempt"), step=OuterRef("step") - 1)
    stalled = rows.filter(stall_s__gt=0.0).annotate(before=Subquery(same.values("epoch")[:1]))
    for row in stalled.only("job_id", "attempt", "step", "epoch", "stall_s"):
        last = _before(row) if row.before is None else None
        since = row.before if last is None else last.epoch
        yield Stop(attempt=row.attempt, step=row.step, epoch=row.epoch, since_epoch=since or 0, stood_s=row.stall_s)


def _between(job: Job, began: Mark, ended: course.Mark) -> Iterator[Stop]:
    """From the last commit before each attempt that was begun meanwhile to its first one; none while it has none."""
    for number in range(began.attempt + 1, ended.attempt + 1):
        first = StepRecord.objects.filter(ended.until(), job=job, attempt=number).order_by("step").first()
        last = _before(first) if first is not None else None
        if first is not None and last is not None:
            yield Stop(
                attempt=number,
                step=first.step,
                epoch=first.epoch,
                since_epoch=last.epoch,
                stood_s=windows.between_s(last.at, first.at),
                between=True,
            )


def _before(row: StepRecord) -> StepRecord | None:
    """The commit before the first one of an attempt."""
    earlier = StepRecord.objects.filter(job=row.job_id, attempt__lt=row.attempt)
    return earlier.order_by("-attempt", "-step").only("epoch", "at").first()


def _spans(incident: Incident, job: Job, began: Mark) -> list[Span]:
    """Of the job's incidents those that ended after this one began, it among them, in the order in which they
    were opened."""
    later = Q(ended__of_attempt=began.of_attempt, ended__step__gt=began.step)
    found = Incident.objects.filter(later | Q(ended__of_attempt__gt=began.of_attempt) | Q(ended__isnull=True), job=job)
    rows = {row.pk: row for row in found} | {incident.pk: incident}
    spans = [Span(incident=pk, began=course.began(row), ended=course.ended(row)) for pk, row in rows.items()]
    # An id tells the time by the clock of then.
    return sorted(spans, key=lambda span: (span.began.clock, span.incident))


def _moved(job: Job, stops: Sequence[Stop]) -> list[Moved]:
    """Decisions that changed who trains between the first and the last of these."""
    since, until = min(stop.since_epoch for stop in stops), max(stop.epoch for stop in stops)
    rows = Decision.objects.filter(job=job, applied=True, epoch_after__gt=since, epoch_after__lte=until)
    rows = rows.filter(epoch_after__gt=F("epoch_before"))
    return [Moved(epoch=epoch, incident=of) for epoch, of in rows.values_list("epoch_after", "incident_id")]
