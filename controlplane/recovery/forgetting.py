"""Events and steps that nobody needs any more. Called once an hour by `sentinel.tasks.retention`."""

from collections.abc import Iterator

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from controlplane.changes.due.certificates import MAX_BEFORE, STEPS_AFTER_MAX
from controlplane.jobs import step_rollups, step_rows
from controlplane.jobs.models import Attempt, Job, JobPace, StepRecord
from controlplane.protocol.states import IncidentState
from controlplane.recovery.models import Incident, Recomputation
from controlplane.recovery.resumption_models import Resumption
from controlplane.runtime import events
from controlplane.runtime.clock import ago
from controlplane.runtime.locks import lock_row
from controlplane.runtime.models import Event

BATCH = 500
MAX_BATCHES = 200
UNSETTLED = ~Q(state=IncidentState.RESOLVED) | Q(certificate_due_at__isnull=False)
MAX_TURNS = 1_000
"""Transactions of roll-ups in one call: a million steps."""
AROUND_A_RESUME = 50
"""Steps on either side of where an attempt resumed: a loss that jumps there is found by them (`recovery.spikes`)."""


def forget_events(older_than_s: float) -> int:
    """Remove the events of jobs that ended longer ago than that, in short transactions, the
    longest ended first; the rest waits for the next call. Returns how many. A job with an
    incident that is not resolved, or with a certificate that is not final, keeps all of its own.
    """
    before = ago(older_than_s)
    over = Job.objects.filter(finished_at__lt=before).filter(
        Exists(Event.objects.filter(job_id=OuterRef("pk"), at__lt=before)),
        ~Exists(Incident.objects.filter(UNSETTLED, job=OuterRef("pk"))),
    )
    removed, left = 0, MAX_BATCHES
    for job_id in over.order_by("finished_at").values_list("pk", flat=True)[:MAX_BATCHES]:
        gone = BATCH
        while gone == BATCH and left:
            gone, left = events.forget(job_id, before=before, at_most=BATCH), left - 1
            removed += gone
    return removed


def forget_steps(older_than_s: float) -> int:
    """Roll up steps that are older (0: none are), in short transactions, the rest with the next call; returns how many
    rows went. What an incident's or a resumption's certificate rests on stays whole for good, and of a job of which one
    is not final all does. Parts of steps of which nothing more has come are packed first."""
    for job_id in StepRecord.objects.filter(in_parts=True).order_by().values_list("job_id", flat=True).distinct():
        _pack(job_id)
    if not older_than_s:
        return 0
    before, removed, left = ago(older_than_s), 0, MAX_TURNS
    for job_id, attempts in step_rollups.attempts_with_more(_with_steps_before(older_than_s)).items():
        job = Job.objects.get(pk=job_id)
        whole = list(_proving(job))
        for attempt in attempts:
            gone, turns = step_rollups.roll_up(job, attempt, before=before, whole=whole, turns=left)
            removed, left = removed + gone, left - turns
            if left <= 0:
                return removed
    return removed


def _pack(job_id: str) -> None:
    packed = True
    while packed:
        with transaction.atomic():
            lock_row(Job, job_id)
            packed = bool(step_rows.pack_settled(job_id))


def _with_steps_before(age_s: float) -> QuerySet[Job]:
    """Jobs with such steps of which all that is to be proved is proved. One whose sums are not kept apart from its
    steps, or that has an incident of a release that did not note where it began, keeps them."""
    lasts = Q(recovered_at=None, resolved_at=None) | Q(certificate_due_at__isnull=False) | Q(began__isnull=True)
    lasting = Incident.objects.filter(lasts, job=OuterRef("pk"))
    due = Resumption.objects.filter(Q(recovered_at=None) | Q(certificate_due_at__isnull=False), job=OuterRef("pk"))
    return Job.objects.filter(
        Exists(StepRecord.objects.filter(job=OuterRef("pk"), at__lt=ago(age_s))),
        Exists(JobPace.objects.filter(job=OuterRef("pk"), trained_s__isnull=False)),
        ~Exists(lasting),
        ~Exists(due),
    )


def _proving(job: Job) -> Iterator[tuple[int, int]]:
    """First and last step of what proves something, in whatever attempt: around each recovery and each resumption what
    its certificate looked at, and what was trained again or computed again for it."""
    resumed = dict(Attempt.objects.filter(job=job).values_list("number", "resume_step"))
    for kind in (Incident, Resumption):
        rows = kind.objects.filter(job=job).values_list("began", "ended")
        for began, end in rows:
            ended = end or began
            again = [resumed[each] for each in resumed if began["attempt"] < each <= ended["attempt"]]
            yield min([began["step"] - MAX_BEFORE, *again]), max(began["step"], ended["step"]) + STEPS_AFTER_MAX
    yield from Recomputation.objects.filter(job=job).values_list("from_step", "until_step")
    for step in resumed.values():
        yield step - AROUND_A_RESUME, step + AROUND_A_RESUME
