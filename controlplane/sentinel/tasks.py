"""Periodic wakes. Running no beat, one or three gives the same result, only later."""

from celery import shared_task
from django.conf import settings

from controlplane.access import gate
from controlplane.access.sessions import SessionStore
from controlplane.dispatch.services import forget_finished
from controlplane.engines import intents, poll
from controlplane.policies import shadows
from controlplane.recovery import bills, breaker_rows, deadletter, ledger_pass, shadowing, sweep, torch_analysis
from controlplane.recovery.diagnostics import forget_scheduled
from controlplane.recovery.forgetting import forget_events, forget_steps
from controlplane.runtime import beats, exporter
from controlplane.sentinel import continuing
from controlplane.telemetry.services import forget_chunks

DAY_S = 86_400.0


@shared_task(name="controlplane.sentinel.tasks.tick", ignore_result=True)
def tick() -> None:
    """Look at every job that is due, then at every other deadline."""
    sweep.wake_due()
    sweep.sweep()


@shared_task(name="controlplane.sentinel.tasks.opinions", ignore_result=True)
def opinions() -> None:
    """Torch's own analyser beside each finding of Flight Recorders, where torch is installed."""
    torch_analysis.add_missing()


@shared_task(name="controlplane.sentinel.tasks.ledger", ignore_result=True)
def ledger() -> None:
    """Bring the GPU-second ledger up to now, and close the bills of a month that has been over for long enough."""
    bills.close_due(ledger_pass.build())


@shared_task(name="controlplane.sentinel.tasks.engine", ignore_result=True)
def engine() -> None:
    """Look at the scheduler that gives the nodes out, where one does and it is time."""
    poll.poll()


@shared_task(name="controlplane.sentinel.tasks.shadow", ignore_result=True)
def shadow() -> None:
    """Compare and price what was decided since with the policy that runs beside the live one, where one does."""
    shadowing.work(continuing.carry_on)


@shared_task(name="controlplane.sentinel.tasks.canary", ignore_result=True)
def canary() -> None:
    """The worker's sign of life: this very task was carried out. A row for each worker: its port tells
    them apart on one machine."""
    address = exporter.address()
    beats.beat("worker", beats.machine_name("worker", address.rpartition(":")[2]), {"metrics": address})


@shared_task(name="controlplane.sentinel.tasks.retention", ignore_result=True)
def retention() -> None:
    """Forget what is older than the settings ask to keep."""
    if settings.EVENT_RETENTION_DAYS:
        forget_events(settings.EVENT_RETENTION_DAYS * DAY_S)
    forget_chunks(settings.RETENTION_DAYS * DAY_S)
    forget_scheduled(settings.RETENTION_DAYS * DAY_S)
    forget_finished(settings.RETENTION_DAYS * DAY_S)
    deadletter.forget(settings.RETENTION_DAYS * DAY_S)
    shadows.forget(settings.RETENTION_DAYS * DAY_S)
    intents.forget(settings.RETENTION_DAYS * DAY_S)
    breaker_rows.forget(settings.RETENTION_DAYS * DAY_S)
    forget_steps(settings.STEP_RETENTION_DAYS * DAY_S)
    if settings.LEDGER_RETENTION_DAYS:
        ledger_pass.forget(settings.LEDGER_RETENTION_DAYS * DAY_S)
    beats.forget_old()
    gate.forget_old()
    SessionStore.clear_expired()
