"""Celery's way in: thin, short, idempotent."""

from celery import shared_task

from controlplane.recovery.reconcile import is_due
from controlplane.recovery.reconcile import reconcile_job as _reconcile_job


@shared_task(name="controlplane.recovery.tasks.reconcile_job", ignore_result=True)
def reconcile_job(job_id: str, sure: bool = False) -> None:
    """Look at one job now, unless somebody has since it was rung."""
    if is_due(job_id):
        _reconcile_job(job_id, sure=sure)
