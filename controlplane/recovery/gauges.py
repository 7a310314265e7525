"""Gauges that are read from rows: refreshed by each web process, as any of them is scraped."""

import controlplane
from controlplane.dispatch.services import outbox_numbers
from controlplane.fleet import selectors as fleet
from controlplane.jobs import selectors as jobs
from controlplane.jobs.models import Job
from controlplane.jobs.numbers import ENDED, numbers_of
from controlplane.recovery import deadletter
from controlplane.runtime import metrics

MAX_JOBS = 50


def refresh() -> None:
    """A dozen queries; called every few seconds."""
    metrics.BUILD_INFO.labels(version=getattr(controlplane, "__version__", "0.1.0")).set(1)
    for state, count in jobs.counts_by_state().items():
        metrics.JOBS.labels(state=state).set(count)
    for state, count in fleet.counts_by_state().items():
        metrics.NODES.labels(state=state).set(count)
    for health, count in fleet.device_counts().items():
        metrics.GPUS.labels(health=health).set(count)
    pending, oldest_s = outbox_numbers()
    metrics.OUTBOX_PENDING.set(pending)
    metrics.OUTBOX_OLDEST.set(oldest_s or 0.0)
    metrics.DEAD_LETTERS_WAITING.set(deadletter.waiting_count())
    metrics.EFFECTIVE.clear()
    metrics.CHECKPOINT_AGE.clear()
    for job in Job.objects.exclude(state__in=ENDED).order_by("-created_at")[:MAX_JOBS]:
        numbers = numbers_of(job)
        if numbers.ettr is not None:
            metrics.EFFECTIVE.labels(job_id=job.id).set(numbers.ettr)
        if numbers.last_checkpoint_age_s is not None:
            metrics.CHECKPOINT_AGE.labels(job_id=job.id).set(numbers.last_checkpoint_age_s)
