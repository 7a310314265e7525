"""Half of the replicas or fewer stand still at once for what they share: the others go on without them, and nobody is
ended for it."""

import pytest

from controlplane.policy.facts import following_view
from controlplane.policy.failures import find_failures
from controlplane.policy.plan import AnnounceView, SetReplicaState, StopReplica
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.protocol.states import ReplicaState
from tests.unit.policy.builders import (
    CONFIG,
    NOW_S,
    action,
    actions,
    change,
    decisions,
    install_of,
    job,
    node,
    only,
    signal,
    spec,
)
from tests.unit.policy.test_one_of_many import fleet

OVER_S = CONFIG.few_limit_s + 1.0


def late(index: int, *, seen_s: float = NOW_S - 2.0, silent_s: float = 0.2, **evidence: float) -> SignalFact:
    return signal(
        "rank_overdue",
        100 * index + 1,
        replica=index,
        incarnation=1,
        rank=0,
        node_id=f"n{index}",
        seen_s=seen_s,
        value=12.0,
        threshold=11.0,
        evidence={"section": "step", "phase": "compute", "silent_s": silent_s, "step": 4, **evidence},
    )


def stalled(replicas: int, few: range, **fields: float) -> JobSnapshot:
    """`few` of so many are late; the others wait for them in the exchange."""
    world = fleet(replicas, signals=tuple(late(index, **fields) for index in few))
    members = tuple(
        change(each, working_since_s=NOW_S - 14.0 if each.index in few else None, waiting=each.index not in few)
        for each in world.replicas
    )
    return change(world, replicas=members, job=job(spec=change_min(replicas)))


def change_min(replicas: int, least: int = 1):
    found = spec(nodes=replicas)
    return change(found, resources=change(found.resources, min_replicas=least))


@pytest.mark.parametrize(("replicas", "few"), [(4, range(2)), (24, range(8)), (1000, range(500))])
def test_half_or_fewer_are_left_out_in_one_view_and_nothing_of_them_is_ended(replicas, few):
    world = stalled(replicas, few)
    assert decisions(world, rule="replica_failure") == () == decisions(world, rule="restart")
    assert decisions(world, rule="common_stall") == ()
    decision = only(world, "leave_out")
    assert (decision.choice, decision.reason_code) == ("leave_out", "stalled")
    assert len(action(decision, AnnounceView).view.members) == replicas - len(few)
    moved = actions(decision, SetReplicaState)
    assert {each.replica for each in moved} == set(few) and {each.to for each in moved} == {ReplicaState.SUSPECT}
    assert not actions(decision, StopReplica)
    assert decision.title == f"{len(few)} of {replicas} replicas are late in step at once"
    assert "started again if it is late for 60 s" in decision.sentence
    assert decision.evidence["late"] == len(few) and decision.evidence["of"] == replicas


def test_they_are_told_in_few_words_however_many_they_are():
    assert len(only(stalled(1000, range(500)), "leave_out").sentence) < 500


def out_of(world: JobSnapshot, out: range) -> JobSnapshot:
    """After that decision: the newest view is without them, installed, and may take them back."""
    gone = tuple(each for each in world.replicas if each.index in out)
    stay = tuple(each for each in world.replicas if each.index not in out)
    view = following_view(world, stay, "stalled", left_out=gone)
    members = tuple(
        change(each, state=ReplicaState.SUSPECT, in_view=False, contributing=False) if each in gone else each
        for each in world.replicas
    )
    return change(world, view=view, replicas=members, install=install_of(view), view_since_s=NOW_S - 1.0)


@pytest.mark.parametrize(("replicas", "few"), [(4, range(2)), (24, range(8)), (24, range(12))])
def test_out_of_the_view_they_are_let_stand_until_their_limit_is_over(replicas, few):
    world = out_of(stalled(replicas, few), few)
    assert decisions(world, rule="replica_failure") == () == decisions(world, rule="leave_out")
    assert decisions(world, rule="common_stall") == (), "of those that are left nobody is late"
    over = out_of(stalled(replicas, few, seen_s=NOW_S - OVER_S), few)
    ended = {each.replica for found in decisions(over, rule="replica_failure") for each in actions(found, StopReplica)}
    assert ended == set(few)


