"""Each diagnosis and each exit code of a refused result has its decision."""

import pytest

from controlplane.policy.plan import SetNodeState, SettleSignals, StartReplica
from controlplane.policy.pools import suspected
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.protocol.states import NodeState
from tests.unit.policy.builders import CONFIG, action, actions, change, decisions, job, only, running, signal


def refused(diagnosis: str, number: int = 1, *, replica: int = 1, step: int = 50, **evidence: object) -> SignalFact:
    told = {"diagnosis": diagnosis, "check": "gradient_not_finite", "first_result": "nan", **evidence}
    return signal(
        "numerics", number, replica=replica, incarnation=1, rank=0, node_id=f"n{replica}", device_index=0,
        value=float(step), evidence=told,
    )  # fmt: skip


def exited(code: int, number: int = 9, *, replica: int = 1, rank: int = 0) -> SignalFact:
    return signal("rank_exit", number, replica=replica, incarnation=1, rank=rank, value=float(code))


def world(*signals: SignalFact, committed_step: int = 50, **fields: object) -> JobSnapshot:
    """Step 50 is in progress."""
    return running(signals=signals, job=job(committed_step=committed_step), **fields)


def test_a_transient_error_is_noted_and_nothing_is_done():
    decision = only(world(refused("transient")), "numerics")
    assert (decision.choice, decision.reason_code) == ("note", "transient")
    assert decision.actions == (SettleSignals(signal_ids=("sig_1",)),)


def test_the_third_transient_error_of_a_device_degrades_its_node():
    decision = only(world(refused("transient", earlier_transients=2)), "numerics")
    assert action(decision, SetNodeState) == SetNodeState(node_id="n1", to=NodeState.DEGRADED)
    assert decision.choice == "degrade"


def test_a_spike_that_comes_again_is_the_models_own():
    assert only(world(refused("reproduced", check="loss_spike")), "numerics").reason_code == "reproduced_in_place"


def test_failed_validation_quarantines_the_node():
    decision = only(world(refused("failed_validation")), "numerics")
    assert action(decision, SetNodeState) == SetNodeState(node_id="n1", to=NodeState.QUARANTINED)


def test_a_persistent_error_waits_for_other_hardware():
    found = world(refused("persistent"))
    decision = only(found, "numerics")
    assert (decision.choice, decision.actions) == ("disambiguate", ())
    assert ("n1", 0) in suspected(found, CONFIG)


def test_a_step_that_other_hardware_commits_proves_the_device_wrong():
    decision = only(world(refused("persistent"), committed_step=51), "numerics")
    assert (decision.choice, decision.reason_code) == ("quarantine", "refuted_elsewhere")
    assert action(decision, SetNodeState).to is NodeState.QUARANTINED
    assert action(decision, SettleSignals).signal_ids == ("sig_1",)


def test_a_step_that_other_hardware_refuses_too_blames_software_or_data_and_no_device():
    found = world(refused("persistent", 1, replica=0), refused("persistent", 2, replica=1), exited(16, replica=1))
    decision = only(found, "restart")
    assert (decision.choice, decision.reason_code) == ("restart", "numerics_reproduced")
    assert "the software or the data is to blame" in decision.sentence
    assert {"sig_1", "sig_2"} <= set(action(decision, SettleSignals).signal_ids)
    assert not actions(decision, SetNodeState)
    assert decisions(found, rule="numerics") == ()


def test_two_ranks_of_one_replica_are_one_witness():
    first = refused("persistent", 1)
    second = change(first, id="sig_2", rank=1, device_index=1)
    assert [d.choice for d in decisions(world(first, second), rule="numerics")] == ["disambiguate", "disambiguate"]
    assert decisions(world(first, second), rule="restart") == ()


@pytest.mark.parametrize(
    ("code", "choice", "node_state"),
    [
        (16, "evict_and_replace", None),
        (17, "evict_and_replace", NodeState.QUARANTINED),
        (70, "evict_and_replace", None),
    ],
)
def test_each_exit_code_has_its_decision(code: int, choice: str, node_state: NodeState | None):
    decision = only(world(exited(code)), "replica_failure")
    assert decision.choice == choice
    assert [move.to for move in actions(decision, SetNodeState)] == ([node_state] if node_state else [])
    # 16 and 17 start elsewhere; any other exit may come back where it was.
    home = {placement.node_id for placement in action(decision, StartReplica).placements}
    assert home == ({"n3"} if code in (16, 17) else {"n1"})


@pytest.mark.parametrize("culprit", [16, 17, 70])
def test_the_rank_that_says_why_speaks_for_its_replica(culprit: int):
    decision = only(world(exited(71, 1, rank=0), exited(culprit, 2, rank=1)), "replica_failure")
    assert decision.evidence["exit_code"] == culprit
