"""Half of the replicas or fewer stand still at once for what they share: the others go on without them, and nobody is
ended for it."""

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import following_view
from controlplane.policy.failures import find_failures
from controlplane.policy.plan import KEY_MAX, AnnounceView, SetReplicaState, StopReplica, is_key, stored_key
from controlplane.policy.snapshot import JobSnapshot, LearnedTimes, SignalFact
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
    only,
    signal,
    spec,
)
from tests.unit.policy.test_one_of_many import fleet

OVER_S = CONFIG.few_limit_s + 1.0 + 1.0
"""Beside its limit a step, of a second here, and a little."""


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
    assert "started again if it is late for 61 s" in decision.sentence
    assert decision.evidence["late"] == len(few) and decision.evidence["of"] == replicas


def test_they_are_told_in_few_words_however_many_they_are_and_however_often_they_were_out():
    world = stalled(1000, range(500))
    assert len(only(world, "leave_out").sentence) < 500
    often = change(world, replicas=tuple(change(r, times_out=2, out_s=NOW_S - 60.0) for r in world.replicas))
    decision = only(often, "leave_out")
    assert len(decision.sentence) < 600
    assert "500 replicas of them were left out before" in decision.sentence


def test_the_same_replicas_left_out_again_are_another_decision_however_many_they_are():
    world = stalled(100, range(50))
    later = change(world, job=change(world.job, epoch=world.job.epoch + 4))
    first, again = only(world, "leave_out"), only(later, "leave_out")
    assert stored_key(first.key) != stored_key(again.key)
    long = "admit:" + ",".join(f"{index}.1" for index in range(100))
    assert stored_key(f"{long}:5") != stored_key(f"{long}:6") and len(stored_key(f"{long}:5")) == KEY_MAX
    assert stored_key("install:1:7") == "install:1:7"
    assert is_key(long[:KEY_MAX], long), "as a release before kept it"


