"""The net under Celery: whatever is overdue is done here, under the same row locks.

A thread of the leader. Rings jobs whose moment has come; looks itself at those that
nobody looked at within a second (at once, while the worker or Redis is known to be out).
"""

import threading
import time
from functools import partial

import redis
from celery import current_app
from django.db import DatabaseError, close_old_connections
from kombu.exceptions import KombuError

from controlplane.recovery import sweep
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import beats, bus, metrics
from controlplane.runtime.isolate import isolated
from controlplane.runtime.logs import get
from controlplane.sentinel.leadership import Leadership

TURN_S = 0.25
SLACK_S = 1.0
SWEEP_S = 1.0
CANARY_S = 3.0
MAX_RUNG = 10_000
_log = get(__name__)


class Net:
    """Of the sentinel that leads the first shard."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="net", daemon=True)
        self._rung: dict[str, float] = {}
        self._swept_at = 0.0
        self._canary_at = 0.0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the turn."""
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.wait(TURN_S):
            try:
                self.turn()
            except DatabaseError as error:
                _log.warning("the database is away", error=str(error))
            except Exception:
                # A catch-all: this thread is the net under everybody else and never ends.
                metrics.ISOLATED_FAILURES.labels(what="net_turn").inc()
                _log.exception("a turn of the net failed")
            finally:
                close_old_connections()

    def turn(self) -> None:
        """One round: ring, catch, sweep. Each row that it writes is claimed under its own lock, as by the worker, which
        does the same beside it: two that do this at once do the work once."""
        if self.leadership.term() is None:
            return
        self._ring()
        for job_id in sweep.overdue(self._slack_s()):
            isolated("reconcile", job_id, partial(reconcile_job, job_id))
        if time.monotonic() - self._swept_at >= SWEEP_S:
            self._swept_at = time.monotonic()
            sweep.sweep()
        self._send_canary()

    def _ring(self) -> None:
        """Once a second a job at most: a queue that nobody reads must not grow."""
        moment = time.monotonic()
        if len(self._rung) > MAX_RUNG:
            self._rung.clear()
        for job_id in sweep.overdue(0.0):
            if moment - self._rung.get(job_id, 0.0) >= SLACK_S:
                self._rung[job_id] = moment
                sweep.wakeup.wake(job_id)

    def _slack_s(self) -> float:
        """How long Celery has before we look ourselves."""
        return SLACK_S if bus.health.ok and beats.view("worker").ok else 0.0

    def _send_canary(self) -> None:
        """A task executed end to end is the worker's only sign of life that counts."""
        if time.monotonic() - self._canary_at < CANARY_S or not bus.health.ok:
            return
        self._canary_at = time.monotonic()
        try:
            current_app.send_task(
                "controlplane.sentinel.tasks.canary", retry=False, expires=CANARY_S * 2, ignore_result=True
            )
        except (KombuError, redis.RedisError, OSError, ValueError) as error:
            _log.info("canary not sent", error=str(error))
