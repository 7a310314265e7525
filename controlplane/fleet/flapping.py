"""A node that comes and goes in a loop writes no endless history.

Called by `services` in place of a plain event for each connection and its end, and by the
web process once in a while (`settle`). The first `MOST` of them in `WINDOW_S` are told as
they come. After that nothing is written until `EVERY_S` have passed since the last; then one
event says how often the node came and went, and carries its state. Rows of the node itself
are always right: only what is told is gathered. Each process counts for itself, in memory.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.fleet.models import Node
from controlplane.fleet.publish import publish_node, publish_nodes
from controlplane.runtime import events

WINDOW_S = 600.0
MOST = 10
EVERY_S = 300.0
FLAPPING = "node.flapping"
MAX_NODES = 50_000
_lock = threading.Lock()


@dataclass(slots=True)
class _Record:
    """When a node was last told of (monotonic), and how many events are owed since."""

    told_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    owed: int = 0


# By id and creation: a node that is deleted and enrolled again begins anew.
_records: dict[tuple[str, object], _Record] = {}


def tell(node: Node, kind: str, sentence: str) -> None:
    """The event, in the current unit of work, or a note that it is owed."""
    publish_all({node: sentence}, kind)


def publish_all(sentences: Mapping[Node, str], kind: str) -> None:
    """Of each node its event, as of one."""
    now_s = time.monotonic()
    publish_nodes({node.id: said for node, said in sentences.items() if _may_tell(node, now_s)}, kind)


def settle() -> int:
    """Tell what is owed of nodes that were last told of long enough ago; returns how many."""
    now_s, told = time.monotonic(), 0
    for (node_id, created_at), number in _take_due(now_s):
        node = Node.objects.filter(pk=node_id, created_at=created_at).first()
        if node is None:
            continue
        now_is = "connected" if node.connected else "not connected"
        with events.unit_of_work():
            sentence = (
                f"Node {node.name} came and went: {number} connections and losses are not listed one by one. "
                f"It is {now_is} now. Look at its network and at whether two agents use its credential."
            )
            publish_node(node, FLAPPING, sentence)
        told += 1
    return told


def _may_tell(node: Node, now_s: float) -> bool:
    with _lock:
        if len(_records) >= MAX_NODES:
            _forget_quiet(now_s)
        record = _records.setdefault((node.id, node.created_at), _Record())
        recent = sum(now_s - at_s < WINDOW_S for at_s in record.told_at_s)
        if recent < MOST and not record.owed:
            record.told_at_s.append(now_s)
            return True
        record.owed += 1
        return False


def _take_due(now_s: float) -> list[tuple[tuple[str, object], int]]:
    with _lock:
        due = [
            (key, record) for key, record in _records.items() if record.owed and now_s - record.told_at_s[-1] >= EVERY_S
        ]
        found = [(key, record.owed) for key, record in due]
        for _, record in due:
            record.owed = 0
            record.told_at_s.append(now_s)
    return found


def _forget_quiet(now_s: float) -> None:
    for key in [key for key, r in _records.items() if not r.owed and now_s - r.told_at_s[-1] >= WINDOW_S]:
        del _records[key]
