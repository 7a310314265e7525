"""Who is ordered out is relieved: another starts beside it, and only a second order ends it at once."""

import pytest

from controlplane.policy.budget import Rung, entries
from controlplane.policy.plan import (
    AnnounceView,
    Relieve,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import BudgetFact, JobSnapshot
from controlplane.protocol.states import ReplicaState

from .builders import (
    NOW_S,
    action,
    actions,
    attempt,
    change,
    job,
    node,
    only,
    replica,
    running,
    spec,
    with_replica,
)
from .test_relief import LONG, TOLD, WHY, died, relieved


def ordered(*, spares: int = 1, **fields: object) -> JobSnapshot:
    """Replica 1 trains, and was ordered out just now."""
    world = running(spares=spares, attempt=TOLD, job=job(spec=LONG), **fields)
    return with_replica(world, 1, relieved=WHY, ordered_out=WHY, ordered_s=NOW_S - 0.1)


def test_an_order_starts_another_beside_it_and_charges_nothing() -> None:
    world = ordered()
    decision = only(world, "ordered_eviction")
    assert (decision.choice, decision.reason_code) == ("start_beside", "ordered")
    assert action(decision, StartReplica).replica == 3
    assert not actions(decision, StopReplica) and not actions(decision, AnnounceView)
    assert [(e.rung, e.charged) for e in entries(decision, world)] == [(Rung.REPLICA, False)]
    assert decision.title == "Replica 1 evicted by order of ada"


def test_a_spent_budget_keeps_no_order_from_being_carried_out() -> None:
    assert only(ordered(budget=BudgetFact(restarts_total=10**6)), "ordered_eviction").choice == "start_beside"


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (ordered(spares=0), "no device is free for another replica"),
        (change(ordered(), attempt=attempt()), "its ranks were started by an older release"),
        (
            with_replica(
                ordered(),
                1,
                state=ReplicaState.CATCHING_UP,
                contributing=False,
                incarnation=2,
                state_since_s=NOW_S - 2.0,
            ),
            "it does not train",
        ),
    ],
)
def test_an_order_ends_it_at_once_where_nothing_can_be_started_beside_it(world: JobSnapshot, why: str) -> None:
    decision = only(world, "swap")
    assert (decision.choice, decision.reason_code) == ("stop", "ordered")
    assert why in decision.sentence
    assert (action(decision, StopReplica).replica, action(decision, Relieve).reason) == (1, "")


def test_what_ends_it_before_it_was_ended_as_ordered_is_a_failure() -> None:
    world = change(relieved(ordered=True), signals=(died(1),), job=job(spec=spec()))
    assert only(with_replica(world, 1, exited_ranks=2), "replica_failure").reason_code == "rank_exit"
    after = with_replica(world, 1, exited_ranks=2, relieved="")
    assert only(after, "ordered_eviction").reason_code == "ordered"


def test_two_that_are_ordered_out_are_relieved_one_after_the_other() -> None:
    world = with_replica(ordered(spares=2), 2, relieved=WHY, ordered_out=WHY)
    first = only(world, "ordered_eviction")
    start = action(first, StartReplica)
    assert (start.replica, action(first, Relieve).replica) == (3, 1)
    begun = replica(3, state=ReplicaState.FORMING, contributing=False, in_view=False, joined_ranks=0, home=3)
    nodes = tuple(node(i, free=i > 3) for i in range(5))
    second = only(change(world, replicas=(*world.replicas, begun), nodes=nodes), "ordered_eviction")
    assert (action(second, StartReplica).replica, action(second, Relieve).replica) == (4, 2)
