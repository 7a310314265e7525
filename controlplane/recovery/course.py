"""Where a job was in its course when an incident began and ended: by attempt, step and epoch, not by the clock.

Called by what opens, ends and judges an incident. Times in rows are for people: a server's clock may be set in the
middle of a recovery, and by times the steps after it then lie before it. Attempts and epochs only grow, and a step
is committed once in an attempt, so these three tell what came first whatever the clock told. Reads rows, and makes
an incident's two marks.
"""

from dataclasses import asdict
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from controlplane.changes.due import course as core
from controlplane.jobs.models import Job, StepRecord
from controlplane.recovery.models import Incident, ViewRow
from controlplane.recovery.resumption_models import Resumption
from controlplane.recovery.row_queries import NEWEST_NUMBER
from controlplane.runtime import windows
from controlplane.runtime.clock import SEEN_WITHIN_S, SETTLE_S
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import MOMENT, NUMBER, TEXT, Prepared

Proved = Incident | Resumption
"""What a certificate is about: something that was in a job's way, from `opened_at` to `ended_at`."""


_STEP: Prepared[tuple[int, int]] = Prepared(
    lambda job: StepRecord.objects.filter(job=job).order_by("-attempt", "-step").values_list("attempt", "step")[:1],
    job=TEXT,
)
_STEP_AT: Prepared[tuple[int, int]] = Prepared(
    lambda job, at: StepRecord.objects.filter(job=job, at__lte=at)
    .order_by("-attempt", "-step").values_list("attempt", "step")[:1],
    job=TEXT, at=MOMENT,
)  # fmt: skip
_EPOCH: Prepared[int] = Prepared(
    lambda job: ViewRow.objects.filter(job=job).order_by("-epoch").values_list("epoch", flat=True)[:1], job=TEXT
)
_VIEW_AT: Prepared[tuple[int, int]] = Prepared(
    lambda job, at: ViewRow.objects.filter(job=job, announced_at__lt=at)
    .order_by("-epoch").values_list("attempt", "epoch")[:1],
    job=TEXT, at=MOMENT,
)  # fmt: skip
_SET_SINCE: Prepared[int] = Prepared(
    lambda step: ClockStep.objects.filter(pk__gt=step).values_list("pk", flat=True)[:1], step=NUMBER
)


class Mark(core.Mark):
    """As the core has it, and as the database seeks by it."""

    def after(self) -> Q:
        """Of steps: those committed later."""
        return Q(attempt__gt=self.of_attempt) | Q(attempt=self.of_attempt, step__gt=self.step)

    def until(self) -> Q:
        """Of steps: those committed by then."""
        return Q(attempt__lt=self.of_attempt) | Q(attempt=self.of_attempt, step__lte=self.step)


def mark(job: Job, at: datetime) -> dict[str, int]:
    """Of a moment, as it is kept: of the commits and views that rows put no later, the newest."""
    attempt, epoch = _VIEW_AT.first(job=job.pk, at=at) or (1, 0)
    of_attempt, step = _STEP_AT.first(job=job.pk, at=at) or (0, -1)
    newest, clock = max(attempt, of_attempt), windows.newest_before(at)
    return asdict(Mark(of_attempt=of_attempt, step=step, attempt=newest, epoch=epoch, clock=clock))


def here(job: Job) -> Mark:
    """Of this moment."""
    newest, number, epoch = (
        _STEP.first(job=job.pk) or (0, -1),
        NEWEST_NUMBER.first(job=job.pk),
        _EPOCH.first(job=job.pk),
    )
    clock = next((step.pk for step in windows.known()), 0)
    return Mark(of_attempt=newest[0], step=newest[1], attempt=number or 1, epoch=epoch or 0, clock=clock)


def began(incident: Proved) -> Mark:
    """When the fault was. Of an incident that an older release opened, times tell it."""
    assert incident.job is not None, "only a job has a course"
    return Mark(**(incident.began or mark(incident.job, incident.opened_at)))


def ended(incident: Proved) -> Mark:
    """When training was back; of an incident that is open, now. As `began` of older ones."""
    assert incident.job is not None, "only a job has a course"
    if incident.ended is not None:
        return Mark(**incident.ended)
    return here(incident.job) if incident.ended_at is None else Mark(**mark(incident.job, incident.ended_at))


def clock_steps(incident: Incident) -> list[ClockStep]:
    """Those of the server's clock in its course, the newest first, each from the earliest moment at which it may have
    come: what was written between that and the moment at which it was seen is of the clock after it."""
    began = (incident.began or {}).get("clock") or windows.newest_before(incident.opened_at)
    if _SET_SINCE.first(step=began) is None:
        return []
    rows = ClockStep.objects.filter(pk__gt=began).order_by("-pk")
    ended = (incident.ended or {}).get("clock")
    if incident.ended_at is not None and ended is not None:
        rows = rows.filter(Q(pk__lte=ended) | _unknown_at(incident.ended_at))
    return _earliest(rows[: windows.MAX_STEPS])


def clock_before(incident: Incident, at: datetime) -> tuple[list[ClockStep], float]:
    """Steps of the clock before `at`, when the incident was written down, the newest first; and seconds since it was
    opened, by a clock that may be an older one."""
    began = (incident.began or {}).get("clock") or windows.newest_before(incident.opened_at)
    rows = ClockStep.objects.filter(Q(pk__lte=began) | _unknown_at(at)).order_by("-pk")
    steps = _earliest(rows[: windows.MAX_STEPS])
    set_s = sum(step.step_s for step in steps if step.pk > began)
    return steps, max(0.0, (at - incident.opened_at).total_seconds() - set_s)


def _earliest(rows: QuerySet[ClockStep]) -> list[ClockStep]:
    """Each from when it may have come; one ahead is written down from then on."""
    steps = list(rows)
    for step in steps:
        step.set_at -= timedelta(seconds=SEEN_WITHIN_S if step.step_s < 0.0 else 0.0)
    return steps


def ended_by(incident: Incident) -> dict[str, int] | None:
    """The mark of its end as it is known a moment later, when the leader knows each step of the clock until then: with
    the newest, which nobody may have known when it ended. None: it has none."""
    if incident.ended is None or incident.ended_at is None:
        return None
    unknown = ClockStep.objects.filter(_unknown_at(incident.ended_at), pk__gt=incident.ended.get("clock", 0))
    newest = unknown.order_by("-pk").values_list("pk", flat=True).first()
    return {**incident.ended, **({} if newest is None else {"clock": newest})}


def _unknown_at(moment: datetime) -> Q:
    """A step that was not known at this moment, which the clock told after it."""
    since = moment - timedelta(seconds=SETTLE_S)
    back = Q(step_s__lt=0.0, set_at__lte=moment + timedelta(seconds=SEEN_WITHIN_S))
    return Q(set_at__gte=since) & (back | Q(set_at__lte=moment))
