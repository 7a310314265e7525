"""Facts of an engine become rows. Called by `poll` alone; no answer is ever read as "nothing is there".

A whole answer that does not list a pilot is one source. A pilot that ran is gone once a second one says so: its
agent's link is down, Slurm gives the node to nobody, or another pilot runs there. One that waited is gone when two
whole answers in a row do not list it. What Slurm does not say of a node leaves that node's row as it is.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from controlplane.engines.engine import Observation
from controlplane.engines.models import EngineNode, EnginePoll, PoolElement
from controlplane.engines.slurm.answers import Pilot, name_in_holdfast
from controlplane.engines.slurm.compare import cause, words
from controlplane.engines.slurm.health import Believed
from controlplane.fleet.models import Node
from controlplane.fleet.publish import publish_node
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.pieces import batched

BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
"""What Slurm says of a node on which a job is or ends."""
MISSES = 2
ROWS_A_QUERY = 500
_BELIEVED = ("engine", "name", "states", "reason", "reason_by", "reason_at", "piloted", "seen_at")
_LISTED = (
    "job", "state", "reason", "owner", "node_name", "node", "starts_at", "ends_at", "grace_s", "missed", "seen_at",
)  # fmt: skip


def record(engine: str, observation: Observation) -> None:
    """All that this look has brought; an event for each node of which the engine changed its mind."""
    with events.unit_of_work():
        at = now()
        ids = {name: node_id for node_id, name in Node.objects.filter(removed_at=None).values_list("id", "name")}
        if observation.pilots is not None:
            _pilots(engine, observation.pilots, observation.nodes, ids, at)
        if observation.nodes is not None:
            _nodes(engine, observation.nodes, ids, at)
        polled = EnginePoll.objects.get(pk=engine)
        polled.error, polled.error_at = "; ".join(observation.errors), at if observation.errors else polled.error_at
        polled.failures = polled.failures + 1 if observation.errors else 0
        polled.answered_at = polled.answered_at if observation.errors else at
        polled.save(update_fields=["error", "error_at", "failures", "answered_at"])


def _nodes(engine: str, found: Mapping[str, Believed], ids: Mapping[str, str], at: datetime) -> None:
    """Of nodes that Holdfast knows. Two of the engine's that have one name here are neither."""
    named = Counter(name_in_holdfast(name) for name in found)
    before = {row.node_id: row for row in EngineNode.objects.all()}
    in_pilots = set(PoolElement.objects.filter(engine=engine).exclude(node=None).values_list("node_id", flat=True))
    rows: list[EngineNode] = []
    for name, believed in found.items():
        node_id = ids.get(name_in_holdfast(name))
        if node_id is None or named[name_in_holdfast(name)] > 1:
            continue
        was = before.get(node_id)
        rows.append(
            EngineNode(
                node_id=node_id, engine=engine, name=name, states=words(believed), reason=believed.reason,
                reason_by=believed.by, reason_at=believed.since, seen_at=at,
                piloted=node_id in in_pilots or (was is not None and was.piloted),
            )
        )  # fmt: skip
        if believed.drained != (was is not None and believed_of(was).drained):
            _publish(Node.objects.get(pk=node_id), believed)
    for some in batched(rows, ROWS_A_QUERY):
        EngineNode.objects.bulk_create(some, update_conflicts=True, unique_fields=["node"], update_fields=_BELIEVED)


def believed_of(row: EngineNode) -> Believed:
    """As the engine believed it."""
    states = frozenset(row.states.split("+"))
    return Believed(states=states, reason=row.reason, by=row.reason_by, since=row.reason_at)


def _publish(node: Node, believed: Believed) -> None:
    does = f"gives {node.name} no job: {cause(believed)}" if believed.drained else f"gives {node.name} jobs again"
    publish_node(node, "node.engine", f"Slurm {does}.")


def _pilots(
    engine: str, found: tuple[Pilot, ...], nodes: Mapping[str, Believed] | None, ids: Mapping[str, str], at: datetime
) -> None:
    rows = [
        PoolElement(
            engine=engine, pool=each.array, index=each.index, job=each.job, state=each.state, reason=each.reason,
            owner=each.owner, node_name=each.node, node_id=ids.get(name_in_holdfast(each.node)),
            starts_at=each.starts_at, ends_at=each.ends_at, grace_s=each.grace_s, missed=0, seen_at=at,
        )
        for each in {(each.array, each.index): each for each in found}.values()
    ]  # fmt: skip
    listed = {(row.pool, row.index) for row in rows}
    taken = {row.node_name for row in rows if row.node_name}
    unlisted = [
        row
        for row in PoolElement.objects.filter(engine=engine).select_related("node")
        if (row.pool, row.index) not in listed
    ]
    gone = [row.pk for row in unlisted if _is_gone(row, nodes, taken)]
    PoolElement.objects.filter(pk__in=gone).delete()
    for row in unlisted:
        row.missed += 1
    PoolElement.objects.bulk_update([row for row in unlisted if row.pk not in set(gone)], ["missed"], ROWS_A_QUERY)
    for some in batched(rows, ROWS_A_QUERY):
        PoolElement.objects.bulk_create(
            some, update_conflicts=True, unique_fields=["engine", "pool", "index"], update_fields=_LISTED
        )


def _is_gone(row: PoolElement, nodes: Mapping[str, Believed] | None, taken: set[str]) -> bool:
    """Of one that this answer does not list: whether a second source says so too."""
    if not row.node_name:
        return row.missed + 1 >= MISSES
    here = None if nodes is None else nodes.get(row.node_name)
    is_idle = here is not None and here.states.isdisjoint(BUSY)
    return row.node_name in taken or is_idle or (row.node is not None and not row.node.connected)
