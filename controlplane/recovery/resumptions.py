"""The certificate of a job that yielded and continued: that its devices were lent cost it no step and changed nothing.

A preemption is no fault and opens no incident, so what is judged stands in a row of its own, by the same checks over
the steps around the pause: no step is missing between the attempts, the old one's ranks left nothing behind, every
replica holds the same state, each micro-batch was trained once, and the losses are those of an undisturbed run from a
checkpoint of before. Called by the sweep; what is judged rests on rows alone, so it does not matter when it is
looked at. A step is never computed again on the job's own ranks for it: where the server cannot make the undisturbed
run, the certificate says why and is incomplete.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db.models import Exists, OuterRef

from controlplane.changes.due import certificates as core
from controlplane.changes.due.certificates import FIRST_S, PENDING, RETRY_S
from controlplane.changes.due.checks import LOSSES, Check, Window
from controlplane.jobs.models import Attempt, Job, StepRecord
from controlplane.jobs.services import TERMINAL, publish_job
from controlplane.policy.plan import PREEMPTED
from controlplane.protocol.states import AttemptState
from controlplane.recovery import proof, resumption_rows
from controlplane.recovery.certificate import document, verdicts_of, words_of
from controlplane.recovery.certificate_rows import CertificateRows, losses_of
from controlplane.recovery.course import Mark
from controlplane.recovery.models import ViewRow
from controlplane.recovery.resumption_models import Resumption
from controlplane.runtime import events, windows
from controlplane.runtime.clock import after, now
from controlplane.runtime.ids import new_id

MAX_ROWS = 20
"""Looked at in one sweep; the next one takes what follows."""


class ResumptionRows(CertificateRows):
    """The database for one resumption; only the server's undisturbed run says that its losses are right."""

    def __init__(self, row: Resumption) -> None:
        super().__init__(row, row.job)

    def equality(self, incident: str, window: Window) -> Check:
        """By the undisturbed run."""
        return losses_of(self._incident, self._job, window)

    def equality_comes(self, incident: str) -> bool:
        """It is there, under way or possible."""
        return proof.comes(self._incident)

    def equality_put_off(self, incident: str) -> bool:
        """It has no place yet, or is made once the job has ended."""
        return proof.is_put_off(self._incident) or proof.is_queued(self._incident)


def certify_resumed() -> int:
    """Note who yielded and who continued, and judge what is due; returns how many were judged."""
    for attempt in _yielded():
        _note(attempt)
    for row in Resumption.objects.filter(recovered_at=None).select_related("job").order_by("opened_at")[:MAX_ROWS]:
        _look(row)
    due = Resumption.objects.filter(certificate_due_at__lte=now()).select_related("job")
    rows = list(due.order_by("certificate_due_at", "id")[:MAX_ROWS])
    for row in rows:
        if resumption_rows.claim(row, after(RETRY_S)):
            certificate = certify(row)
            if certificate["state"] == PENDING:
                proof.start(row, until_step=int(certificate["step"]) + 1)
            else:
                proof.clear(row)
    return len(rows)


def certify(row: Resumption) -> dict[str, Any]:
    """Check, store and tell; it schedules itself again while the answer is pending."""
    with events.unit_of_work():
        rows = ResumptionRows(row)
        found = core.judged(rows, row.pk)
        certificate = document(row, row.job, found)
        proof.part(row, settled=verdicts_of(certificate).get(LOSSES) is not None)
        change = core.concluded(rows, row.pk, found)
        final, certificate["state"] = change.again_s is None, change.state
        due = None if change.again_s is None else after(change.again_s)
        resumption_rows.judged(row, certificate, due)
        if final:
            sentence = f"{row.job.name} continued after it had yielded. Certificate: {words_of(certificate)}."
            publish_job(row.job, "job.certificate", sentence, {"attempt": row.resumed})
        row.refresh_from_db()
    return certificate


def of_attempts(job: Job) -> Mapping[int, dict[str, Any]]:
    """The certificate of each attempt that continued after a preemption, as far as it is judged."""
    rows = Resumption.objects.filter(job=job, resumed__isnull=False).values_list("resumed", "certificate")
    return {number: certificate or {"state": PENDING, "checks": []} for number, certificate in rows}


def _yielded() -> list[Attempt]:
    """Attempts that were preempted and are over, of jobs that are not, which have no row yet."""
    noted = Resumption.objects.filter(job=OuterRef("job"), yielded=OuterRef("number"))
    found = Attempt.objects.filter(~Exists(noted), end_code=PREEMPTED, state=AttemptState.ENDED)
    return list(found.exclude(job__state__in=TERMINAL).select_related("job").order_by("pk")[:MAX_ROWS])


def _note(attempt: Attempt) -> None:
    """Once, with the checkpoint that it can be proved from kept."""
    row = Resumption(
        id=new_id("res"),
        job=attempt.job,
        yielded=attempt.number,
        opened_at=attempt.ended_at or now(),
        began=_where(attempt),
    )
    if resumption_rows.add(row):
        proof.pin(row)


def _look(row: Resumption) -> None:
    """Whether a later attempt has a view that is installed: it trains. Who never comes back has nothing to prove."""
    if row.job.state in TERMINAL:
        proof.clear(row)
        resumption_rows.remove(row)
        return
    views = ViewRow.objects.filter(job=row.job, attempt__gt=row.yielded, installed_at__isnull=False)
    view = views.order_by("epoch").first()
    if view is None:
        return
    began = _where(row.job.attempts.get(number=row.yielded))
    at = view.installed_at or now()
    ended = began | {"attempt": view.attempt, "epoch": view.epoch, "clock": windows.newest_before(at)}
    due = after(FIRST_S)
    resumption_rows.resumed(
        row, began=began, resumed=view.attempt, recovered_at=at, ended=ended, certificate_due_at=due
    )


def _where(attempt: Attempt) -> dict[str, int]:
    """At the attempt's end, by its steps and views: it has told of no more than those."""
    steps = StepRecord.objects.filter(job=attempt.job_id, attempt__lte=attempt.number).order_by("-attempt", "-step")
    of_attempt, step = steps.values_list("attempt", "step").first() or (0, -1)
    views = ViewRow.objects.filter(job=attempt.job_id, attempt__lte=attempt.number).order_by("-epoch")
    epoch = views.values_list("epoch", flat=True).first() or 0
    clock = windows.newest_before(attempt.ended_at or now())
    return asdict(Mark(of_attempt=of_attempt, step=step, attempt=attempt.number, epoch=epoch, clock=clock))
