"""Engines, pools and what an engine believes of a node, as the API shows them. Reads rows alone."""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from controlplane.engines.engine import OPEN, RESIDENT
from controlplane.engines.intents import seen_as
from controlplane.engines.models import EngineNode, EnginePoll, Intent, PoolElement
from controlplane.engines.record import believed_of
from controlplane.engines.slurm import compare
from controlplane.jobs.models import Rank
from controlplane.protocol.states import NodeState
from controlplane.runtime.clock import iso

Json = dict[str, Any]
WAITS, RUNS = "PENDING", "RUNNING"
KINDS = ("held", "cold", "other", "idle", "in_use")
HELD = ("held", "JobHeld")
"""Part of Slurm's reason of an element that starts only once somebody releases it."""
MAX_ELEMENTS, MAX_INTENTS, MAX_NODES = 200, 50, 20


def engines() -> list[Json]:
    """Of this server, with their pools: the one that the settings name."""
    name = settings.ENGINE
    polled = EnginePoll.objects.filter(engine=name).first()
    intents = Intent.objects.filter(engine=name).select_related("node").order_by("-made_at", "-id")[:MAX_INTENTS]
    return [
        {
            "name": name,
            "asked": name != RESIDENT,
            "answered_at": iso(polled.answered_at) if polled else None,
            "error": polled.error if polled else "",
            "error_at": iso(polled.error_at) if polled and polled.error else None,
            "nodes": EngineNode.objects.filter(engine=name, node__removed_at=None).count(),
            "pools": _pools(name),
            "intents": [intent_view(row) for row in intents],
        }
    ]


def _pools(engine: str) -> list[Json]:
    """By number, the newest first."""
    found: dict[str, list[PoolElement]] = defaultdict(list)
    for row in PoolElement.objects.filter(engine=engine).select_related("node").order_by("index"):
        found[row.pool].append(row)
    in_use = set(Rank.objects.filter(node__pilots__engine=engine, released_at=None).values_list("node_id", flat=True))
    return [_pool(name, found[name], in_use) for name in sorted(found, key=int, reverse=True)]


def _pool(name: str, rows: list[PoolElement], in_use: set[str]) -> Json:
    views = [element_view(row, used=row.node_id in in_use) for row in rows]
    counts = {kind: sum(view["kind"] == kind for view in views) for kind in KINDS}
    # What waits, and what is spare, are what people look for.
    views.sort(key=lambda view: (KINDS.index(view["kind"]), view["ends_at"] or "9", view["index"]))
    left_out = max(0, len(views) - MAX_ELEMENTS)
    return {
        "id": name, "owner": rows[0].owner, **counts, "elements": views[:MAX_ELEMENTS], "elements_left_out": left_out
    }  # fmt: skip


def kind_of(row: PoolElement, *, used: bool) -> str:
    """held: it waits until somebody releases it; cold: it waits in the engine's queue; in_use: ranks are on its node
    (`used`); idle: its node is there, takes work, and has none; other: it starts or ends, or its node takes no work."""
    if row.state == WAITS:
        return "held" if any(part in row.reason for part in HELD) else "cold"
    if row.state == RUNS and used:
        return "in_use"
    spare = row.node is not None and row.node.connected and row.node.state == NodeState.READY
    return "idle" if row.state == RUNS and spare else "other"


def element_view(row: PoolElement, *, used: bool) -> Json:
    """`waits`: the engine's own reason."""
    known = row.node is not None and row.node.removed_at is None
    return {
        "index": row.index,
        "allocation": f"{row.pool}_{row.index}",
        "job": row.job,
        "state": row.state,
        "kind": kind_of(row, used=used),
        "waits": row.reason if row.state == WAITS else "",
        "node_id": row.node_id if known else None,
        "node_name": row.node.name if known and row.node is not None else row.node_name,
        "starts_at": iso(row.starts_at),
        "ends_at": iso(row.ends_at),
        "grace_s": row.grace_s,
    }


def intent_view(row: Intent) -> Json:
    """`due_at`: when it is tried next; None: it is not."""
    return {
        "id": row.id,
        "kind": row.kind,
        "node_id": row.node_id,
        "node_name": row.node.name if row.node is not None else "",
        "pool": row.pool,
        "size": row.size,
        "reason": row.reason,
        "who": row.who,
        "state": row.state,
        "tries": row.tries,
        "detail": row.detail,
        "made_at": iso(row.made_at),
        "due_at": iso(row.due_at) if row.state in OPEN else None,
        "done_at": iso(row.done_at),
    }


def of_node(node_id: str) -> Json | None:
    """What the engine believes of a node, and where that differs; None: it has never named it."""
    if settings.ENGINE == RESIDENT:
        return None
    row = EngineNode.objects.select_related("node").filter(engine=settings.ENGINE, node=node_id).first()
    if row is None:
        return None
    polled = EnginePoll.objects.filter(engine=row.engine).first()
    pilot, believed = _running(row.engine, [node_id]).get(node_id), believed_of(row)
    node = seen_as([row])[node_id]
    allocation = element_view(pilot, used=bool(node.ranks)) if pilot is not None else None
    intents = Intent.objects.filter(engine=row.engine, node=node_id).select_related("node").order_by("-made_at", "-id")
    return {
        "engine": row.engine,
        "name": row.name,
        "state": row.states,
        "drained": believed.drained,
        "ours": believed.ours,
        "reason": row.reason,
        "reason_by": row.reason_by,
        "reason_at": iso(row.reason_at),
        "piloted": row.piloted,
        "allocation": allocation,
        "differs": compare.differs(
            node, believed, piloted=row.piloted, pilot=allocation["allocation"] if allocation else ""
        ),
        "seen_at": iso(row.seen_at),
        "error": polled.error if polled else "",
        "intents": [intent_view(each) for each in intents[:5]],
    }


def of_job(job_id: str) -> Json | None:
    """Where the nodes of a job's ranks come from, the first to end first; None: from no engine that is asked."""
    if settings.ENGINE == RESIDENT:
        return None
    ranks = Rank.objects.filter(replica__attempt__job=job_id, released_at=None)
    node_ids = set(ranks.values_list("node_id", flat=True).distinct())
    lent = sorted(_running(settings.ENGINE, node_ids).values(), key=lambda row: (row.ends_at is None, row.ends_at))
    return {
        "engine": settings.ENGINE,
        "nodes": len(node_ids),
        "lent": len(lent),
        "pools": sorted({row.pool for row in lent}, key=int),
        "first_end_at": iso(lent[0].ends_at) if lent else None,
        "allocations": [element_view(row, used=True) for row in lent[:MAX_NODES]],
    }


def _running(engine: str, node_ids: Collection[str]) -> dict[str, PoolElement]:
    """By node the pilot that runs there, the newest where two are listed."""
    rows: QuerySet[PoolElement] = PoolElement.objects.filter(engine=engine, node__isnull=False)
    rows = rows.exclude(state=WAITS).select_related("node").order_by("starts_at")
    return {str(row.node_id): row for row in rows if row.node_id in node_ids}
