"""What each run of a job's time is due to; and what a restart took back. Called by `recovery.ledger_pass`.

A stop belongs to the incident that `changes.due.stalls.owner` says: one definition for incidents and ledger. What a
decision of no incident made is due to that decision, a preemption to the urgent job or the person; a slower or
idle while without any of them to the job itself. Judged again are runs that an incident may have known later: then
what changes after it was shown is marked.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import F, Q

from controlplane.changes.due.stalls import Moved, Span, Stop, owner
from controlplane.jobs.models import Attempt
from controlplane.policy.ledger.facts import Cause
from controlplane.policy.ledger.runs import lost_of
from controlplane.policy.plan import PREEMPTED
from controlplane.policy.requests import GIVE
from controlplane.policy.spent import AGAIN, DEGRADED, RECOVERY
from controlplane.protocol.ledger import CauseKind
from controlplane.protocol.states import RequestKind
from controlplane.recovery import course, ledger_rows
from controlplane.recovery.ledger_models import LedgerRun
from controlplane.recovery.ledger_runs import grown_of
from controlplane.recovery.models import Decision, Incident, Request
from controlplane.runtime import windows
from controlplane.runtime.models import ClockStep

AGAIN_S = 900.0
"""Attempts that began so long before the newest pass are looked at again."""
BEFORE_S = 60.0
"""A stop begins before the incident that it belongs to is opened."""


def take_back(now: datetime, *, since: datetime, judged_s: float) -> None:
    """What each attempt that began since then left behind it: no step counts that was trained beyond its start."""
    later = Attempt.objects.filter(number__gt=1, started_at__gte=since).order_by("started_at", "pk")
    for attempt in later:
        rows = LedgerRun.objects.filter(job=attempt.job_id, attempt__lt=attempt.number, done__gt=attempt.resume_step)
        cause, changed = _of_attempt(attempt), list[LedgerRun]()
        for row in rows:
            lost = lost_of(grown_of(row), attempt=attempt.number, resume_step=attempt.resume_step)
            if lost > row.lost:
                row.lost = lost
                changed.append(row)
        ledger_rows.restate_lost(changed, cause, now, judged_s=judged_s)


def _of_attempt(attempt: Attempt) -> Cause:
    """Why it was begun: the incident of the job at that moment, a preemption before it, or the job itself."""
    live = Q(resolved_at=None) | Q(resolved_at__gte=attempt.started_at)
    incidents = Incident.objects.filter(live, job=attempt.job_id, opened_at__lte=attempt.started_at)
    found = incidents.order_by("opened_at").values_list("pk", flat=True).first()
    if found is not None:
        return Cause(CauseKind.INCIDENT, found)
    asked = Request.objects.filter(job=attempt.job_id, kind=RequestKind.PREEMPT, gives=[])
    asked = asked.filter(taken_at__lte=attempt.started_at)
    newest = asked.order_by("-taken_at").first()
    return Cause(CauseKind.JOB, attempt.job_id) if newest is None else of_request(newest)


def of_request(row: Request) -> Cause:
    """Who a preemption made room for, or the person who parked the job."""
    return Cause(CauseKind.JOB, row.urgent_id) if row.urgent_id else Cause(CauseKind.PERSON, row.who)


def judge(now: datetime, steps: list[ClockStep], incidents: Collection[str], *, judged_s: float) -> None:
    """The runs that have no cause yet, and those that these incidents may have changed, which were opened or moved."""
    wanted = Q(judged=False)
    for job_id, opened_at in Incident.objects.filter(pk__in=incidents, job__isnull=False).values_list(
        "job", "opened_at"
    ):
        wanted |= Q(job=job_id, until_s__gte=windows.present(opened_at, steps).timestamp() - BEFORE_S)
    of_job = defaultdict[str, list[LedgerRun]](list)
    for row in LedgerRun.objects.filter(wanted).order_by("job_id", "pk"):
        of_job[row.job_id].append(row)
    for job_id, runs in of_job.items():
        _judge(job_id, runs, now, steps, judged_s)
        ledger_rows.keep_causes(runs)


def _judge(job_id: str, runs: Sequence[LedgerRun], now: datetime, steps: list[ClockStep], judged_s: float) -> None:
    spans = _spans(job_id, runs)
    moved = _moved(job_id, runs)
    yields = _yields(job_id, steps)
    for run in runs:
        asked = _asked(run, yields, moved) if run.kind == RECOVERY else None
        cause = of_request(asked) if asked is not None else _cause(run, spans, moved)
        found = (cause.kind, cause.id[:200], asked is not None)
        if run.judged and found != (run.cause_kind, run.cause_id, run.preempted):
            run.restated_at = now if run.until_s <= judged_s else run.restated_at
        run.cause_kind, run.cause_id, run.preempted = found
        run.judged = True


def _yields(job_id: str, steps: list[ClockStep]) -> list[tuple[float, Request]]:
    """Preemptions of the job, by when each was begun."""
    rows = Request.objects.filter(job=job_id, kind=RequestKind.PREEMPT).exclude(taken_at=None).order_by("taken_at")
    return [(windows.present(row.taken_at, steps).timestamp(), row) for row in rows if row.taken_at is not None]


def _asked(run: LedgerRun, yields: Sequence[tuple[float, Request]], moved: Sequence["_Moved"]) -> Request | None:
    """The preemption that a recovery is due to. Steps are committed while a job saves, and while it leaves: so it is
    known by how the attempt before ended, and of replicas that leave alone by the decision that made the view."""
    begun = [(at_s, row) for at_s, row in yields if at_s <= run.until_s]
    whole = [(at_s, row) for at_s, row in begun if not row.gives]
    before = _attempt_before(run) if whole else None
    ended = Attempt.objects.filter(job=run.job_id, number=before, end_code=PREEMPTED)
    if whole and (whole[-1][0] >= run.from_s or (before != run.attempt and ended.exists())):
        return whole[-1][1]
    given = [row for _, row in begun if row.gives]
    rules = {each.rule for each in moved if run.since_epoch < each.moved.epoch <= run.epoch}
    return given[-1] if given and rules == {GIVE} else None


def _attempt_before(run: LedgerRun) -> int | None:
    """Of the job's commit before this run; None: there was none."""
    rows = LedgerRun.objects.filter(job=run.job_id, pk__lt=run.pk).order_by("-pk")
    return rows.values_list("attempt", flat=True).first()


