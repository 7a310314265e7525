"""How a drain of a node goes, seen from the fleet: when it begins, is over, taken back or valid no longer.

Which replicas leave the node, and when, each job decides for itself (`rules.drain_request`). Here the node is
looked at: with nothing on it any more it is cordoned, and may be worked on; where the drain ends otherwise it is
what it was before. Where a person returned it meanwhile that ends the drain.
"""

from collections.abc import Mapping
from itertools import chain

from controlplane.policy.plan import Action, Decision, SetNodeState
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import answer
from controlplane.policy.snapshot import NodeFact
from controlplane.protocol.states import NodeState, RequestKind, RequestState

RULE = "drain_request"
_RETURNED = frozenset({NodeState.READY, NodeState.DEGRADED})


def answers(requests: tuple[RequestFact, ...], nodes: Mapping[str, NodeFact], *, now_s: float) -> tuple[Decision, ...]:
    """At most one answer to each drain."""
    drains = (r for r in requests if r.kind is RequestKind.DRAIN)
    return tuple(chain.from_iterable(_answer(drain, nodes.get(drain.node_id or ""), now_s) for drain in drains))


def _answer(drain: RequestFact, node: NodeFact | None, now_s: float) -> tuple[Decision, ...]:
    if node is None:
        return (answer(RULE, drain, RequestState.REFUSED, "It was taken out of the fleet."),)
    back = _back(drain, node)
    if node.state in _RETURNED:
        return (
            answer(RULE, drain, RequestState.WITHDRAWN, f"{node.name} was returned meanwhile: it is {node.state}."),
        )
    if drain.withdrawn_by:
        why = f"{drain.withdrawn_by} has taken it back: {_now(drain, node)}"
        return (answer(RULE, drain, RequestState.WITHDRAWN, why, *back),)
    busy = sum(device.held for device in node.devices)
    if not busy:
        empty = (SetNodeState(node_id=node.id, to=NodeState.CORDONED),) if back else ()
        why = f"Nothing runs on {node.name} any more: it is {NodeState.CORDONED if back else node.state}."
        return (answer(RULE, drain, RequestState.DONE, why, *empty),)
    if now_s >= drain.valid_until_s:
        hours = (drain.valid_until_s - drain.asked_s) / 3600.0
        why = f"{busy} of its devices are held still after {hours:.1f} h. It takes no new work; drain it again."
        stays = (SetNodeState(node_id=node.id, to=NodeState.CORDONED),) if back else ()
        return (answer(RULE, drain, RequestState.LAPSED, why, *stays),)
    if drain.state is RequestState.OPEN:
        why = f"{node.name} takes no new work; {busy} of its devices are held, and what runs there is moved away."
        return (answer(RULE, drain, RequestState.TAKEN, why),)
    return ()


def _back(drain: RequestFact, node: NodeFact) -> tuple[Action, ...]:
    """The node is what it was, unless something else has taken it out of service meanwhile."""
    if node.state is not NodeState.DRAINING:
        return ()
    return (SetNodeState(node_id=node.id, to=NodeState(drain.before or NodeState.CORDONED)),)


def _now(drain: RequestFact, node: NodeFact) -> str:
    after = drain.before or NodeState.CORDONED if node.state is NodeState.DRAINING else node.state
    return f"{node.name} is {after}."
