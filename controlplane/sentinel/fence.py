"""A leader's writes, each committed only under its term.

`unit_of_work` takes the shard's lease row first (before every other lock, `runtime.locks`) and compares its term with
the one under which the leader began; whoever takes the lease waits for that row, so nothing that an earlier leader
writes is committed after it. A process that stands still inside such a transaction is cut off by PostgreSQL after
`IDLE_S`; SQLite has one writer at a time, and that one can only be waited for.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from controlplane.runtime import beats, events, metrics
from controlplane.runtime.errors import LostLead
from controlplane.runtime.models import ProcessBeat

IDLE_S = 2.0
_CHECK = (
    f"""SELECT "term", set_config('idle_in_transaction_session_timeout', %s, true) FROM """  # noqa: S608
    f'"{ProcessBeat._meta.db_table}" WHERE "name" = %s FOR NO KEY UPDATE'
)


class Fence:
    """Of one shard's leader, for one term."""

    def __init__(self, shard: int, term: int) -> None:
        self.shard, self.term = shard, term

    @contextmanager
    def unit_of_work(self) -> Iterator[None]:
        """A transaction with its events. Raises LostLead, and writes nothing, where another one leads by now."""
        with events.unit_of_work():
            found = _term(beats.lease_name(self.shard))
            if found != self.term:
                metrics.FENCED.inc()
                raise LostLead(f"shard {self.shard} is led under term {found}, not under {self.term} any more")
            yield


def _term(name: str) -> int | None:
    """Held until commit."""
    if connection.vendor != "postgresql":
        return ProcessBeat.objects.filter(name=name).values_list("term", flat=True).first()
    with connection.cursor() as cursor:
        cursor.execute(_CHECK, [str(round(IDLE_S * 1000)), name])
        row = cursor.fetchone()
    return None if row is None else int(row[0])
