"""Wake-ups for the web processes that hold nodes' sockets. Reads alone; a lost one costs latency."""

from collections.abc import Sequence

from controlplane.fleet.models import Node
from controlplane.runtime import beats, bus
from controlplane.runtime.prepared import MOST, TEXT, Prepared, Several

NODES_A_QUERY = MOST
_SESSIONS: Prepared[str] = Prepared(
    lambda nodes: Node.objects.filter(pk__in=nodes, connected=True)
    .exclude(session_id="").values_list("session_id", flat=True),
    nodes=Several(TEXT),
)  # fmt: skip


def ring(node_ids: Sequence[str]) -> None:
    """Those that hold one of the nodes; of many nodes every one: who is rung in vain looks once."""
    for process in beats.live_web() if len(node_ids) > NODES_A_QUERY else _holders(node_ids):
        bus.wake_outbox(process)


def _holders(node_ids: Sequence[str]) -> set[str]:
    return {session.partition(".")[0] for session in _SESSIONS(nodes=node_ids)}
