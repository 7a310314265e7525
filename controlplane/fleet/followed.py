"""Whether what rows say of nodes has changed since it was last asked: what makes a second read of them cheap.

Theory of operation. Whoever changes a row of a node, of its devices or of a rank or a reservation on them publishes an
event that names the node, in the same transaction (`sentinel.fleetmap` lives by it too). Events are numbered in commit
order, so it is enough to ask whether one behind the last number names a node. Connections of nodes that flap are not
told one by one (`fleet.flapping`), nor what such a node's agent newly says of itself; which nodes are not connected,
who are few, and when one last was is therefore read each time. The newest event known is read again too, which is
another one, or none, after the database was set back. What nothing told of is known after `WHOLE_S` at the latest.
"""

import threading
import time
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Max, Q

from controlplane.fleet.models import Node
from controlplane.runtime import events
from controlplane.runtime.models import Event
from controlplane.runtime.plain_rows import plain

WHOLE_S = 60.0
MOST_EVENTS = 20_000
"""More at once are not looked through: then something has changed."""


class Version(NamedTuple):
    """`number`: the same as before, in this process, if nothing has changed; `seq`: of the newest event then."""

    number: int
    seq: int


class Followed:
    """Of one process; may be asked by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._seq = -1
        self._at: datetime | None = None
        self._connections: list[tuple[Any, ...]] = []
        self._connected_at: datetime | None = None
        self._whole_at_s = 0.0

    def version(self) -> Version:
        """Ask before what is to be remembered is read: what is committed meanwhile has a later version."""
        with self._lock:
            newest = events.newest_seq()
            connections = _connections(self._connected_at)
            changed = connections != self._connections or self._may_have_changed(newest)
            if changed:
                self._number += 1
                self._whole_at_s = time.monotonic()
                last = Node.objects.aggregate(newest=Max("connected_at"))["newest"]
                if last != self._connected_at:
                    self._connected_at, connections = last, _connections(last)
            if changed or newest != self._seq:
                self._at = _moment_of(newest)
            self._seq, self._connections = newest, connections
            return Version(self._number, newest)

    def forget(self) -> None:
        """The next version is another one."""
        with self._lock:
            self._seq = -1

    def _may_have_changed(self, newest: int) -> bool:
        behind = newest - self._seq
        if self._seq < 0 or not 0 <= behind <= MOST_EVENTS or time.monotonic() - self._whole_at_s >= WHOLE_S:
            return True
        if self._at != _moment_of(self._seq):
            return True
        if not behind:
            return False
        since = Event.objects.filter(seq__gt=self._seq, seq__lte=newest)
        return since.count() < behind or since.exclude(node_id="").exists()


def _connections(since: datetime | None) -> list[tuple[Any, ...]]:
    """Who is not connected, and who came since then (None: ever); one scan of the nodes."""
    came = Q(connected_at__isnull=False) if since is None else Q(connected_at__gte=since)
    return plain(
        Node.objects.filter(Q(connected=False) | came).order_by("id").values_list("id", "connected", "connected_at")
    )


def _moment_of(seq: int) -> datetime | None:
    return Event.objects.filter(seq=seq).values_list("at", flat=True).first()


nodes = Followed()
"""Of this process."""
