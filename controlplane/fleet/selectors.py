"""Reading nodes and devices."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.db.models import Count, QuerySet

from controlplane.fleet.capable import with_acts
from controlplane.fleet.models import NOT_WELL, Device, Node
from controlplane.fleet.present import node_summary, parts_of
from controlplane.protocol.states import NodeState
from controlplane.runtime import bus, shards
from controlplane.runtime.errors import NotFound
from controlplane.runtime.prepared import TEXT, Prepared, Several

_INDEXES: Prepared[tuple[str, int]] = Prepared(
    lambda nodes: Device.objects.filter(node__in=nodes).values_list("node_id", "index"), nodes=Several(TEXT)
)


def nodes(*, state: str | None = None, q: str = "") -> QuerySet[Node]:
    """By name, without removed ones; `q` is a part of the name."""
    rows = Node.objects.filter(removed_at=None).order_by("name")
    if state:
        rows = rows.filter(state=state)
    return rows.filter(name__icontains=q) if q else rows


_WORST = {state: rank for rank, state in enumerate(
    (NodeState.QUARANTINED, NodeState.DEGRADED, NodeState.DRAINING, NodeState.CORDONED, NodeState.READY)
)}  # fmt: skip


def turns(rows: QuerySet[Node], sort: str) -> dict[str, str]:
    """By the name of each of these nodes where it stands by `sort`, as text in its order: `name`, `-name` (all alike),
    `-risk` (the highest score of its devices first) or `health` (by state, and then by how many of its devices are not
    well, the worst first). Two queries at most: few devices are not well, and an index has these."""
    if sort in ("name", "-name"):
        return dict.fromkeys(rows.order_by().values_list("name", flat=True), "")
    not_well = Device.objects.filter(NOT_WELL).values_list("node_id", "present", "healthy", "risk")
    risks: dict[str, float] = {}
    broken: Counter[str] = Counter()
    for node_id, present, healthy, risk in not_well:
        risks[node_id] = max(risks.get(node_id, 0.0), risk if risk is not None and present else 0.0)
        broken[node_id] += not (present and healthy)
    found = rows.order_by().values_list("id", "name", "state")
    if sort == "-risk":
        return {name: f"{1.0 - min(1.0, risks.get(node_id, 0.0)):.9f}" for node_id, name, _ in found}
    return {name: f"{_WORST.get(state, 0)}.{9999 - broken[node_id]:04d}" for node_id, name, state in found}


def node(node_id: str) -> Node:
    """By id, or by name. Raises NotFound."""
    rows = Node.objects.filter(removed_at=None)
    row = rows.filter(pk=node_id).first() or rows.filter(name=node_id).first()
    if row is None:
        raise NotFound(f"no node {node_id!r}")
    return row


def node_view(row: Node) -> dict[str, Any]:
    """The summary with the live picture and what may be done, as lists and details show it."""
    return node_views([row])[0]


LIVE = frozenset({"devices", "last_seen_age_s", "agent_cpu_ratio", "agent_rss_bytes"})
"""What of a summary the live state is for."""


def node_views(rows: Sequence[Node], *, live: bool = True) -> list[dict[str, Any]]:
    """`node_view` of each, in as many queries and looks into Redis as for one, of their shards alone. `live` False:
    without the live state."""
    parts = parts_of(rows)
    parts_of_all = list(dict.fromkeys(shards.part_of("nodes", row.id) for row in rows))
    asked = [*(f"node:{row.id}" for row in rows), *parts_of_all]
    live_state = bus.read_live_of(asked) if rows and live else {}
    silent: dict[str, Any] = {}
    for name in parts_of_all:
        silent |= live_state.pop(name, {})
    for row in rows:
        # What is known of a node is as old as its newest change; how long it is silent goes on.
        known = live_state.get(f"node:{row.id}")
        if known is not None and row.id in silent:
            known["agent"] = {**known.get("agent", {}), "silent_s": silent[row.id]}
    views = (node_summary(row, live_state=live_state.get(f"node:{row.id}"), parts=parts[row.id]) for row in rows)
    return [with_acts(view, row, parts[row.id]) for view, row in zip(views, rows, strict=True)]


def device_indexes(node_ids: Sequence[str]) -> list[frozenset[int]]:
    """Of each node every device that it ever listed."""
    found: dict[str, set[int]] = {node_id: set() for node_id in node_ids}
    for node_id, index in _INDEXES(nodes=found):
        found[node_id].add(index)
    return [frozenset(found[node_id]) for node_id in node_ids]


def node_count() -> int:
    """Nodes that may connect."""
    return Node.objects.filter(revoked_at=None).count()


def counts_by_state() -> dict[str, int]:
    """Every state is present, zeros too."""
    found = dict(
        Node.objects.filter(removed_at=None).values_list("state").annotate(n=Count("pk")).values_list("state", "n")
    )
    return {state.value: found.get(state.value, 0) for state in NodeState}


def device_counts() -> dict[str, int]:
    """total, healthy, at_risk, lost, busy, spare."""
    rows = Device.objects.filter(node__removed_at=None)
    return {
        "total": rows.count(),
        "healthy": rows.filter(present=True, healthy=True).count(),
        "at_risk": rows.filter(present=True, healthy=True, risk__gte=AT_RISK).count(),
        "lost": rows.filter(present=False).count(),
        "busy": rows.filter(ranks__released_at=None, ranks__isnull=False).distinct().count(),
        "spare": rows.filter(reservation__isnull=False).count(),
    }


AT_RISK = 0.30
