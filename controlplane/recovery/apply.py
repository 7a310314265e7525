"""A decision to rows, commands and events: the other border of the policy.

Called under the job's row lock, inside one unit of work a decision. Key and mode make a
decision once per job. What each action changes is `changes.acts`'s to say, and `commit`'s to write.
A start in a slot that the decision empties follows in a unit of work of its own (`changes.behind`, ADR 0040).
"""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from controlplane.changes.acts import carry_out, counted
from controlplane.changes.behind import at_once, entered_at_once, entered_behind, starts_behind, still_wanted
from controlplane.changes.turn import Turn, end_stopping
from controlplane.jobs.models import Job
from controlplane.policies.selectors import InForce
from controlplane.policy import plan
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import Mode
from controlplane.recovery import holding, incidents, keeping, ledger
from controlplane.recovery.audited import audit_decision
from controlplane.recovery.commit import commit
from controlplane.recovery.decided import new_row, publish_decision
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events, metrics
from controlplane.runtime.locks import lock_row
from controlplane.runtime.prepared import TEXT, Prepared, Several

_TAKEN: Prepared[str] = Prepared(
    lambda job, key, modes: Decision.objects.filter(job=job, key=key, mode__in=modes).values_list("pk", flat=True)[:1],
    job=TEXT, key=TEXT, modes=Several(TEXT),
)  # fmt: skip
_SEEN: Prepared[datetime] = Prepared(
    lambda signals: Signal.objects.filter(id__in=signals).values_list("seen_at", flat=True),
    signals=Several(TEXT),
)


def already_taken(job: Job, decision: plan.Decision) -> bool:
    """This decision was made before, and went as far as it may go now."""
    modes = [str(mode) for mode in plan.taken_in(decision.mode)]
    return _TAKEN.first(job=job.pk, key=plan.stored_key(decision.key), modes=modes) is not None


def apply_decision(
    job: Job, decision: plan.Decision, snapshot: JobSnapshot, *, by: InForce, decide_s: float
) -> Decision:
    """Record the decision; unless its mode only recommends, carry its actions out. Everything
    is undone if one action fails (LostRace, Conflict, IllegalTransition, IntegrityError)."""
    acts = decision.mode is Mode.ENFORCE
    with events.unit_of_work():
        before = job.epoch
        state_before = {"state": job.state, "epoch": job.epoch}
        row = new_row(job, decision, snapshot, by=by, decide_s=decide_s)
        row.incident = incidents.incident_for(job, decision, row.at)
        row.save(force_insert=True)
        if acts:
            rows = JobRows(job, row.id)
            turn = Turn(decision, rows)
            actions = at_once(decision)
            holding.lock_nodes(actions)
            if turn.final:
                keeping.end(job)
            for action in actions:
                commit(carry_out(turn, action), rows)
            commit(counted(decision), rows)
            ledger.write(job, row, snapshot, entered_at_once(decision, snapshot))
            if job.epoch != before:
                row.epoch_after = job.epoch
                row.save(update_fields=["epoch_after"])
        publish_decision(row)
        audit_decision(row, state_before)
        if row.incident is not None:
            incidents.progress(row.incident_id, acted=acts and bool(decision.actions))
    waited_s = _waited_s(row, decision)
    transaction.on_commit(lambda: _count(decision, waited_s))
    return row


@dataclass(frozen=True, slots=True)
class Behind:
    """A decision that was committed, and whose starts are not: `row` of it, decided on this `snapshot`."""

    row: Decision
    decision: plan.Decision
    snapshot: JobSnapshot


def left_of(row: Decision, decision: plan.Decision, snapshot: JobSnapshot) -> list[Behind]:
    """What is to follow behind the commit of this decision: itself, or nothing."""
    follows = decision.mode is Mode.ENFORCE and starts_behind(decision)
    return [Behind(row, decision, snapshot)] if follows else []


def start_behind(behind: Behind) -> int:
    """Its starts, in a unit of work of their own; how many. One that is not wanted any more is left out. Everything
    is undone if one fails (LostRace, Conflict, IllegalTransition, IntegrityError): the slot then stands empty for
    whoever decides next."""
    row, decision, snapshot = behind.row, behind.decision, behind.snapshot
    with events.unit_of_work():
        job = lock_row(Job, row.job_id or "")
        if job is None or snapshot.attempt is None:
            return 0
        rows = JobRows(job, row.id)
        starts = still_wanted(rows, starts_behind(decision), attempt=snapshot.attempt.number, epoch=row.epoch_after)
        holding.lock_nodes(starts)
        turn = Turn(decision, rows)
        for start in starts:
            commit(carry_out(turn, start), rows)
        ledger.write(job, row, snapshot, entered_behind(decision, snapshot, starts))
    return len(starts)


def _waited_s(row: Decision, decision: plan.Decision) -> float | None:
    """Since the first finding that it answers showed itself; None where none did."""
    seen = _SEEN(signals=decision.signal_ids)
    return (row.at - min(seen)).total_seconds() if seen else None


def _count(decision: plan.Decision, waited_s: float | None) -> None:
    """Once it is committed: a pass that lost a race is not counted. A clock that was set back since
    the finding says nothing about the time that it took."""
    mode = str(decision.mode)
    metrics.DECISIONS.labels(action=decision.choice, trigger=decision.reason_code, mode=mode, result="ok").inc()
    if waited_s is not None and waited_s >= 0.0:
        metrics.DECISION_LATENCY.observe(waited_s)


def settle_stopping(job: Job) -> None:
    """An attempt of which nothing is left to stop has ended."""
    rows = JobRows(job)
    commit(end_stopping(rows), rows)
