"""What is kept beyond its retention, as rows: the changes of `changes.due.keeping` in the database."""

from controlplane.changes.due.kinds import KeepFor, KeepNext, Keeps, LetGo, Rebase
from controlplane.changes.kinds import Enqueue
from controlplane.dispatch import services as dispatch
from controlplane.jobs.models import Job
from controlplane.recovery.models import KeptCheckpoint
from controlplane.runtime.clock import after, now


def carry_out(job: Job, change: Keeps) -> None:
    """One of them, in the caller's unit of work."""
    rows = KeptCheckpoint.objects.filter(job=job)
    match change:
        case KeepFor(incident=incident, checkpoint=checkpoint):
            KeptCheckpoint.objects.create(
                incident_id=incident, job=job, checkpoint_id=checkpoint, since=now(), due_at=now()
            )
        case LetGo(incidents=incidents, why=why):
            rows.filter(incident__in=incidents).update(let_go_at=now(), why=why, due_at=now())
        case Rebase(incidents=incidents, checkpoint=checkpoint):
            rows.filter(incident__in=incidents).update(checkpoint=checkpoint)
        case KeepNext(held_s=held_s, rest_s=rest_s):
            due = rows.exclude(due_at=None)
            due.filter(let_go_at=None).update(due_at=None if held_s is None else after(held_s))
            due.exclude(let_go_at=None).update(due_at=None if rest_s is None else after(rest_s))
        case Enqueue(commands=commands, attempt=attempt, ttl_s=ttl_s):
            dispatch.enqueue_each(commands, job_id=job.id, attempt=attempt or 0, epoch=job.epoch, ttl_s=ttl_s)
