"""A node's events: one shape for everybody who changes a node. Writes the event log alone."""

from controlplane.fleet.models import Node
from controlplane.fleet.present import node_summary
from controlplane.runtime import events


def publish_node(node: Node, kind: str, sentence: str) -> None:
    """An event with the node's summary as this unit of work leaves it."""
    _publish(node.id, kind, sentence)


def refresh_node(node_id: str) -> None:
    """The node's summary changed through something that belongs to it."""
    _publish(node_id, "node.refreshed", "")


def _publish(node_id: str, kind: str, sentence: str) -> None:
    events.publish(
        kind,
        sentence,
        node_id=node_id,
        entity="node",
        entity_id=node_id,
        patch=lambda: node_summary(Node.objects.get(pk=node_id)),
    )