def out_of(world: JobSnapshot, out: range) -> JobSnapshot:
    """After that decision: the newest view is without them, installed, and may take them back."""
    gone = tuple(each for each in world.replicas if each.index in out)
    stay = tuple(each for each in world.replicas if each.index not in out)
    view = following_view(world, stay, "stalled", left_out=gone)
    members = tuple(
        change(each, state=ReplicaState.SUSPECT, state_since_s=NOW_S - 1.0, in_view=False, contributing=False)
        if each in gone
        else each
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


def went_on(index: int, ago_s: float, **fields: float) -> SignalFact:
    return late(index, phase_since_s=NOW_S - ago_s, read_s=NOW_S, **fields)


def kinds(world: JobSnapshot, config: PolicyConfig = CONFIG) -> dict[int, str]:
    """Of each failure, by replica."""
    return {failure.replica.index: failure.kind for failure in find_failures(world, config)}


def test_those_that_stay_behind_when_some_get_loose_keep_their_time_and_the_last_one_too():
    """A switch that is back lets each connection go on by its own back-off."""
    world = out_of(stalled(24, range(3), seen_s=NOW_S - 20.0), range(3))
    some = change(world, signals=(went_on(0, 6.0, seen_s=NOW_S - 20.0), *world.signals[1:]))
    assert kinds(some) == {1: "stalled", 2: "stalled"}
    last = change(world, signals=world.signals[2:])
    assert kinds(last) == {2: "stalled"}, "its finding alone is open yet"
    over = change(world, signals=(late(2, seen_s=NOW_S - OVER_S),))
    assert kinds(change(over, replicas=suspect_since(world, NOW_S - OVER_S))) == {2: "hang"}


def working(world: JobSnapshot, *indexes: int) -> JobSnapshot:
    """These are at work in a step, too."""
    works = (
        change(r, working_since_s=NOW_S - 14.0, waiting=False) if r.index in indexes else r for r in world.replicas
    )
    return change(world, replicas=tuple(works))


def suspect_since(world: JobSnapshot, since_s: float):
    return tuple(change(r, state_since_s=since_s) if r.state is ReplicaState.SUSPECT else r for r in world.replicas)


def test_who_gets_loose_has_its_longest_step_to_end_and_never_more_than_the_limit_of_most():
    def at(age_s: float, step_max_s: float) -> dict[int, str]:
        world = out_of(stalled(24, range(3), seen_s=NOW_S - age_s), range(3))
        world = change(world, replicas=suspect_since(world, NOW_S - age_s), learned=LearnedTimes(step_max_s=step_max_s))
        return kinds(world)

    assert set(at(89.0, 30.0).values()) == {"stalled"}
    assert set(at(91.0, 30.0).values()) == {"hang"}
    assert set(at(CONFIG.common_limit_s + 1.0, 6000.0).values()) == {"hang"}


def test_one_that_was_left_out_before_it_was_late_is_late_for_itself():
    """As one that is stuck, which its agent then finds late."""
    world = out_of(stalled(24, range(1)), range(1))
    assert kinds(change(world, replicas=suspect_since(world, NOW_S - 9.0))) == {0: "hang"}


def test_newcomers_have_a_time_of_their_own():
    world = out_of(stalled(24, range(2), seen_s=NOW_S - OVER_S), range(2))
    world = change(world, replicas=suspect_since(world, NOW_S - OVER_S + 1.0))
    world = change(working(world, 0, 1, 5, 6), signals=(*world.signals, late(5), late(6)))
    assert kinds(world) == {0: "hang", 1: "hang", 5: "stalled", 6: "stalled"}


@pytest.mark.parametrize("section", ["checkpointing", "out_of_section"])
def test_what_is_late_elsewhere_takes_nothing_from_them(section):
    world = stalled(24, range(2))
    other = late(9, seen_s=NOW_S - 1.0)
    other = change(other, evidence={**other.evidence, "section": section})
    at_work = tuple(
        change(r, working_since_s=NOW_S - 5.0, waiting=False) if r.index in (9, 10) else r for r in world.replicas
    )
    world = change(world, replicas=at_work, signals=(*world.signals, other))
    assert {index: kind for index, kind in kinds(world).items() if index != 9} == {0: "stalled", 1: "stalled"}


def test_a_trickle_of_findings_is_not_waited_for_without_end():
    world = stalled(24, range(6))
    signals = tuple(late(index, seen_s=NOW_S - 5.1 + index) for index in range(6))
    trickle = change(working(world, 7), signals=signals)
    assert len(actions(only(trickle, "leave_out"), SetReplicaState)) == 6, "the grace of the first is over"
    fewer = change(trickle, signals=signals[1:])
    assert decisions(fewer, rule="leave_out") == ()


def test_while_some_are_out_one_more_that_is_late_stops_nobody():
    world = out_of(stalled(24, range(12)), range(12))
    works = tuple(
        change(r, working_since_s=NOW_S - 14.0, waiting=False) if r.index == 12 else r for r in world.replicas
    )
    world = change(world, replicas=works, signals=(*world.signals, late(12)))
    assert decisions(world, rule="common_stall") == ()
    assert {each.replica for each in actions(only(world, "leave_out"), SetReplicaState)} == {12}


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
    assert kinds(change(world, signals=(late(0), change(late(1), node_id="n0")))) == {0: "hang", 1: "hang"}


def test_without_a_limit_they_are_hangs_as_any():
    assert kinds(stalled(24, range(2)), change(CONFIG, few_limit_s=0.0)) == {0: "hang", 1: "hang"}


def test_where_too_few_would_be_left_to_go_on_all_wait():
    world = change(stalled(4, range(2)), job=job(spec=change_min(4, least=3)))
    assert decisions(world, rule="leave_out") == () == decisions(world, rule="restart")
    decision = only(world, "common_stall")
    assert decision.evidence["late"] == 2
    assert (
        "if it lasts 61 s they are ended as hangs (without them fewer than 3 replicas would be left"
        in decision.sentence
    )
    over = change(stalled(4, range(2), seen_s=NOW_S - OVER_S), job=world.job)
    assert decisions(over, rule="common_stall") == () and decisions(over, rule="replica_failure")


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
