"""Nothing is placed on a node whose checks fail, and every decision that misses it says so."""

import pytest

from controlplane.policy.budget import entries
from controlplane.policy.decide import decide
from controlplane.policy.placement import slots_of
from controlplane.policy.plan import PlaceAttempt, SetJobState, StartReplica
from controlplane.policy.snapshot import BudgetFact, JobSnapshot, SignalFact
from controlplane.protocol.states import UNFIT, AttemptState, JobState, ReplicaState
from tests.unit.policy.builders import (
    CONFIG,
    CONTRIBUTOR,
    NOW_S,
    action,
    attempt,
    change,
    decisions,
    install_of,
    job,
    node,
    only,
    pending,
    replica,
    running,
    signal,
    starting,
    view_of,
    with_replica,
)

OLD = "driver: version 535 is older than 570"


def test_an_attempt_is_placed_around_a_node_whose_checks_fail() -> None:
    nodes = tuple(node(index, unhealthy=OLD if index == 0 else "") for index in range(4))
    placed = action(only(pending(nodes=nodes), "lifecycle"), PlaceAttempt)
    assert "n0" not in {place.node_id for replica in placed.placements for place in replica}


def test_a_job_that_waits_for_devices_names_the_nodes_left_out() -> None:
    waits = only(
        pending(nodes=tuple(node(index, unhealthy=OLD if index < 3 else "") for index in range(8))[:5]), "lifecycle"
    )
    assert waits.choice == "wait"
    assert waits.sentence.endswith(
        f"Not used, because their checks fail: node-0 ({OLD}), node-1 ({OLD}), node-2 ({OLD})."
    )
    many = only(pending(nodes=tuple(node(index, unhealthy=OLD) for index in range(5))), "lifecycle")
    assert many.sentence.endswith(f"node-2 ({OLD}) and 2 more.")


def test_an_empty_slot_stays_empty_beside_an_unfit_spare_and_goes_back_when_it_is_fit() -> None:
    lost = with_replica(running(), 1, state=ReplicaState.EVICTED, in_view=False, contributing=False, state_since_s=0.0)
    gone = change(lost, nodes=tuple(n for n in lost.nodes if n.id != "n1"))
    unfit = change(gone, nodes=tuple(change(n, unhealthy=OLD if n.id == "n3" else "") for n in gone.nodes))
    shrinks = only(unfit, "replace")
    assert shrinks.choice == "shrink"
    assert f"node-3 ({OLD})" in shrinks.sentence
    assert action(only(gone, "replace"), StartReplica).placements[0].node_id == "n3"


def test_a_refused_start_is_made_elsewhere_and_the_decision_says_why() -> None:
    forming = with_replica(
        running(), 1, state=ReplicaState.FORMING, joined_ranks=0, exited_ranks=2, in_view=False,
        contributing=False, state_since_s=NOW_S - 2.0,
    )  # fmt: skip
    detail = "the node is not fit: storage: /ck cannot be written: Read-only file system"
    refused = signal(
        "setup_timeout", replica=1, incarnation=1, node_id="n1", evidence={"detail": detail, "reason": UNFIT}
    )
    decision = only(change(forming, signals=(refused,)), "replica_failure")
    assert f"its start on node-1 failed: {detail}" in decision.sentence
    assert {node_id for node_id, _ in slots_of(action(decision, StartReplica).placements)} == {"n3"}
    other = change(refused, evidence={"detail": "the rank host exited with code 1", "reason": ""})
    again = only(change(forming, signals=(other,)), "replica_failure")
    assert {node_id for node_id, _ in slots_of(action(again, StartReplica).placements)} == {"n1"}, (
        "no fault of the node"
    )


REFUSED = {
    "state": ReplicaState.FORMING, "joined_ranks": 0, "exited_ranks": 2, "in_view": False, "contributing": False,
    "refused": True,
}  # fmt: skip
UNPAID_BUDGET = BudgetFact(restarts_in_window=30)


def refusal(index: int, incarnation: int = 1) -> SignalFact:
    evidence = {"detail": "storage: /ck cannot be written: Input/output error", "reason": UNFIT}
    return signal(
        "setup_timeout", index + 1, replica=index, incarnation=incarnation, node_id=f"n{index}", evidence=evidence
    )


def all_refused(**fields: object) -> JobSnapshot:
    """No node would start any of the three replicas; the budget is spent."""
    world = starting(**({"budget": UNPAID_BUDGET, "signals": tuple(map(refusal, range(3)))} | fields))
    for index in range(3):
        world = with_replica(world, index, **REFUSED)
    return world


