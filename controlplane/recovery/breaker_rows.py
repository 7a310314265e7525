"""Rows of acts and breakers: what `recovery.commit` has of the core, and a person's closing (ADR 0048)."""

from datetime import timedelta

from django.db import IntegrityError, transaction

from controlplane.access import audit
from controlplane.access.actors import in_words
from controlplane.jobs.models import Job
from controlplane.jobs.services import wake_job_later
from controlplane.policy import capabilities
from controlplane.policy.disruption_counts import Act as Done
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.recovery.disruption_models import POLICY, Act, Breaker
from controlplane.recovery.present_breakers import breaker_summary
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, NotFound
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_fleet, lock_row


def note(acts: tuple[Done, ...], decision_id: str) -> None:
    """What a decision has done."""
    at = now()
    rows = [
        Act(kind=act.kind, segment=segment, lead=not number, proved=act.proved, at=at, decision_id=decision_id)
        for act in acts
        for number, segment in enumerate(act.segments or ("",))
    ]
    Act.objects.bulk_create(rows)


def forget(older_s: float) -> int:
    """What was counted so long ago; breakers themselves stay to be read."""
    return Act.objects.filter(at__lt=now() - timedelta(seconds=older_s)).delete()[0]


def open_breaker(code: str, segment: str, sentence: str, decision_id: str) -> None:
    """One more; nothing where one is open."""
    try:
        with transaction.atomic():
            row = Breaker.objects.create(
                id=new_id("brk"), code=code, segment=segment, reason=sentence, opened_at=now(), decision_id=decision_id
            )
    except IntegrityError:
        return
    _publish(row, "breaker.opened", f"The breaker is open: {sentence}.")


def close_over(breaker_id: str, reason: str) -> None:
    """What opened it is over."""
    row = Breaker.objects.filter(pk=breaker_id, closed_at=None).first()
    if row is not None:
        _close(row, POLICY, reason)


def close(breaker_id: str, actor: str, reason: str) -> Breaker:
    """A person closes it: automation goes on, and counts anew. Raises NotFound, Conflict."""
    with events.unit_of_work():
        lock_fleet()
        row = lock_row(Breaker, breaker_id)
        if row is None:
            raise NotFound(f"no breaker {breaker_id!r}; `holdfast breaker show` lists them")
        why_not = capabilities.breaker(row.closed_by)["close"]
        if why_not:
            raise Conflict(why_not)
        before = {"closed_at": None}
        _close(row, in_words(actor), reason)
        after = {"closed_by": actor, "closed_at": row.closed_at.isoformat() if row.closed_at else None}
        audit.audit(actor, "breaker.close", row.segment or "fleet", reason=reason, before=before, after=after)
        # Behind the commit, one by one: who holds the fleet waits for no job's row, and no job for another's.
        for job_id in Job.objects.exclude(state__in=TERMINAL_JOB).order_by("pk").values_list("pk", flat=True):
            wake_job_later(job_id)
    return row


def _close(row: Breaker, by: str, reason: str) -> None:
    row.closed_at, row.closed_by, row.close_reason = now(), by, reason
    row.save(update_fields=["closed_at", "closed_by", "close_reason"])
    _publish(row, "breaker.closed", f"The breaker is closed by {by}: {reason}")


def _publish(row: Breaker, kind: str, sentence: str) -> None:
    events.publish(
        kind,
        sentence,
        entity="breaker",
        entity_id=row.id,
        patch=lambda: breaker_summary(Breaker.objects.get(pk=row.pk)),
    )
