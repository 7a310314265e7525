"""Unrelated failures of one moment: one view, a decision for each cause, each with its own name and price."""

import pytest

from controlplane.policy.apart import MOST_APART
from controlplane.policy.budget import entries
from controlplane.policy.causes import NEAR_S
from controlplane.policy.decide import claims
from controlplane.policy.plan import (
    AnnounceView,
    GatherStacks,
    SetJobState,
    SetNodeState,
    SetReplicaState,
    SettleSignals,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import LearnedTimes
from controlplane.protocol.diagnostics import STACKS
from tests.unit.policy.builders import NOW_S, actions, change, decisions, job, node, signal, spec
from tests.unit.policy.test_one_of_many import fleet

RULE = "replica_failure"


def killed(index: int, number: int, **other):
    place = {"node_id": f"n{index}", "device_index": 0} | other
    return signal("rank_exit", number, replica=index, incarnation=1, rank=0, value=-9.0, **place)


def hangs(index: int, number: int):
    said = {"phase": "compute", "step": 7, "age_s": 25.0}
    return signal(
        "rank_overdue", number, replica=index, incarnation=1, rank=0, node_id=f"n{index}", value=25.0, threshold=20.0,
        evidence=said,
    )  # fmt: skip


def broken(index: int, number: int, **told):
    return signal("outer_error", number, replica=index, incarnation=1, rank=0, **told)


def answers(*signals, replicas: int = 12, spares: int = 0):
    world = fleet(replicas, signals=signals)
    more = tuple(node(replicas + 1 + n) for n in range(spares))
    return decisions(fleet(replicas, signals=signals, nodes=(*world.nodes, *more)), rule=RULE)


def test_each_cause_has_its_decision_with_the_name_of_its_machine_and_one_view_serves_them_all():
    first, second = answers(killed(2, 1), killed(7, 2), spares=2)
    assert first.title == "Rank 0 of replica 2 on node-2 was killed (SIGKILL)"
    assert second.title == "Rank 0 of replica 7 on node-7 was killed (SIGKILL)"
    assert "replica 7" not in first.sentence
    assert "Replica 2" not in second.sentence
    (announced,) = actions(first, AnnounceView)
    assert {2, 7}.isdisjoint(member.replica for member in announced.view.members)
    assert "replica 2" in announced.view.reason
    assert "replica 7" in announced.view.reason
    assert not actions(second, AnnounceView)
    assert len(actions(first, SetJobState)) + len(actions(second, SetJobState)) <= 1
    assert [a.replica for d in (first, second) for a in actions(d, StartReplica)] == [2, 7]
    assert not claims(first) & claims(second)
    assert "10 replicas continue" in first.sentence
    assert "10 replicas continue" in second.sentence


def test_the_budget_is_charged_for_the_starts_and_not_for_the_view_that_makes_room_for_them():
    """One device is free, and replica 2 may not have it: its last start came to nothing."""
    world = fleet(12, signals=(killed(2, 1), killed(7, 2)))
    slots = tuple(change(r, failed_starts=1 if r.index == 2 else 0) for r in world.replicas)
    snapshot = change(world, replicas=slots)
    told = decisions(snapshot, rule=RULE)
    assert [[a.replica for a in actions(decision, StartReplica)] for decision in told] == [[7], []]
    assert actions(told[0], AnnounceView)
    charged = [entry.rung for decision in told for entry in entries(decision, snapshot) if entry.charged]
    assert len(charged) == 1


def test_the_price_of_the_moment_is_told_once_in_parts():
    apart = answers(killed(2, 1), killed(7, 2), spares=2)
    # The same two ends with one finding in common are one cause, answered by one decision.
    (whole,) = answers(killed(2, 1), killed(7, 2, node_id="n2"), spares=2)
    assert sum(decision.cost_gpu_s for decision in apart) == pytest.approx(whole.cost_gpu_s)
    for decision, other in zip(apart, ("replica 7", "replica 2"), strict=True):
        assert decision.evidence["answered_with"] == other
        wait = next(a for a in decision.alternatives if a.action == "restart")
        assert wait.cost_gpu_s == pytest.approx(
            next(a for a in whole.alternatives if a.action == "restart").cost_gpu_s / 2
        )
    assert "answered_with" not in whole.evidence


def test_ends_on_one_node_at_one_time_are_one_decision():
    (decision,) = answers(killed(2, 1), killed(7, 2, node_id="n2"))
    assert [stop.replica for stop in actions(decision, StopReplica)] == [2, 7]
    assert decision.title == "Replicas 2 and 7 on node-2 failed at once"


def test_a_broken_exchange_is_settled_by_the_decision_that_carries_the_view():
    first, second = answers(killed(2, 1), killed(7, 2), broken(3, 3))
    assert [set(a.signal_ids) for a in actions(first, SettleSignals)] == [{"sig_1", "sig_3"}]
    assert [set(a.signal_ids) for a in actions(second, SettleSignals)] == [{"sig_2"}]


def test_what_hangs_is_looked_at_before_the_view_of_another_cause_ends_it():
    stacks, first, second = answers(killed(2, 1), hangs(7, 2))
    assert stacks.choice == "collect_stacks"
    assert [(a.replica, a.look) for a in stacks.actions] == [
        (7, GatherStacks(replica=7, incarnation=1).look),
        (-1, STACKS),
    ]
    assert "replica 7" in stacks.sentence
    assert stacks.signal_ids == ("sig_2",)
    assert actions(first, AnnounceView)
    assert not actions(first, GatherStacks)
    assert not actions(second, GatherStacks)
    assert [a.replica for a in actions(second, StopReplica)] == [7]


def test_two_that_hang_for_themselves_ask_the_whole_job_for_its_stacks_once():
    told = answers(hangs(2, 1), hangs(7, 2))
    asked = [a.replica for decision in told for a in actions(decision, GatherStacks)]
    assert sorted(asked) == [-1, 2, 7]
    order = [decision.choice == "collect_stacks" for decision in told]
    assert order == [True, False, False]


def test_more_causes_at_once_than_a_person_can_read_are_taken_for_one():
    few = [killed(index, index + 1) for index in range(MOST_APART)]
    assert len(answers(*few)) == MOST_APART
    (decision,) = answers(*few, killed(11, 20))
    assert decision.title == "5 replicas on 5 nodes failed at once"


def test_two_cards_of_one_node_that_fell_at_different_times_are_two_causes_and_the_node_leaves_once():
    """Both blame node 2; the first decision takes it out of service."""
    world = fleet(12)
    halves = {2: 0, 7: 1}
    split = tuple(
        change(r, placements=tuple(change(p, node_id="n2", device_index=halves[r.index]) for p in r.placements[:1]))
        if r.index in halves
        else r
        for r in world.replicas
    )
    fell = tuple(
        signal("xid", n + 1, node_id="n2", device_index=n, value=79.0, seen_s=NOW_S - 1.0 - n * (NEAR_S + 5.0))
        for n in halves.values()
    )
    told = decisions(change(world, replicas=split, signals=fell), rule=RULE)
    assert [[a.replica for a in actions(decision, StopReplica)] for decision in told] == [[2], [7]]
    moved = [a.node_id for decision in told for a in actions(decision, SetNodeState)]
    assert moved == ["n2"]


def test_two_nodes_out_of_reach_for_themselves_are_left_out_by_one_view_and_told_apart():
    silent = tuple(
        signal("node_silent", n, node_id=f"n{n}", value=3.0, threshold=2.0, seen_s=NOW_S - 1.0) for n in (2, 7)
    )
    named = tuple(broken(index, 10 + index, evidence={"suspect_replica": index + 1}) for index in (1, 6))
    cut_off = {
        "signals": silent + named,
        "fleet_devices": 1000,
        "job": job(spec=spec(nodes=12), progressed_s=NOW_S - 3.0),
        "learned": LearnedTimes(step_s=25.0),
    }
    first, second = decisions(fleet(12, **cut_off), rule="leave_out")
    (announced,) = actions(first, AnnounceView)
    assert {2, 7}.isdisjoint(member.replica for member in announced.view.members)
    assert [member.replica for member in announced.view.left_out] == [2, 7]
    assert not actions(second, AnnounceView)
    assert [[a.replica for a in actions(d, SetReplicaState)] for d in (first, second)] == [[2], [7]]
    assert [set(a.signal_ids) for d in (first, second) for a in actions(d, SettleSignals)] == [{"sig_11", "sig_16"}]
    assert ("node-2" in first.sentence, "node-7" in first.sentence) == (True, False)
    assert ("node-2" in second.sentence, "node-7" in second.sentence) == (False, True)
    assert first.key != second.key
