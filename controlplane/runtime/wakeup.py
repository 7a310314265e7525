"""Wake-ups of a job: reconcile it soon.

The truth of a wake-up is `Job.due_at`, written with the change itself; this sends the
Celery task that makes it fast. A daemon thread sends, so nobody waits for a broker; a
wake-up that cannot be sent is dropped, and the sentinel finds the overdue row.
"""

import threading

import redis
from celery import current_app
from kombu.exceptions import KombuError

from controlplane.runtime import bus
from controlplane.runtime.logs import get

RECONCILE_TASK = "controlplane.recovery.tasks.reconcile_job"
MAX_WAITING = 10_000
EXPIRES_S = 30

_log = get(__name__)


class Wakeups:
    """Coalesces wake-ups of the same job until they are sent."""

    def __init__(self) -> None:
        self._waiting: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self, job_id: str, *, sure: bool = False) -> None:
        """Never blocks, never fails. `sure`: a decision is certain, so no look comes before the lock."""
        with self._lock:
            if len(self._waiting) < MAX_WAITING:
                self._waiting[job_id] = sure or self._waiting.get(job_id, False)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="wakeup", daemon=True)
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            for job_id, sure in waiting.items():
                self._send(job_id, sure)

    def _send(self, job_id: str, sure: bool) -> None:
        if not bus.ping():
            return
        try:
            current_app.send_task(RECONCILE_TASK, [job_id, sure], retry=False, expires=EXPIRES_S, ignore_result=True)
        except (KombuError, redis.RedisError, OSError, RuntimeError, ValueError) as error:
            _log.info("wake-up not sent; the sentinel will reconcile", job_id=job_id, error=str(error))


_wakeups = Wakeups()
wake = _wakeups.wake