def _cause(run: LedgerRun, spans: Sequence[Span], moved: Sequence["_Moved"]) -> Cause:
    if run.kind == AGAIN:
        attempt = Attempt.objects.filter(job=run.job_id, number=run.attempt).first()
        return Cause(CauseKind.JOB, run.job_id) if attempt is None else _of_attempt(attempt)
    before = _attempt_before(run)
    stop = Stop(
        attempt=run.attempt,
        step=run.done - 1,
        epoch=run.epoch,
        since_epoch=run.since_epoch,
        stood_s=run.until_s - run.from_s,
        between=before is not None and before != run.attempt,
    )
    incident = owner(stop, spans, [] if run.kind == DEGRADED else [each.moved for each in moved])
    if incident is not None:
        return Cause(CauseKind.INCIDENT, incident)
    decisions = [each.id for each in moved if run.since_epoch < each.moved.epoch <= run.epoch]
    return Cause(CauseKind.DECISION, decisions[0]) if decisions else Cause(CauseKind.JOB, run.job_id)


def _spans(job_id: str, runs: Sequence[LedgerRun]) -> list[Span]:
    """Of the job's incidents that were not over before these runs, in the order in which they were opened."""
    oldest = min(run.attempt for run in runs)
    later = Q(ended__isnull=True) | Q(ended__of_attempt__gte=oldest)
    rows = Incident.objects.filter(later, job=job_id).order_by("opened_at", "pk").select_related("job")
    return [Span(incident=row.pk, began=course.began(row), ended=course.ended(row)) for row in rows]


class _Moved(NamedTuple):
    """What the decision `id` of this rule changed."""

    moved: Moved
    id: str
    rule: str


def _moved(job_id: str, runs: Sequence[LedgerRun]) -> list[_Moved]:
    """Decisions that changed who trains, in sequence."""
    since, until = min(run.since_epoch for run in runs), max(run.epoch for run in runs)
    rows = Decision.objects.filter(job=job_id, applied=True, epoch_after__gt=since, epoch_after__lte=until)
    rows = rows.filter(epoch_after__gt=F("epoch_before")).order_by("epoch_after")
    found = rows.values_list("epoch_after", "incident_id", "pk", "rule")
    return [_Moved(Moved(epoch=epoch, incident=incident), pk, rule) for epoch, incident, pk, rule in found]


def recently(now: datetime) -> datetime:
    """Since when attempts are looked at again."""
    return now - timedelta(seconds=AGAIN_S)
