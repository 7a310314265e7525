"""Events that nobody needs any more. Called once an hour by `sentinel.tasks.retention`."""

from django.db.models import Exists, OuterRef, Q

from controlplane.jobs.models import Job
from controlplane.protocol.states import IncidentState
from controlplane.recovery.models import Incident
from controlplane.runtime import events
from controlplane.runtime.clock import ago
from controlplane.runtime.models import Event

BATCH = 500
MAX_BATCHES = 200


def forget_events(older_than_s: float) -> int:
    """Remove the events of jobs that ended longer ago than that, in short transactions, the
    longest ended first; the rest waits for the next call. Returns how many. A job with an
    incident that is not resolved, or with a certificate that is not final, keeps all of its own.
    """
    unsettled = ~Q(state=IncidentState.RESOLVED) | Q(certificate_due_at__isnull=False)
    before = ago(older_than_s)
    over = Job.objects.filter(finished_at__lt=before).filter(
        Exists(Event.objects.filter(job_id=OuterRef("pk"), at__lt=before)),
        ~Exists(Incident.objects.filter(unsettled, job=OuterRef("pk"))),
    )
    removed, left = 0, MAX_BATCHES
    for job_id in over.order_by("finished_at").values_list("pk", flat=True)[:MAX_BATCHES]:
        gone = BATCH
        while gone == BATCH and left:
            gone, left = events.forget(job_id, before=before, at_most=BATCH), left - 1
            removed += gone
    return removed
