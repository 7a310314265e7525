"""Deadlines that stand in columns, swept: by the tick (Celery) and by the sentinel alike.
Each row is claimed by compare-and-set, so two sweeps at once do the work once."""

from collections.abc import Callable, Iterable
from functools import partial

from controlplane.access import sealing
from controlplane.changes.due import findings
from controlplane.changes.due.kinds import Deadline
from controlplane.changes.due.sessions import close_dead
from controlplane.changes.kinds import Change
from controlplane.changes.marks import EVERY_S, tell_marked
from controlplane.dispatch import broadcasts
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.sessions import close_sessions
from controlplane.jobs.models import Job
from controlplane.jobs.services import wake_job
from controlplane.recovery.answers import after_expiry
from controlplane.recovery.certificate import certify_due
from controlplane.recovery.commit import commit
from controlplane.recovery.due_rows import DueRows
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.keeping import tend_due
from controlplane.recovery.models import MarkedLines
from controlplane.recovery.queue_pass import call_waiting
from controlplane.recovery.readers import verify_due
from controlplane.recovery.resumptions import certify_resumed
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events, wakeup
from controlplane.runtime.clock import ago, now, set_lately
from controlplane.runtime.isolate import isolated
from controlplane.runtime.locks import lock_row
from controlplane.runtime.prepared import MOMENT, Prepared

MAX_JOBS = 100
MAX_PIECES = 16
_DUE: Prepared[str] = Prepared(
    lambda moment: Job.objects.filter(due_at__lte=moment).order_by("due_at").values_list("id", flat=True)[:MAX_JOBS],
    moment=MOMENT,
)  # fmt: skip
_MARKED: Prepared[str] = Prepared(
    lambda moment: MarkedLines.objects.filter(reports__gt=0, told_at__lte=moment).order_by("job_id")
    .values_list("job_id", flat=True).distinct()[:MAX_JOBS],
    moment=MOMENT,
)  # fmt: skip


def sweep() -> None:
    """Everything that is due now, except jobs: those are rung. One part's fault stops no other.
    Right after the clock was set nothing is: what is due is moved with it first."""
    if set_lately():
        return
    parts = (
        make_commands,
        expire_commands,
        close_dead_sessions,
        reconcile_fleet,
        call_waiting,
        verify_due,
        certify_due,
        certify_resumed,
        tend_due,
        tell_marks,
        settle_old,
        report_unknown,
        sealing.sweeper.sweep,
    )
    for part in parts:
        isolated("sweep", part.__name__, part)


def wake_due() -> list[str]:
    """Ring every job whose moment has come; returns their ids, oldest first."""
    job_ids = _DUE(moment=now())
    for job_id in job_ids:
        wakeup.wake(job_id)
    return job_ids


def overdue(seconds: float) -> list[str]:
    """Jobs that were due longer ago than that and nobody looked at, oldest first."""
    return _DUE(moment=ago(seconds))


def make_commands() -> int:
    """Each node's own of what many are ordered alike, where who delivers has not made them yet."""
    made = 0
    for _ in range(MAX_PIECES):
        more = broadcasts.make_waiting(older_than_s=broadcasts.LATE_S)
        if not more:
            break
        made += more
    return made


def expire_commands() -> int:
    """Orders that nobody answered in time; a start that failed so is a finding."""
    expired = dispatch.expire_overdue()
    for command in expired:
        if command.job_id or command.kind == "reset_device":
            isolated("expiry", command.id, partial(_expired, command))
    return len(expired)


def _expired(command: Command) -> None:
    with events.unit_of_work():
        after_expiry(command, now(), lock_row(Job, command.job_id or ""))
        if command.job_id:
            wake_job(command.job_id)


def tell_marks() -> None:
    """Of each job what its logs have said since the timeline told of it."""
    for job_id in _MARKED(moment=ago(EVERY_S)):
        with events.unit_of_work():
            rows = JobRows(lock_row(Job, job_id))
            commit(tell_marked(rows), rows)


def settle_old() -> None:
    """Findings for people that did not come again."""
    _commit(findings.settle_old)


def report_unknown() -> None:
    """Findings of kinds that a newer release has left."""
    _commit(findings.report_unknown)


def close_dead_sessions() -> None:
    """Of web processes that are gone, each of which may leave thousands."""
    close_sessions({dead.node_id: dead.session for dead in close_dead(DueRows(None))})


def _commit(core: Callable[[DueRows], Iterable[Change | Deadline]]) -> None:
    """What is due of the fleet and of findings: of no job. Each by itself."""
    rows = DueRows(None)
    for change in core(rows):
        with events.unit_of_work():
            commit([change], rows)
