"""The recovery's certificate: what must hold if nothing was lost, checked from rows.

Written after an incident is resolved, over the steps around it. A check that has nothing
to judge by says None, never True. It is looked at again while reports may still come.
"""

from functools import partial
from typing import Any

from django.db import transaction

from controlplane.changes.due import certificates as core
from controlplane.changes.due.certificates import INCOMPLETE, PENDING, RETRY_S
from controlplane.changes.due.checks import LOSSES, RECOMPUTED
from controlplane.jobs.models import Job
from controlplane.recovery import course, keeping, proof, recompute
from controlplane.recovery.certificate_rows import CertificateRows
from controlplane.recovery.incidents import count_phases, publish_incident, refresh_phases
from controlplane.recovery.models import Incident
from controlplane.recovery.repeats import repeated
from controlplane.runtime import events
from controlplane.runtime.clock import after, iso, now

WAITING_RETRY_S = 60.0
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
        if asked is not None and RECOMPUTED in verdicts_of(incident.certificate) and asked.is_open:
            # Until the job has trained nothing of it changes, and that makes it due at once.
            wait_s = RETRY_S if asked.job.trained else WAITING_RETRY_S
            Incident.objects.filter(pk=incident.pk).update(certificate_due_at=after(wait_s))
            assert incident.certificate is not None, "it has that check"
            return incident.certificate
        assert incident.job is not None, "only a job's recovery is certified"
        rows = CertificateRows(incident, incident.job)
        found = core.judged(rows, incident.pk)
        certificate = document(incident, incident.job, found)
        proof.part(incident, settled=verdicts_of(certificate).get(LOSSES) is not None)
        change = core.concluded(rows, incident.pk, found)
        final, certificate["state"] = change.again_s is None, change.state
        Incident.objects.filter(pk=incident.pk).update(
            certificate=certificate,
            certificate_due_at=None if change.again_s is None else after(change.again_s),
        )
        if final:
            keeping.let_go(incident)
        known, first = verdicts_of(incident.certificate), not (incident.certificate or {}).get("generated_at")
        incident.refresh_from_db()
        if first:
            incident.ended = course.ended_by(incident)
            Incident.objects.filter(pk=incident.pk).update(ended=incident.ended)
        refresh_phases(incident)
        if first:
            transaction.on_commit(partial(count_phases, incident.phases))
        if final or verdicts_of(certificate) != known:
            publish_incident(
                incident, "incident.certificate", f"Certificate: {words_of(certificate)}." if final else ""
            )
    return certificate


def verdicts_of(certificate: dict[str, Any] | None) -> dict[str, Any]:
    """What of a certificate is news: the counts in it move with every step."""
    return {check["name"]: check["ok"] for check in (certificate or {}).get("checks", [])}


def words_of(certificate: dict[str, Any]) -> str:
    """The verdict for people."""
    if certificate["state"] != INCOMPLETE:
        return str(certificate["state"])
    return f"incomplete: {certificate['judged']} of {certificate['of']} judged"


def document(incident: course.Proved, job: Job, found: core.Judged) -> dict[str, Any]:
    """The certificate as JSON; {"state": "pending"} while a check still waits for reports."""
    again = repeated(job, began=course.began(incident), ended=course.ended(incident))
    return {
        "state": found.state,
        "judged": sum(check.ok is not None for check in found.checks),
        "of": len(found.checks),
        "step": found.step,
        "checks": [check.json() for check in found.checks],
        "repeated": again.json() if again else None,
        "generated_at": iso(now()),
    }
