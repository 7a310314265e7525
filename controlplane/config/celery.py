"""The Celery application: wakes and slow work only; every task's truth is a row.

Start: `celery -A controlplane.config.celery worker --pool prefork` and, anywhere, any number
of `celery -A controlplane.config.celery beat`. Never pass --without-gossip (see settings).
"""

import threading
from typing import Any

from celery import Celery
from celery.signals import (
    after_task_publish,
    beat_init,
    celeryd_init,
    setup_logging,
    worker_init,
    worker_process_init,
)
from kombu.transport import TRANSPORT_ALIASES

from controlplane.config.env import share_metrics, start_or_say_why
from controlplane.config.guards import close_files

start_or_say_why()
# Messages in Redis are sealed: who can only write there cannot make the worker do anything.
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "controlplane.runtime.broker:Transport")


class Application(Celery):  # type: ignore[misc]
    """Celery, with figures that count what the worker's processes do."""

    @property
    def Worker(self) -> Any:
        """What `celery worker` asks for before it imports a task: the client library of Prometheus
        must know by then that several processes count."""
        directory = share_metrics()
        from controlplane.runtime import exporter

        exporter.share_with_children(directory)
        return super().Worker


app = Application("holdfast")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@celeryd_init.connect  # type: ignore[untyped-decorator]
@beat_init.connect  # type: ignore[untyped-decorator]
def _close_files(**_: object) -> None:
    """Only in worker and beat: others import this module to send."""
    close_files()


@setup_logging.connect  # type: ignore[untyped-decorator]
def _use_our_logging(**_: object) -> None:
    """Celery's own log set-up would undo ours."""
    from django.conf import settings

    from controlplane.runtime.logs import configure

    configure(settings.LOG_LEVEL)


@worker_init.connect  # type: ignore[untyped-decorator]
def _export_worker(**_: object) -> None:
    """Before it forks, so that its processes know the address and tell it with their beat."""
    from controlplane.runtime import exporter

    exporter.start("worker")


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _leave_port(**_: object) -> None:
    from controlplane.runtime import exporter

    exporter.leave_to_parent()


@beat_init.connect  # type: ignore[untyped-decorator]
def _export_beat(**_: object) -> None:
    """Its figures, and a row that tells health where they are."""
    import django

    django.setup()
    from controlplane.runtime import beats, exporter

    detail = {"metrics": exporter.start("beat")}
    after_task_publish.connect(_count_task, weak=False)
    threading.Thread(target=beats.keep_beating, args=("beat", detail), name="beat-row", daemon=True).start()


def _count_task(sender: Any = None, **_: object) -> None:
    from controlplane.runtime import metrics

    metrics.TASKS_SENT.labels(task=str(sender).rpartition(".")[2]).inc()
