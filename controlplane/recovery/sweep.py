"""Deadlines that stand in columns, swept: by the tick (Celery) and by the sentinel alike.
Each row is claimed by compare-and-set, so two sweeps at once do the work once."""

from controlplane.access import sealing
from controlplane.checkpoints.services import verify_due
from controlplane.dispatch import services as dispatch
from controlplane.fleet.models import Node
from controlplane.fleet.services import close_session
from controlplane.jobs.models import Job
from controlplane.jobs.services import TERMINAL, ring_job
from controlplane.recovery import marks
from controlplane.recovery.answers import after_expiry
from controlplane.recovery.certificate import certify_due
from controlplane.runtime import beats, bell, events
from controlplane.runtime.clock import ago, now

MAX_JOBS = 100


def sweep() -> None:
    """Everything that is due now, except jobs: those are rung."""
    expire_commands()
    close_dead_sessions()
    verify_due()
    certify_due()
    marks.tell_due()
    sealing.sweeper.sweep()


def ring_due() -> list[str]:
    """Ring every job whose moment has come; returns their ids, oldest first."""
    rows = Job.objects.filter(due_at__lte=now()).exclude(state__in=TERMINAL).order_by("due_at")
    job_ids = list(rows.values_list("id", flat=True)[:MAX_JOBS])
    for job_id in job_ids:
        bell.ring(job_id)
    return job_ids


def overdue(seconds: float) -> list[str]:
    """Jobs that were due longer ago than that and nobody looked at, oldest first."""
    rows = Job.objects.filter(due_at__lte=ago(seconds)).exclude(state__in=TERMINAL).order_by("due_at")
    return list(rows.values_list("id", flat=True)[:MAX_JOBS])


def expire_commands() -> int:
    """Orders that nobody answered in time; a start that failed so is a finding."""
    expired = dispatch.expire_overdue()
    for command in expired:
        if not command.job_id:
            continue
        with events.unit_of_work():
            after_expiry(command, now())
            ring_job(command.job_id)
    return len(expired)


def close_dead_sessions() -> int:
    """Sessions of web processes that are gone: nobody there will notice the socket's end."""
    alive = beats.live_web()
    closed = 0
    for node in Node.objects.filter(connected=True, connected_at__lt=ago(beats.WEB_STALE_S)):
        if node.session_id.partition(".")[0] not in alive:
            closed += close_session(node.id, node.session_id)
    return closed
