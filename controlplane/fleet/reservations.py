"""Reservations of nodes for projects, as rows; the only writer of them (ADR 0051).

People set and cancel them by `recovery.reservations`; what follows is the policy's (`policy.reserved`). Callers hold
the rows of the nodes.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from msgspec.structs import replace

from controlplane.access.project_models import Project, Visibility
from controlplane.access.rights import Rights
from controlplane.fleet.models import Node, Reservation
from controlplane.fleet.publish import publish_node
from controlplane.policy import capabilities, reserved
from controlplane.runtime.clock import iso, now
from controlplane.runtime.errors import NotFound
from controlplane.runtime.ids import new_id
from controlplane.runtime.prepared import MOMENT, Prepared

Json = dict[str, Any]
ByNode = Mapping[str, tuple[reserved.Reservation, ...]]
NAMED = 20
"""So many nodes of a reservation are named where it is listed."""


def holding(at: Any = None) -> QuerySet[Reservation]:
    """Those that are not over (`at`: then; None: now), newest first."""
    return Reservation.objects.filter(over_at=None, ends_at__gt=now() if at is None else at).order_by(
        "-starts_at", "-id"
    )


def one(reservation_id: str) -> Reservation:
    """Raises NotFound."""
    row = Reservation.objects.filter(pk=reservation_id).first()
    if row is None:
        raise NotFound(f"no reservation {reservation_id!r}")
    return row


def _by_node(at: Any) -> QuerySet[Any, Any]:
    rows = Reservation.nodes.through.objects.filter(reservation__over_at=None, reservation__ends_at__gt=at)
    columns = ("node_id", "reservation_id", "reservation__project", "reservation__starts_at", "reservation__ends_at")
    return rows.order_by("reservation__starts_at", "pk").values_list(*columns)


_BY_NODE = Prepared(_by_node, at=MOMENT)


def by_node(only: Collection[str] | None = None) -> ByNode:
    """Of each node that is reserved, or will be, the reservations that are not over, the first first; `only` of these
    nodes."""
    rows = _BY_NODE(at=now()) if only is None else _by_node(now()).filter(node_id__in=only)
    found: dict[str, list[reserved.Reservation]] = defaultdict(list)
    known: dict[str, reserved.Reservation] = {}
    for node_id, pk, project, starts_at, ends_at in rows:
        if pk not in known:
            times = {"from_s": starts_at.timestamp(), "until_s": ends_at.timestamp()}
            known[pk] = reserved.Reservation(id=pk, project=project, **times)
        found[node_id].append(known[pk])
    return {node_id: tuple(its) for node_id, its in found.items()}


def seen_from(project: str, found: ByNode) -> ByNode:
    """The same; other private projects have no name there. What a job's sentences say, all who see the job read."""
    others = {each.project for its in found.values() for each in its} - {project}
    if not others:
        return found
    rows = Project.objects.filter(visibility=Visibility.PRIVATE, pk__in=others)
    return without(set(rows.values_list("name", flat=True)), found)


def without(private: Collection[str], found: ByNode) -> ByNode:
    """These projects have no name there."""
    return {node_id: shown(its, private) for node_id, its in found.items()} if private else found


def shown(found: Iterable[reserved.Reservation], private: Collection[str]) -> tuple[reserved.Reservation, ...]:
    """As `without`, of one node."""
    return tuple(replace(each, shown=reserved.ANOTHER) if each.project in private else each for each in found)


def view(row: Reservation, rights: Rights) -> Json:
    """As the API shows it to these rights: of a project that is not seen its nodes and times alone. Its nodes are
    prefetched."""
    seen, nodes = rights.sees(row.project), sorted(row.nodes.all(), key=lambda node: node.name)
    return {
        "id": row.id,
        "project": row.project if seen else reserved.ANOTHER,
        "nodes": [{"id": node.id, "name": node.name} for node in nodes[:NAMED]],
        "node_count": len(nodes),
        "starts_at": iso(row.starts_at),
        "ends_at": iso(row.ends_at),
        "reason": row.reason if seen else "",
        "who": row.who if seen else "",
        "said_at": iso(row.said_at),
        "over_at": iso(row.over_at),
        "over_by": row.over_by if seen else "",
        "capabilities": capabilities.known_end(row.over_by) if seen else {},
    }


def overlapping(node: Node, starts_at: datetime, ends_at: datetime) -> QuerySet[Reservation]:
    """Those that hold, and by which the node is not free for all of that time."""
    return holding().filter(Q(starts_at__lt=ends_at, ends_at__gt=starts_at), nodes=node)


def plan(
    project: str, nodes: Sequence[Node], starts_at: datetime, ends_at: datetime, reason: str, who: str
) -> Reservation:
    """From then until then these nodes are the project's own."""
    row = Reservation.objects.create(
        id=new_id("rsv"),
        project=project,
        starts_at=starts_at,
        ends_at=ends_at,
        reason=reason,
        who=who[:200],
        said_at=now(),
    )
    row.nodes.set(nodes)
    sentence = f"is reserved for {_called(project)} from {iso(starts_at)} until {iso(ends_at)}"
    for node in nodes:
        publish_node(node, "node.reserved", f"Node {node.name} {sentence}")
    return row


def end(row: Reservation, why: str) -> None:
    """It does not hold any more."""
    row.over_at, row.over_by = now(), why
    row.save(update_fields=["over_at", "over_by"])
    for node in row.nodes.order_by("pk"):
        publish_node(node, "node.unreserved", f"Node {node.name} is not reserved for {_called(row.project)} any more")


def _called(project: str) -> str:
    """In a sentence that everybody reads."""
    private = Project.objects.filter(pk=project, visibility=Visibility.PRIVATE).exists()
    return reserved.ANOTHER if private else f"project {project}"