def test_those_that_are_back_and_catch_up_do_not_make_the_rest_a_stall_of_most():
    few, back = range(12), range(8)
    over = {"phase_since_s": NOW_S - 0.5, "read_s": NOW_S}
    world = out_of(stalled(24, few), few)
    signals = (*(late(index, **over) for index in back), *(late(index) for index in range(8, 12)))
    members = tuple(
        change(each, state=ReplicaState.CATCHING_UP, in_view=True) if each.index in back else each
        for each in world.replicas
    )
    view = following_view(world, tuple(each for each in members if each.index not in range(8, 12)), "back")
    world = change(world, replicas=members, view=view, signals=signals, install=install_of(view))
    assert decisions(world, rule="common_stall") == () == decisions(world, rule="replica_failure")
    assert {f.kind for f in find_failures(world, CONFIG)} == {"stalled"}


def test_one_that_stays_behind_when_the_others_go_on_is_late_by_itself():
    few = range(3)
    gone_on = {"phase_since_s": NOW_S - 7.0, "read_s": NOW_S}
    world = out_of(stalled(24, few), few)
    signals = (late(0, **gone_on), late(1, **gone_on), late(2))
    found = find_failures(change(world, signals=signals), CONFIG)
    assert [(f.replica.index, f.kind) for f in found] == [(2, "hang")]


def test_more_that_may_be_late_too_are_waited_for_and_go_out_with_them():
    world = stalled(24, range(2), seen_s=NOW_S - 0.5)
    third = tuple(change(each, working_since_s=NOW_S - 14.0, waiting=False) if each.index == 2 else each
                  for each in world.replicas)  # fmt: skip
    more = change(world, replicas=third)
    assert decisions(more, rule="leave_out") == () == decisions(more, rule="replica_failure")
    assert only(world, "leave_out"), "all others wait: nobody else can be late"
    all_three = change(more, signals=(*more.signals, late(2, seen_s=NOW_S - 0.1)))
    assert len(actions(only(all_three, "leave_out"), SetReplicaState)) == 3


def test_one_that_is_late_a_moment_after_them_joins_their_incident_by_their_findings():
    world = out_of(stalled(24, range(2)), range(2))
    works = tuple(
        change(each, working_since_s=NOW_S - 14.0, waiting=each.index not in (0, 1, 5)) for each in world.replicas
    )
    world = change(world, replicas=works, signals=(*world.signals, late(5)))
    decision = only(world, "leave_out")
    assert {each.replica for each in actions(decision, SetReplicaState)} == {5}
    assert set(decision.signal_ids) == {found.id for found in world.signals}


def test_processes_that_say_nothing_are_ended_at_once_though_two_of_them_hang():
    world = stalled(24, range(2), silent_s=9.0)
    found = decisions(world, rule="replica_failure")
    assert {each.replica for one in found for each in actions(one, StopReplica)} == {0, 1}


def test_two_replicas_of_one_node_are_not_many():
    """The node may be the cause, and it is theirs."""
    world = stalled(24, range(2))
    homes = world.replicas[0].placements
    world = change(
        world, replicas=(world.replicas[0], change(world.replicas[1], placements=homes), *world.replicas[2:])
    )
    assert {f.kind for f in find_failures(world, CONFIG)} == {"hang"}


def test_where_too_few_would_be_left_to_go_on_all_wait():
    world = change(stalled(4, range(2)), job=job(spec=change_min(4, least=3)))
    assert decisions(world, rule="leave_out") == () == decisions(world, rule="restart")
    assert only(world, "common_stall").evidence["late"] == 2


def test_one_whose_agents_words_are_late_is_not_called_stopped():
    """Its newest word came 2.5 s ago and was fresh then; its agent is heard, by what else it sends."""
    world = stalled(24, range(2), read_s=NOW_S - 2.5)
    said = tuple(change(each, silent_s=2.5) if each.index < 2 else each for each in world.replicas)
    assert {f.kind for f in find_failures(change(world, replicas=said), CONFIG)} == {"stalled"}
    heard = change(stalled(24, range(2), read_s=NOW_S - 0.5), replicas=said)
    assert {f.evidence["cause"] for f in find_failures(heard, CONFIG)} == {"frozen"}
    lost = change(heard, nodes=tuple(change(each, silent_s=2.4) if each.id in ("n0", "n1") else each
                                     for each in heard.nodes))  # fmt: skip
    assert {f.kind for f in find_failures(lost, CONFIG)} == {"stalled"}
    assert node(0).silent_s is not None
