"""Findings about nodes themselves: in doubt which machine it is, deaf to what its agent tells.

Called by the agents' socket, by ingest and by an administrator's confirmation. Decides nothing:
`fleet.identity` has quarantined the node already.
"""

from controlplane.fleet import identity
from controlplane.fleet.models import Node
from controlplane.recovery import signals
from controlplane.runtime import events

KIND = "node_identity"


def tell(node_id: str, why: str) -> None:
    """A finding, once while it is open."""
    name = Node.objects.values_list("name", flat=True).filter(pk=node_id).first() or node_id
    signals.raise_signal(
        KIND,
        f"{KIND}:{node_id}",
        sentence=f"It is in doubt which machine node {name} is: {why}.",
        node_id=node_id,
        evidence={"node": name, "why": why},
    )


def confirm(node_id: str, *, actor: str, reason: str, request_id: str = "") -> Node:
    """An administrator vouches for the node: see `fleet.identity.confirm`."""
    with events.unit_of_work():
        node = identity.confirm(node_id, actor=actor, reason=reason, request_id=request_id)
        for kind in (KIND, "node_deaf"):
            signals.settle_keys(f"{kind}:{node_id}", f"{actor} vouches for the node: {reason}")
    return node
