"""Who is woken when it may be their turn to start: the front of the queue at once, the others by the queue's plan.

A pending job asks for its place in each of its passes, under its own lock and the fleet's (`recovery.load_queue`), so
nothing here decides who starts: a wake-up that is lost or too early costs a pass. Rows that change here are the
moments at which jobs are looked at next.
"""

import threading
import time

from controlplane.jobs.models import Job
from controlplane.jobs.selectors import front_of_queue
from controlplane.jobs.services import wake_job, wake_job_later
from controlplane.policies import selectors as policies
from controlplane.policy.queue.schedule import called, schedule
from controlplane.protocol.states import QUEUED_JOB
from controlplane.recovery import load_queue
from controlplane.runtime import events
from controlplane.runtime.clock import after, now_s

PLAN_EVERY_S = 5.0
_lock = threading.Lock()
_planned_at = 0.0


def wake_front() -> None:
    """A job has left the queue: those that are first in line now are woken behind this commit."""
    for job_id in front_of_queue():
        wake_job_later(job_id)


def call_waiting() -> int:
    """Of the pending jobs that have no moment of their own at which they look for devices wake the first in line, and
    those that may start by the queue's plan; returns how many. The plan is made each PLAN_EVERY_S in a process."""
    # A moment further off than its next look for devices is of something else, such as the end of its time limit.
    soon = after(policies.of_fleet().capacity_retry_s)
    idle = Job.objects.filter(state__in=QUEUED_JOB, parked_by="").exclude(due_at__lte=soon)
    asleep = dict(idle.values_list("id", "due_at"))
    if not asleep:
        return 0
    woken = {job_id for job_id in front_of_queue(1) if job_id in asleep and asleep[job_id] is None}
    if _plan_is_due():
        queue = load_queue.waiting()
        plan = schedule(queue, load_queue.load_fleet(queue), load_queue.config(), now_s())
        woken |= called(plan) & asleep.keys()
    for job_id in sorted(woken):
        with events.unit_of_work():
            wake_job(job_id)
    return len(woken)


def _plan_is_due() -> bool:
    global _planned_at
    with _lock:
        moment = time.monotonic()
        if _planned_at and moment - _planned_at < PLAN_EVERY_S:
            return False
        _planned_at = moment
        return True
