"""The fleet beyond a job's own nodes, as far as a rule asks: rows to what `policy.elsewhere` chooses from.

Nodes are counted by grouping devices and ranks each by their node, so that neither is compared with the
other; only of nodes in part in use are the devices looked at. Read once for a pass, however often
it asks, and not at all for one that asks nothing. Reads alone.
"""

from collections.abc import Collection, Iterable
from typing import Any

from django.db.models import Count, Min, Q, QuerySet

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.policy.asked import Again, Asks
from controlplane.policy.config import PolicyConfig
from controlplane.policy.elsewhere import Lent, answered, decide_asking, lent_by
from controlplane.policy.placement import PLACEABLE, is_type, of_type
from controlplane.policy.plan import Plan
from controlplane.policy.snapshot import JobSnapshot, NodeFact
from controlplane.protocol.states import NodeState
from controlplane.recovery import health_gate, load_queue
from controlplane.recovery.load_devices import NODES_A_QUERY, of_nodes
from controlplane.recovery.load_nodes import MANY_NODES, node_facts
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import Prepared
from controlplane.scheduling.selectors import reserved_nodes


def decided(snapshot: JobSnapshot, job: Job, config: PolicyConfig, *, locked: bool = False) -> tuple[JobSnapshot, Plan]:
    """What is to happen to the job, and the snapshot with all that was asked on the way. `locked`: the job's row is,
    and what is decided is carried out before the commit."""
    return decide_asking(snapshot, config, Candidates(job, snapshot, locked=locked).answer)


class Candidates:
    """Answers the questions of one pass about one job."""

    def __init__(self, job: Job, snapshot: JobSnapshot, *, locked: bool = False) -> None:
        self._job, self._locked = job, locked
        self._own = frozenset(node.id for node in snapshot.nodes)
        self._gpu_type = snapshot.job.spec.resources.gpu_type
        self._lent: list[Lent] | None = None

    def answer(self, snapshot: JobSnapshot, asks: Asks) -> JobSnapshot:
        """The snapshot with the answer."""
        if self._lent is None:
            self._lent = self._read(asks.fresh_s)
        return answered(snapshot, asks.needs, self._lent, self._nodes, self._again)

    def _again(self) -> Again | None:
        return load_queue.again(self._job, lock=self._locked)

    def _nodes(self, ids: set[str]) -> Iterable[NodeFact]:
        """Beyond the snapshot: where a host of the job is up, or was asked for, the node is in it (`own_facts`)."""
        return node_facts(None, only=ids)

    def _read(self, fresh_s: float) -> list[Lent]:
        """What every other node lends: one that is idle all its good devices."""
        reserved, silent = reserved_nodes(), health_gate.silent_by_node() or {}
        others = {row[0]: row for row in _OPEN_NODES() if row[0] not in self._own and row[0] not in reserved}
        # A job that holds most of a large fleet names the rest; else no query's text grows with a fleet.
        many = len(others) <= MANY_NODES < len(self._own)
        asked = list(batched(sorted(others), NODES_A_QUERY)) if many else None
        held = dict(_HELD() if asked is None else _of_these(_held(), asked))
        devices = {row[0]: row[1:] for row in self._devices(asked)}
        lent: list[Lent] = []
        in_part: set[str] = set()
        for node_id, state, segment in others.values():
            number, good, memory_bytes = devices.get(node_id, (0, 0, None))
            if not good or held.get(node_id, 0) >= number:
                continue
            if node_id in held:
                in_part.add(node_id)
                continue
            quiet = float(silent.get(node_id, 0.0)) > fresh_s
            lent.append(Lent(quiet, state == NodeState.DEGRADED, node_id, good, segment, memory_bytes))
        typed = of_type(self._nodes(in_part) if in_part else (), self._gpu_type)
        return [*lent, *lent_by(typed, self._job.id, fresh_s)]

    def _devices(self, asked: list[tuple[str, ...]] | None) -> Iterable[tuple[str, int, int, int | None]]:
        """(node id, how many in all, how many that are healthy and of the job's type, memory of the smallest of
        these)."""
        if self._gpu_type is None:
            return _DEVICES() if asked is None else _of_these(_devices(_GOOD), asked)
        models = Device.objects.order_by().values_list("model", flat=True).distinct()
        typed = Q(model__in=[model for model in models if is_type(model, self._gpu_type)])
        return _of_these(_devices(_GOOD & typed), [None] if asked is None else asked)


_GOOD = Q(healthy=True, present=True)


def _open_nodes() -> QuerySet[Node, tuple[str, str, str]]:
    """(id, state, segment) of each node that takes work."""
    rows = Node.objects.filter(revoked_at=None, connected=True, state__in=[str(state) for state in PLACEABLE])
    return rows.order_by("id").values_list("id", "state", "segment")


def _held() -> QuerySet[Rank, Any]:
    return _count(Rank.objects.filter(released_at=None))


def _devices(good: Q) -> QuerySet[Device, Any]:
    rows = _count(Device.objects.all()).annotate(good=Count("pk", filter=good), least=Min("memory_bytes", filter=good))
    return rows.values_list("node_id", "number", "good", "least")


def _of_these(rows: QuerySet[Any, Any], asked: Iterable[Collection[str] | None]) -> Iterable[Any]:
    """Those of these nodes (None: of all)."""
    return (row for some in asked for row in of_nodes(rows, "node_id", some))


def _count(rows: QuerySet[Any]) -> QuerySet[Any, Any]:
    """How many of each node."""
    return rows.order_by().values_list("node_id").annotate(number=Count("pk"))


_OPEN_NODES, _HELD, _DEVICES = Prepared(_open_nodes), Prepared(_held), Prepared(lambda: _devices(_GOOD))
