"""Known ends of nodes: who leaves when, as rows; the only writer of them (ADR 0050).

What an agent says of its provider's notice comes by `recovery.commit`, what people set by `recovery.windows`; what
follows is the policy's (`policy.leaving`). Callers hold the node's row.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from controlplane.fleet.models import KnownEnd, Node
from controlplane.fleet.present import holding
from controlplane.fleet.publish import publish_node
from controlplane.policy import capabilities, known_end
from controlplane.protocol.states import EndSource
from controlplane.runtime.clock import from_s, iso, now
from controlplane.runtime.errors import NotFound
from controlplane.runtime.ids import new_id
from controlplane.runtime.prepared import MOMENT, MOST, TEXT, Prepared, Several

Json = dict[str, Any]
AGENT = "agent"
"""Who says what its provider does; of itself alone."""


_HOLDING = Prepared(holding, at=MOMENT)
_HOLDING_OF = Prepared(lambda at, nodes: holding(at).filter(node_id__in=nodes), at=MOMENT, nodes=Several(TEXT))


def first_by_node(only: Collection[str] | None = None) -> Mapping[str, KnownEnd]:
    """Of each node that is known to leave, or is away, the end that is first; `only` of these nodes."""
    few = only is not None and len(only) <= MOST
    found: dict[str, KnownEnd] = {}
    for row in _HOLDING_OF(at=now(), nodes=only) if few else _HOLDING(at=now()):
        if only is None or row.node_id in only:
            found.setdefault(row.node_id, row)
    return found


def one(end_id: str) -> KnownEnd:
    """With its node. Raises NotFound."""
    row = KnownEnd.objects.filter(pk=end_id).select_related("node").first()
    if row is None:
        raise NotFound(f"no window {end_id!r}")
    return row


def known(row: KnownEnd) -> known_end.KnownEnd:
    """As the policy sees it."""
    return known_end.KnownEnd(
        id=row.id,
        source=EndSource(row.source),
        leaves_s=row.leaves_at.timestamp(),
        said_s=row.said_at.timestamp(),
        reason=row.reason,
        back_s=row.back_at.timestamp() if row.back_at is not None else None,
    )


def view(row: KnownEnd) -> Json:
    """As the API shows it."""
    return {
        "id": row.id,
        "node_id": row.node_id,
        "node_name": row.node.name,
        "source": row.source,
        "leaves_at": iso(row.leaves_at),
        "back_at": iso(row.back_at),
        "reason": row.reason,
        "who": row.who,
        "said_at": iso(row.said_at),
        "over_at": iso(row.over_at),
        "over_by": row.over_by,
        "capabilities": capabilities.known_end(row.over_by),
    }


def note(node: Node, leaves_s: float, reason: str) -> None:
    """Its agent says that it leaves then: what it said before does not hold any more."""
    leaves_at, row = from_s(leaves_s), _notices(node).first()
    if row is None:
        row = _create(node, EndSource.SPOT, leaves_at=leaves_at, reason=reason, who=AGENT, boot_id=node.boot_id)
    else:
        row.leaves_at, row.reason, row.boot_id, row.said_at = leaves_at, reason, node.boot_id, now()
        row.save(update_fields=["leaves_at", "reason", "boot_id", "said_at"])
    publish_node(node, "node.leaves", f"Node {node.name} leaves {_when(row)}, as its provider says: {reason}")


def stays(node: Node, why: str) -> None:
    """Its provider's notice does not hold any more."""
    for row in _notices(node):
        end(row, why)


def booted(node: Node, boot_id: str) -> None:
    """Its agent has another boot: a notice that an earlier one read is over."""
    for row in _notices(node):
        if row.boot_id != boot_id:
            end(row, f"node {node.name} has started again since")


def plan(node: Node, leaves_at: datetime, back_at: datetime, reason: str, who: str) -> KnownEnd:
    """A maintenance window."""
    row = _create(node, EndSource.WINDOW, leaves_at=leaves_at, back_at=back_at, reason=reason, who=who[:200])
    publish_node(node, "node.leaves", f"Node {node.name} is away {_when(row)} until {iso(back_at)}: {reason} ({who})")
    return row


def end(row: KnownEnd, why: str) -> None:
    """It does not hold any more."""
    row.over_at, row.over_by = now(), why
    row.save(update_fields=["over_at", "over_by"])
    publish_node(row.node, "node.stays", f"Node {row.node.name} does not leave {_when(row)}: {why}")


def _notices(node: Node) -> QuerySet[KnownEnd]:
    return KnownEnd.objects.select_related("node").filter(node=node, source=EndSource.SPOT, over_at=None)


def _create(node: Node, source: EndSource, **columns: Any) -> KnownEnd:
    return KnownEnd.objects.create(id=new_id("end"), node=node, source=source, said_at=now(), **columns)


def _when(row: KnownEnd) -> str:
    return f"at {iso(row.leaves_at)}"
