"""The recovery's certificate: what must hold if nothing was lost, checked from rows.

Written after an incident is resolved, over the steps around it. A check that has nothing
to judge by says None, never True. It is looked at again while reports may still come.
"""

from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any

from controlplane.jobs.models import Job, StepRecord
from controlplane.recovery import checks, course, keeping, proof, recompute
from controlplane.recovery.checks import EQUALITY, Check, Window
from controlplane.recovery.incidents import publish_incident, refresh_phases
from controlplane.recovery.models import Incident
from controlplane.recovery.repeats import repeated
from controlplane.runtime import events, windows
from controlplane.runtime.clock import after, iso, now

PENDING, GREEN, RED, INCOMPLETE = "pending", "green", "red", "incomplete"
"""Verdicts: not yet; each check holds; one does not; some could not be judged, the others hold."""
BEFORE_S = 15.0
# The last reports of a step come this much after its first.
SETTLE_S = 1.5
RETRY_S = 2.0
PUT_OFF_RETRY_S = 15.0
WAITING_RETRY_S = 60.0
GIVE_UP_S = 30.0
MAX_BEFORE, MAX_STEPS = 500, 2000
STEPS_AFTER_MAX = 3 * proof.STEPS_AFTER
"""Of those that came after the recovery: what is proved does not grow for as long as the job trains."""
MAX_DUE = 10


def certify_due() -> int:
    """Write the certificates whose time has come; returns how many incidents were looked at."""
    due = Incident.objects.filter(certificate_due_at__lte=now(), job__isnull=False).order_by("certificate_due_at", "id")
    rows = list(due.select_related("job")[:MAX_DUE])
    proof.reap()
    for row in rows:
        claimed = Incident.objects.filter(pk=row.pk, certificate_due_at=row.certificate_due_at)
        if claimed.update(certificate_due_at=after(RETRY_S)):
            certificate = certify(row)
            if certificate["state"] == PENDING and recompute.of(row) is None:
                proof.start(row, until_step=int(certificate["step"]) + 1)
            elif row.certificate_due_at is None or recompute.of(row) is not None:
                proof.clear(row)
    return len(rows)


def certify(incident: Incident) -> dict[str, Any]:
    """Check, store and publish; schedules itself again while the answer is pending."""
    with events.unit_of_work():
        asked = recompute.tend(incident)
        if asked is not None and checks.RECOMPUTED in _verdicts(incident.certificate) and asked.is_open:
            # Until the job has trained nothing of it changes, and that makes it due at once.
            wait_s = RETRY_S if asked.job.trained else WAITING_RETRY_S
            Incident.objects.filter(pk=incident.pk).update(certificate_due_at=after(wait_s))
            assert incident.certificate is not None, "it has that check"
            return incident.certificate
        certificate = build(incident)
        proof.part(incident, settled=_verdicts(certificate).get(checks.LOSSES) is not None)
        waits = recompute.is_waiting(incident)
        put_off = waits or proof.is_put_off(incident) or proof.is_queued(incident)
        give_up_s = proof.GIVE_UP_S if proof.comes(incident) else GIVE_UP_S
        final = certificate["state"] != PENDING or (not put_off and proof.waited_s(incident) >= give_up_s)
        if final and certificate["state"] == PENDING:
            # Nothing contradicts it; but what could not be judged is not proved either.
            certificate["state"] = INCOMPLETE
        Incident.objects.filter(pk=incident.pk).update(
            certificate=certificate,
            certificate_due_at=None if final else after(PUT_OFF_RETRY_S if put_off else RETRY_S),
        )
        if final:
            keeping.let_go(incident)
        known = _verdicts(incident.certificate)
        incident.refresh_from_db()
        refresh_phases(incident)
        if final or _verdicts(certificate) != known:
            publish_incident(
                incident, "incident.certificate", f"Certificate: {words_of(certificate)}." if final else ""
            )
    return certificate


def _verdicts(certificate: dict[str, Any] | None) -> dict[str, Any]:
    """What of a certificate is news: the counts in it move with every step."""
    return {check["name"]: check["ok"] for check in (certificate or {}).get("checks", [])}


def words_of(certificate: dict[str, Any]) -> str:
    """The verdict for people."""
    if certificate["state"] != INCOMPLETE:
        return str(certificate["state"])
    return f"incomplete: {certificate['judged']} of {certificate['of']} judged"


def build(incident: Incident) -> dict[str, Any]:
    """The certificate as JSON; {"state": "pending"} while a check still waits for reports."""
    assert incident.job is not None, "only a job's recovery is certified"
    window = _window(incident, incident.job)
    found = checks.all_of(incident, window)
    again = repeated(incident.job, began=window.began, ended=window.ended)
    return {
        "state": state_of(found, reference_comes=_equality_comes(incident)),
        "judged": sum(check.ok is not None for check in found),
        "of": len(found),
        "step": window.steps[-1].step if window.steps else incident.job.committed_step,
        "checks": [check.json() for check in found],
        "repeated": again.json() if again else None,
        "generated_at": iso(now()),
    }


def state_of(found: Sequence[Check], *, reference_comes: bool) -> str:
    """Red where a check fails, green only where each holds. What cannot be judged is waited for,
    except losses to which no reference run comes, or a step that nobody computes again any more:
    without them it is incomplete."""
    if any(check.ok is False for check in found):
        return RED
    open_checks = [check for check in found if check.ok is None]
    if not open_checks:
        return GREEN
    waits = reference_comes or any(check.name not in EQUALITY for check in open_checks)
    return PENDING if waits else INCOMPLETE


def _equality_comes(incident: Incident) -> bool:
    """What the one check rests on is still on its way."""
    return recompute.is_waiting(incident) or (recompute.of(incident) is None and proof.comes(incident))


def _window(incident: Incident, job: Job) -> Window:
    """Steps from shortly before the fault until now, at most STEPS_AFTER_MAX of them after the
    recovery, less those still being told."""
    began, ended = course.began(incident), course.ended(incident)
    rows = StepRecord.objects.filter(job=job)
    before = list(rows.filter(began.until()).order_by("-attempt", "-step")[:MAX_BEFORE])
    # Without a hole: across a step of the clock the times are no measure, and it ends there.
    near = list(takewhile(lambda row: abs(before[0].at - row.at) <= timedelta(seconds=BEFORE_S), before))
    within = rows.filter(began.after() & ended.until()).order_by("-attempt", "-step")
    inside = list(within[:MAX_STEPS])[::-1]
    left_out = within.count() - len(inside) if len(inside) == MAX_STEPS else 0
    after = [*inside, *rows.filter(ended.after()).order_by("attempt", "step")[:STEPS_AFTER_MAX]]
    while after and windows.age_s(after[-1].at) < SETTLE_S:
        after.pop()
    # Of a recovery with more steps than are compared one by one it is the newest.
    newest = {row.step: row for row in (*(() if left_out else reversed(near)), *after)}
    steps = tuple(newest[number] for number in sorted(newest))
    late = windows.age_s(incident.ended_at or now()) >= GIVE_UP_S
    return Window(job=job, began=began, ended=ended, steps=steps, left_out=left_out, late=late)