def queued(refused_attempts: int, age_s: float, nodes: int = 3) -> JobSnapshot:
    """That attempt has ended; `nodes` are free."""
    ended = attempt(
        state=AttemptState.ENDED, end_code=UNFIT, refused_attempts=refused_attempts, started_s=NOW_S - age_s
    )
    return pending(
        attempt=ended,
        job=job(state=JobState.PENDING),
        budget=UNPAID_BUDGET,
        replicas=tuple(replica(index, **(REFUSED | {"state": ReplicaState.EVICTED})) for index in range(3)),
        nodes=tuple(node(index) for index in range(nodes)),
    )


def test_an_attempt_that_no_node_would_start_waits_and_costs_nothing() -> None:
    decision = only(all_refused(), "restart")
    assert (decision.choice, decision.reason_code) == ("queue", UNFIT)
    assert action(decision, SetJobState).to is JobState.PENDING
    assert "its starts are tried again after a pause" in decision.sentence
    assert entries(decision, all_refused()) == ()


def test_an_attempt_that_also_lost_a_replica_otherwise_is_a_failure() -> None:
    crashed = with_replica(all_refused(budget=BudgetFact()), 0, state=ReplicaState.EVICTED, refused=False)
    assert only(change(crashed, signals=(refusal(1), refusal(2))), "restart").reason_code == "all_lost"


@pytest.mark.parametrize(("tries", "age_s", "choice"), [(1, 1.0, "wait"), (1, 2.5, "place"), (5, 31.0, "wait"),
                                                        (9, 59.0, "wait"), (9, 61.0, "place")])  # fmt: skip
def test_it_is_placed_again_after_a_pause_that_doubles_up_to_a_minute(tries: int, age_s: float, choice: str) -> None:
    world = queued(tries, age_s)
    decision = only(world, "lifecycle")
    assert decision.choice == choice
    assert not any(entry.charged for entry in entries(decision, world))
    if choice == "wait":
        pause_s = CONFIG.start_backoff_s * 2 ** (tries - 1)
        due_s = NOW_S - age_s + min(CONFIG.start_backoff_max_s, pause_s)
        assert decide(world, CONFIG).next_pass_s == min(due_s, NOW_S + CONFIG.capacity_retry_s)


def test_it_goes_elsewhere_if_there_is_as_much_room_and_back_where_it_was_if_not() -> None:
    def homes(nodes: int) -> set[str]:
        placed = action(only(queued(1, 5.0, nodes), "lifecycle"), PlaceAttempt)
        return {place.node_id for row in placed.placements for place in row}

    assert homes(6) == {"n3", "n4", "n5"}
    assert homes(5) == {"n0", "n1", "n2"}, "two replicas instead of three"


def test_a_slot_is_not_given_up_for_refused_starts_and_its_next_one_is_free_and_elsewhere() -> None:
    lost = with_replica(
        running(budget=UNPAID_BUDGET), 1, state=ReplicaState.EVICTED, in_view=False, contributing=False,
        state_since_s=0.0, stopped=True, refused=True, failed_starts=9, refused_starts=9,
    )  # fmt: skip
    world = change(lost, nodes=tuple(node(1) if n.id == "n1" else n for n in lost.nodes))
    decision = only(world, "replace")
    assert action(decision, StartReplica).placements[0].node_id == "n3"
    assert [entry.charged for entry in entries(decision, world)] == [False]
    alone = change(world, nodes=tuple(n for n in world.nodes if n.id != "n3"))
    assert action(only(alone, "replace"), StartReplica).placements[0].node_id == "n1"
    assert only(with_replica(world, 1, refused_starts=3), "replace").choice == "give_up"


def test_a_refused_start_of_one_replica_fails_no_job_whose_budget_is_spent() -> None:
    forming = with_replica(running(budget=UNPAID_BUDGET, signals=(refusal(1),)), 1, **REFUSED)
    assert only(forming, "replica_failure").choice == "evict_and_replace"


def test_a_slot_that_nodes_refuse_over_and_over_is_tried_now_and_then_and_holds_nobody_up() -> None:
    out = {"state": ReplicaState.EVICTED, "contributing": False, "in_view": False, "stopped": True, "refused": True}
    often = out | {"failed_starts": 6, "refused_starts": 6}
    job_back = job(state=JobState.RECOVERING)
    view = view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR))
    world = with_replica(
        running(job=job_back, view=view, install=install_of(view)), 1, state_since_s=NOW_S - 599.0, **often
    )
    assert only(world, "strength").choice == "shrunk"
    assert decisions(world, rule="replace") == ()
    assert [d.choice for d in decisions(change(world, now_s=NOW_S + 2.0), rule="replace")] == ["start"]
    few = with_replica(world, 1, failed_starts=5, refused_starts=5, state_since_s=NOW_S - 1.0)
    assert decisions(few, rule="strength") == (), "it will be back soon"
    young = with_replica(starting(), 1, state_since_s=NOW_S - 1.0, **often)
    assert only(young, "lifecycle").choice == "first_view", "the others do not wait out the set-up time for it"
    assert decisions(with_replica(young, 1, failed_starts=5, refused_starts=5), rule="lifecycle") == ()
