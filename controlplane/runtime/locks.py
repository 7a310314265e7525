"""Locks. Order everywhere: a shard's lease, job rows (by id), fleet, node rows, event streams.

PostgreSQL locks rows and advisory keys; SQLite lets one writer in at BEGIN IMMEDIATE,
which is stronger, so there the same calls only read.
"""

import random
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from django.db import OperationalError, close_old_connections, connection, models
from django.db.transaction import TransactionManagementError

from controlplane.runtime.errors import LostRace
from controlplane.runtime.logs import get
from controlplane.runtime.outages import is_outage
from controlplane.runtime.prepared import Prepared, Several

FLEET_KEY = 0x486F6C64
TRIES = 4
BACKOFF_S = 0.05

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")
_log = get(__name__)


def lock_row(model: type[M], pk: str | int) -> M | None:
    """The row, held until commit; None if there is none. Others may still write rows that name it. Raises
    TransactionManagementError where nothing would hold it."""
    _holds()
    row: M | None = _one(model).first(pk=pk)
    return row


def lock_rows(model: type[M], pks: Iterable[str], *, free_ones: bool = False) -> dict[str, M]:
    """Several rows, locked in order of their key, by key. `free_ones`: without those that somebody else holds now.
    Raises as `lock_row`."""
    _holds()
    return {row.pk: row for row in _several(model, free_ones)(pks=set(pks))}


def _holds() -> None:
    """Django asks this as it compiles, which is once (`runtime.prepared`)."""
    if connection.features.has_select_for_update and connection.get_autocommit():
        raise TransactionManagementError("a row is locked inside a transaction")


def _locking(model: type[M], *, free_ones: bool = False, **which: Any) -> "models.QuerySet[M]":
    locked = model._default_manager.select_for_update(no_key=True, skip_locked=free_ones)
    return locked.filter(**which).order_by("pk")


@cache
def _one(model: type[models.Model]) -> Prepared[Any]:
    return Prepared(lambda pk: _locking(model, pk=pk)[:1], pk=_key(model))


@cache
def _several(model: type[models.Model], free_ones: bool) -> Prepared[Any]:
    return Prepared(lambda pks: _locking(model, free_ones=free_ones, pk__in=pks), pks=Several(_key(model)))


def _key(model: type[models.Model]) -> "models.Field[Any, Any]":
    return model._meta.pk


def lock_fleet() -> None:
    """One placement at a time over the whole fleet, until commit."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [FLEET_KEY])


def retrying(work: Callable[[], T], what: str) -> T:
    """Run a whole transaction; repeat it when the database says busy, deadlock or away, and when
    another writer was first (it loads again what that one has left). The last error goes to the caller."""
    for number in range(1, TRIES + 1):
        try:
            return work()
        except (OperationalError, LostRace) as error:
            again = isinstance(error, LostRace) or is_outage(error)
            if connection.in_atomic_block or number == TRIES or not again:
                raise
            if isinstance(error, LostRace):
                _log.info("another writer was first, trying again", what=what, error=str(error), number=number)
            else:
                _log.warning("database refused, trying again", what=what, error=str(error), number=number)
            close_old_connections()
            time.sleep(BACKOFF_S * number * (1.0 + random.random()))
    raise AssertionError("unreachable")
