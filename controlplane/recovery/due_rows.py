"""The database as deadlines read it (`changes.due.rows`). Writes nothing."""

from collections.abc import Sequence, Set

from controlplane.changes.due.rows import Session, Stranger
from controlplane.fleet.models import Node
from controlplane.recovery.models import Signal
from controlplane.recovery.rows import JobRows
from controlplane.runtime import beats
from controlplane.runtime.clock import from_s


class DueRows(JobRows):
    """As `JobRows`; of the fleet where no job is named."""

    def seen_before(self, kinds: Sequence[str], at_s: float) -> Sequence[str]:
        """By id."""
        rows = Signal.objects.filter(kind__in=kinds, settled_at=None, seen_at__lt=from_s(at_s))
        return list(rows.order_by("id").values_list("id", flat=True))

    def strangers(self, known: Sequence[str], *, without: str) -> Sequence[Stranger]:
        """By id."""
        rows = Signal.objects.filter(settled_at=None).exclude(kind__in=known).exclude(evidence__has_key=without)
        return [Stranger(row.id, row.kind, row.evidence) for row in rows.order_by("id")]

    def living_webs(self) -> Set[str]:
        """By their beats."""
        return beats.live_web()

    def sessions(self, *, opened_before_s: float) -> Sequence[Session]:
        """A session's id begins with its process."""
        rows = Node.objects.filter(connected=True, connected_at__lt=from_s(opened_before_s)).order_by("id")
        named = rows.values_list("id", "session_id")
        return [Session(node_id, session, session.partition(".")[0]) for node_id, session in named]
