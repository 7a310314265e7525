"""What rests sealed is sealed anew with the present HOLDFAST_SECRET_KEY; what is of before there
were seals is sealed for the first time. Called by `manage.py reseal`.
"""

from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet

from controlplane.dispatch import services
from controlplane.dispatch.models import Command
from controlplane.jobs import environment
from controlplane.jobs.models import Job
from controlplane.runtime.errors import Conflict
from controlplane.runtime.locks import lock_row

PAGE = 200


@dataclass(slots=True)
class Resealed:
    """Rows that were sealed anew, and those that open with no key of this server."""

    jobs: int = 0
    orders: int = 0
    unreadable: int = 0


def reseal() -> Resealed:
    """All jobs and starts, a page at a time, each row in a transaction of its own."""
    done = Resealed()
    for job_id in _keys(Job.objects.order_by("pk")):
        _reseal_job(job_id, done)
    for command_id in _keys(Command.objects.filter(kind=services.STARTS).order_by("pk")):
        _reseal_order(command_id, done)
    return done


def _keys(rows: "QuerySet[Job] | QuerySet[Command]") -> "list[str]":
    return list(rows.values_list("pk", flat=True).iterator(chunk_size=PAGE))


def _reseal_job(job_id: str, done: Resealed) -> None:
    with transaction.atomic():
        job = lock_row(Job, job_id)
        if job is None or not job.spec["spec"].get("env"):
            return
        try:
            spec = environment.with_env(job.spec, environment.opened(job))
        except Conflict:
            done.unreadable += 1
            return
        Job.objects.filter(pk=job_id).update(spec=environment.sealed(spec, job_id))
    done.jobs += 1


def _reseal_order(command_id: str, done: Resealed) -> None:
    with transaction.atomic():
        row = lock_row(Command, command_id)
        if row is None or not row.body["launch"].get("env"):
            return
        if not services.reseal(row):
            done.unreadable += 1
            return
        row.save(update_fields=["body", "statement"])
    done.orders += 1
