"""Nothing is placed on a node whose checks fail, and every decision that misses it says so."""

from controlplane.policy.placement import slots_of
from controlplane.policy.plan import PlaceAttempt, StartReplica
from controlplane.protocol.states import UNFIT, ReplicaState
from tests.unit.policy.builders import NOW_S, action, change, node, only, pending, running, signal, with_replica

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
