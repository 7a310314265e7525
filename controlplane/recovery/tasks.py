"""Celery's way in: thin, short, idempotent."""

from celery import shared_task

from controlplane.jobs.models import Job
from controlplane.recovery.reconcile import is_due
from controlplane.recovery.reconcile import reconcile_job as _reconcile_job
from controlplane.recovery.reference import make_reference


@shared_task(name="controlplane.recovery.tasks.reconcile_job", ignore_result=True)
def reconcile_job(job_id: str, sure: bool = False) -> None:
    """Look at one job now, unless somebody has since it was rung."""
    if is_due(job_id):
        _reconcile_job(job_id, sure=sure)


@shared_task(
    name="controlplane.recovery.tasks.reference_run",
    ignore_result=True,
    # Minutes long and worth doing once: early acknowledgement, no redelivery while it runs.
    acks_late=False,
    time_limit=3600,
    soft_time_limit=3500,
)
def reference_run(job_id: str) -> None:
    """Make the undisturbed run's losses for the job's spec."""
    make_reference(Job.objects.get(pk=job_id))
