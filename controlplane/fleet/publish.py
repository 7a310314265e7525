"""A node's events: one shape for everybody who changes a node. Writes the event log alone."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from controlplane.fleet.models import Node
from controlplane.fleet.present import Parts, node_summary, parts_of
from controlplane.runtime import events
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOST, TEXT, Prepared, Several

NODES_A_QUERY = MOST
_NODES: Prepared[Node] = Prepared(lambda nodes: Node.objects.filter(pk__in=nodes), nodes=Several(TEXT))
NODE: Prepared[Node] = Prepared(lambda node: Node.objects.filter(pk=node), node=TEXT)


def publish_node(node: Node, kind: str, sentence: str) -> None:
    """An event with the node's summary as this unit of work leaves it."""
    _publish(node.id, kind, sentence)


def refresh_node(node_id: str) -> None:
    """The node's summary changed through something that belongs to it."""
    _publish(node_id, "node.refreshed", "")


def refresh_nodes(node_ids: Collection[str]) -> None:
    """As `refresh_node` of each; their summaries are read together."""
    publish_nodes(dict.fromkeys(node_ids, ""), "node.refreshed")


def publish_nodes(sentences: Mapping[str, str], kind: str) -> None:
    """An event of each node, by id, as `publish_node`; their summaries are read together."""
    found: dict[str, tuple[Node, Parts]] = {}

    def summary(node_id: str) -> dict[str, Any]:
        if not found:
            for some in batched(sentences, NODES_A_QUERY):
                nodes = _NODES(nodes=some)
                parts = parts_of(nodes)
                found.update({node.id: (node, parts[node.id]) for node in nodes})
        node, its = found[node_id]
        return node_summary(node, parts=its)

    for node_id, sentence in sentences.items():
        events.publish(
            kind, sentence, node_id=node_id, entity="node", entity_id=node_id, patch=partial(summary, node_id)
        )


def _publish(node_id: str, kind: str, sentence: str) -> None:
    events.publish(
        kind,
        sentence,
        node_id=node_id,
        entity="node",
        entity_id=node_id,
        patch=lambda: node_summary(NODE.get(node=node_id)),
    )
