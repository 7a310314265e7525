"""A node's events: one shape for everybody who changes a node. Writes the event log alone."""

from controlplane.fleet.models import Node
from controlplane.fleet.present import node_summary
from controlplane.runtime import events


def publish_node(node: Node, kind: str, sentence: str) -> None:
    """An event with the node's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        node_id=node.id,
        entity="node",
        entity_id=node.id,
        patch=lambda: node_summary(Node.objects.get(pk=node.id)),
    )
