"""Findings about nodes themselves: in doubt which machine it is, deaf to what its agent tells.

Called by the agents' socket, by ingest and by an administrator's confirmation. Decides nothing:
`fleet.identity` has quarantined the node already.
"""

from controlplane.access.actors import in_words
from controlplane.fleet import identity
from controlplane.fleet.models import Node
from controlplane.fleet.services import transition_node
from controlplane.policy.signals.nodes import NodeDeaf, NodeInDoubt
from controlplane.protocol.states import NodeState
from controlplane.recovery import signals
from controlplane.runtime import events
from controlplane.runtime.clock import age_s, now

RESYNC_S = 5.0
DEAF_S = 30.0


def tell(node_id: str, why: str) -> None:
    """A finding, once while it is open."""
    name = Node.objects.values_list("name", flat=True).filter(pk=node_id).first() or node_id
    signals.raise_signal(NodeInDoubt(node_id=node_id, node=name, why=why))


def is_stuck(node: Node, *, advanced: bool, gap: bool) -> bool:
    """Called with each batch, the node's row locked. True: no repeat closes the gap, its agent must
    begin a new journal. One that does not is deaf: it takes no new work until its events arrive."""
    if not gap or advanced:
        if node.gap_since is not None or node.deaf:
            _hears_again(node)
        return False
    waited_s = age_s(node.gap_since)
    if waited_s is None:
        Node.objects.filter(pk=node.pk).update(gap_since=now())
        return False
    if waited_s > DEAF_S and not node.deaf:
        _deaf(node, waited_s)
    return waited_s > RESYNC_S


def _deaf(node: Node, waited_s: float) -> None:
    Node.objects.filter(pk=node.pk).update(deaf=True)
    why = f"its events after number {node.last_event_seq} have not come for {waited_s:.0f} s"
    if node.state != NodeState.QUARANTINED:
        # A drain goes on meanwhile, and may be over when its events arrive again.
        state = NodeState.CORDONED if node.state == NodeState.DRAINING else node.state
        before = {"state": str(state), "reason": node.state_reason}
        transition_node(node, NodeState.QUARANTINED, why, before_deaf=before)
    found = NodeDeaf(
        node_id=node.id,
        node=node.name,
        last_event_seq=node.last_event_seq,
        waited_s=waited_s,
        limit_s=DEAF_S,
        why=why,
    )
    signals.raise_signal(found)


def _hears_again(node: Node) -> None:
    """Deafness is over, and with it the quarantine that it was the only reason for. Any other one stands:
    the node itself chooses when its events arrive."""
    was_deaf = node.deaf
    Node.objects.filter(pk=node.pk).update(gap_since=None, deaf=False)
    if not was_deaf:
        return
    signals.settle_keys(NodeDeaf.key_of(node.id), "its events arrive again")
    if node.state != NodeState.QUARANTINED or node.before_deaf is None or node.doubt or node.held:
        return
    before = node.before_deaf
    back = "its events arrive again"
    transition_node(node, before["state"], back if before["state"] == NodeState.READY else before["reason"])


def confirm(node_id: str, *, actor: str, reason: str, request_id: str = "") -> Node:
    """An administrator vouches for the node: see `fleet.identity.confirm`."""
    with events.unit_of_work():
        node = identity.confirm(node_id, actor=actor, reason=reason, request_id=request_id)
        for kind in (NodeInDoubt, NodeDeaf):
            signals.settle_keys(kind.key_of(node_id), f"{in_words(actor)} vouches for the node: {reason}")
    return node
