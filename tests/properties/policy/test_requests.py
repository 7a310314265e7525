"""Whatever is asked for, and whenever: an answer follows the table, none ends a process, one leaves at a time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import AnnounceView, AnswerRequest, AskEviction, OrderOut, StopReplica
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import RULES
from controlplane.policy.transitions import check
from controlplane.protocol.states import ReplicaState, RequestKind, RequestState
from tests.unit.policy.builders import NOW_S, running, with_replica

CONFIG = PolicyConfig()


@st.composite
def requests(draw: st.DrawFn) -> tuple[RequestFact, ...]:
    return tuple(
        RequestFact(
            id=f"ask_{number}",
            kind=draw(st.sampled_from(RequestKind)),
            state=draw(st.sampled_from((RequestState.OPEN, RequestState.TAKEN))),
            who="user:ada",
            reason="rack 7",
            asked_s=NOW_S - draw(st.floats(0.0, 100.0)),
            valid_until_s=NOW_S + draw(st.floats(-10.0, 100.0)),
            attempt=draw(st.sampled_from((1, 2))),
            replica=draw(st.integers(0, 3)),
            incarnation=draw(st.sampled_from((1, 2))),
            rank=0,
            node_id=draw(st.sampled_from(("n0", "n1", "n2"))),
            fault="hang",
            withdrawn_by=draw(st.sampled_from(("", "user:bob"))),
            carried=draw(st.sampled_from(("", "succeeded", "failed"))),
        )
        for number in range(draw(st.integers(0, 5)))
    )


@given(
    asked=requests(),
    state=st.sampled_from([ReplicaState.ACTIVE, ReplicaState.FORMING, ReplicaState.EVICTED, ReplicaState.SUSPECT]),
    ordered=st.sampled_from(("", "user:ada: rack 7")),
    spares=st.integers(0, 1),
)
@settings(max_examples=200, deadline=None)
def test_answers_follow_the_table_and_end_nothing(
    asked: tuple[RequestFact, ...], state: ReplicaState, ordered: str, spares: int
) -> None:
    world = with_replica(running(spares=spares, requests=asked), 1, state=state, ordered_out=ordered)
    before = {request.id: request.state for request in asked}
    made = [decision for decision in decide(world, CONFIG).decisions if decision.rule in RULES]
    acts = [action for decision in made for action in decision.actions]
    told = [action for action in acts if isinstance(action, AnswerRequest)]
    for each in told:
        check("request", before[each.request], each.to)
    assert len({each.request for each in told}) == len(told), "one answer to each"
    assert not [action for action in acts if isinstance(action, StopReplica | AnnounceView)]
    assert sum(isinstance(action, AskEviction) for action in acts) <= 1
    orders = [action.replica for action in acts if isinstance(action, OrderOut)]
    assert len(set(orders)) == len(orders)
