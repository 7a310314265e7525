"""The Celery application: wakes and slow work only; every task's truth is a row.

Start: `celery -A controlplane.config.celery worker --pool prefork` and, anywhere, any number
of `celery -A controlplane.config.celery beat`. Never pass --without-gossip (see settings).
"""

from celery import Celery
from celery.signals import beat_init, celeryd_init, setup_logging
from kombu.transport import TRANSPORT_ALIASES

from controlplane.config.env import choose_settings_module
from controlplane.config.guards import close_files

choose_settings_module()
# Messages in Redis are sealed: who can only write there cannot make the worker do anything.
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "controlplane.runtime.broker:Transport")
app = Celery("holdfast")
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
