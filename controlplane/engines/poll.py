"""One look at the engine: ask it, write what it answered, and carry out what is wanted of it.

Called by a task of the worker's every few seconds; a look begins when it is due, and one at a time, by compare-and-set
on a row. It holds one process of the worker for `BUDGET_S` and one question at most, and no lock or transaction while
an engine answers. While an engine does not answer it is asked less and less often.
"""

import time
from datetime import timedelta

from django.conf import settings

from controlplane.engines import intents
from controlplane.engines.engine import SLURM, Engine, Resident
from controlplane.engines.models import EnginePoll
from controlplane.engines.record import record
from controlplane.engines.slurm.driver import Slurm
from controlplane.runtime.clock import now

BUDGET_S = 20.0
LEASE = timedelta(seconds=75)
"""Longer than a task may take: who began a look and died has not taken the next one along."""
MAX_WAIT_S = 600.0


def engine_of() -> Engine:
    """The driver that the settings name."""
    if settings.ENGINE == SLURM:
        return Slurm(timeout_s=settings.ENGINE_TIMEOUT_S, server=settings.ENGINE_SERVER)
    return Resident()


def poll(engine: Engine | None = None) -> bool:
    """Look, if it is time and nobody else does; whether it did."""
    engine = engine or engine_of()
    at, until_s = now(), time.monotonic() + BUDGET_S
    EnginePoll.objects.get_or_create(engine=engine.name, defaults={"due_at": at})
    if not EnginePoll.objects.filter(engine=engine.name, due_at__lte=at).update(due_at=at + LEASE):
        return False
    observation = engine.observe()
    record(engine.name, observation)
    if observation.nodes is not None:
        intents.renew(engine.name)
        intents.carry_out(engine, until_s=until_s)
    polled = EnginePoll.objects.get(engine=engine.name)
    wait_s = min(settings.ENGINE_POLL_S * 2 ** min(polled.failures, 10), max(MAX_WAIT_S, settings.ENGINE_POLL_S))
    EnginePoll.objects.filter(engine=engine.name).update(due_at=at + timedelta(seconds=wait_s))
    return True
