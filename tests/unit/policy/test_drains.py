"""A drain seen from the fleet: begun, over, taken back, too late; and what the node is then."""

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.fleet import FleetSnapshot, decide_fleet
from controlplane.policy.plan import AnswerRequest, Decision, SetNodeState
from controlplane.policy.snapshot import NodeFact
from controlplane.protocol.states import NodeState, RequestKind, RequestState

from .builders import NOW_S, change, node
from .test_requests import asked


def answers(home: NodeFact | None, **fields: object) -> tuple[Decision, ...]:
    drain = asked(RequestKind.DRAIN, **{"node_id": node(1).id, "before": "ready"} | fields)
    nodes = (home,) if home is not None else ()
    return decide_fleet(FleetSnapshot(now_s=NOW_S, nodes=nodes, requests=(drain,)), PolicyConfig())


def home(state: NodeState = NodeState.DRAINING, *, held: bool = True) -> NodeFact:
    found = node(1, state=state)
    return change(found, devices=tuple(change(each, held=held) for each in found.devices))


def moves(decision: Decision) -> list[object]:
    return [a.to for a in decision.actions if isinstance(a, SetNodeState)] + [
        a.to for a in decision.actions if isinstance(a, AnswerRequest)
    ]


@pytest.mark.parametrize(
    ("at", "fields", "done"),
    [
        (home(), {}, [RequestState.TAKEN]),
        (home(held=False), {}, [NodeState.CORDONED, RequestState.DONE]),
        (home(NodeState.QUARANTINED, held=False), {}, [RequestState.DONE]),
        (home(), {"withdrawn_by": "user:bob"}, [NodeState.READY, RequestState.WITHDRAWN]),
        (home(), {"withdrawn_by": "user:bob", "before": "degraded"}, [NodeState.DEGRADED, RequestState.WITHDRAWN]),
        (home(NodeState.CORDONED), {"withdrawn_by": "user:bob"}, [RequestState.WITHDRAWN]),
        (home(NodeState.READY), {}, [RequestState.WITHDRAWN]),
        (home(), {"valid_until_s": NOW_S}, [NodeState.CORDONED, RequestState.LAPSED]),
        (None, {}, [RequestState.REFUSED]),
    ],
)
def test_a_drain_ends_as_the_node_has_it(at: NodeFact | None, fields: dict[str, object], done: list[object]) -> None:
    (decision,) = answers(at, **fields)
    assert moves(decision) == done


def test_while_something_runs_there_a_drain_that_has_begun_goes_on() -> None:
    assert answers(home(), state=RequestState.TAKEN) == ()
