"""A slow one that is relieved is looked at again before its place is taken: it may be as fast as the others by now."""

import pytest

from controlplane.policy.plan import AnnounceView, Relieve, SetReplicaState, StopReplica
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.membership import Install
from controlplane.protocol.states import JobState, ReplicaState

from .builders import (
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    action,
    actions,
    change,
    decisions,
    only,
    view_of,
    with_replica,
)
from .test_relief import LONG, caught_up, job, relieved, slow, swapped

INTERVAL_S = LONG.resiliency.stragglers.interval_s


def kept(world: JobSnapshot) -> JobSnapshot:
    """Replica 1 keeps its place, and 3 is there."""
    return with_replica(world, 1, relieved="")


def dismissed(world: JobSnapshot) -> JobSnapshot:
    return with_replica(kept(world), 3, relieved="not needed")


def innocent() -> JobSnapshot:
    found = slow().signals[0]
    return caught_up(signals=(change(found, evidence=found.evidence | {"cause": "data"}),))


@pytest.mark.parametrize(
    "world",
    [relieved(signals=()), caught_up(signals=()), innocent()],
    ids=["its successor starts", "its successor has caught up", "it waits for its input"],
)
def test_one_that_is_slow_no_more_keeps_its_place(world: JobSnapshot) -> None:
    decision = only(world, "swap")
    assert (decision.choice, decision.reason_code) == ("keep", "slow_no_more")
    assert (action(decision, Relieve).replica, action(decision, Relieve).reason) == (1, "")
    assert len(decision.actions) == 1


def test_one_that_a_person_ordered_out_leaves_however_fast_it_is() -> None:
    world = with_replica(caught_up(signals=()), 1, ordered_out="ada: rack 7")
    assert only(world, "swap").choice == "swap"


def test_what_was_measured_too_long_ago_takes_no_place_and_is_measured_again() -> None:
    found = change(slow().signals[0], seen_s=NOW_S - 4.0 * INTERVAL_S)
    assert decisions(caught_up(signals=(found,)), rule="swap") == ()
    again = change(found, renewed_s=NOW_S - INTERVAL_S / 2.0)
    assert only(caught_up(signals=(again,)), "swap").choice == "swap"


@pytest.mark.parametrize(
    "world", [kept(relieved(signals=())), kept(caught_up(signals=()))], ids=["starts", "stands by"]
)
def test_its_successor_is_not_needed_then(world: JobSnapshot) -> None:
    decision = only(world, "swap")
    assert (decision.choice, decision.reason_code) == ("dismiss", "not_needed")
    assert action(decision, Relieve).replica == 3
    assert "3 replicas were placed, and none of them leaves" in decision.sentence


def test_one_that_is_not_needed_joins_no_view_and_ends_where_it_starts() -> None:
    world = with_replica(dismissed(relieved(signals=())), 3, joined_ranks=2)
    world = change(world, job=job(spec=LONG, progressed_s=NOW_S - 0.5))
    assert decisions(world, rule="admit_joiner") == ()
    decision = only(world, "swap")
    assert (decision.choice, action(decision, StopReplica).replica) == ("retire", 3)
    assert not actions(decision, AnnounceView)


def test_one_that_stands_by_and_is_not_needed_leaves_the_view_before_it_ends() -> None:
    decision = only(dismissed(caught_up(signals=())), "swap")
    assert [m.replica for m in action(decision, AnnounceView).view.members] == [0, 1, 2]
    assert not actions(decision, StopReplica)
    assert "Enough others hold the state" in decision.sentence
    view = change(
        view_of(*((index, 1, CONTRIBUTOR) for index in range(3)), epoch=4),
        left_out=(view_of((3, 1, CONTRIBUTOR)).members[0],),
    )
    after = change(
        dismissed(caught_up(signals=())),
        view=view,
        install=Install("job_1", 1, 4, 52, (0, 1, 2)),
        installed_s=NOW_S - 2.0,
        job=job(spec=LONG, epoch=4, progressed_s=NOW_S - 1.0),
    )
    after = with_replica(after, 3, state=ReplicaState.SUSPECT, standby=False, in_view=False, times_out=1)
    ended = only(after, "swap")
    assert (action(ended, StopReplica).replica, action(ended, SetReplicaState).to) == (3, ReplicaState.EVICTED)


def test_one_that_was_promoted_meanwhile_stays_and_no_more_leave_than_are_too_many() -> None:
    """Replica 2 has died; 3 computes in its place."""
    world = with_replica(dismissed(caught_up(signals=())), 3, state=ReplicaState.ACTIVE, contributing=True)
    world = change(world, install=Install("job_1", 1, 3, 50, (0, 1, 3)))
    world = with_replica(world, 2, state=ReplicaState.EVICTED, in_view=False, contributing=False, stopped=True)
    decision = only(world, "swap")
    assert (decision.choice, action(decision, Relieve).replica) == ("keep", 3)
    assert decisions(with_replica(world, 3, relieved=""), rule="swap") == ()


def test_with_as_many_as_were_placed_nobody_is_dismissed() -> None:
    world = kept(caught_up(signals=()))
    gone = with_replica(world, 2, state=ReplicaState.EVICTED, in_view=False, contributing=False, stopped=True)
    assert decisions(gone, rule="swap") == ()
    recovering = change(world, job=job(spec=LONG, epoch=3, state=JobState.RECOVERING, progressed_s=NOW_S - 0.5))
    assert only(recovering, "swap").choice == "dismiss"


def test_who_is_left_out_is_not_ended_for_a_place_that_nobody_has_taken_yet() -> None:
    """1 was relieved when its node fell silent; 3 catches up yet, and whom it was to relieve stays after all."""
    view = view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR), (3, 1, JOINER), epoch=4)
    view = change(view, left_out=(view_of((1, 1, CONTRIBUTOR)).members[0],))
    world = change(swapped(), view=view, install=Install("job_1", 1, 4, 52, (0, 2)))
    world = with_replica(world, 3, state=ReplicaState.CATCHING_UP, contributing=False, relieved="not needed")
    decision = only(world, "swap")
    assert (decision.choice, action(decision, Relieve).replica, action(decision, Relieve).reason) == ("stay", 3, "")
    assert not actions(decision, StopReplica)
    assert only(swapped(), "swap").choice == "retire", "its place is taken"


def test_of_two_that_are_not_needed_the_one_that_is_less_far_is_dismissed() -> None:
    starts = with_replica(
        kept(caught_up(signals=())), 3, state=ReplicaState.CATCHING_UP, standby=False, state_since_s=NOW_S - 30.0
    )
    later = change(
        starts.replica_by_index[3],
        index=4,
        state=ReplicaState.FORMING,
        in_view=False,
        joined_ranks=0,
        state_since_s=NOW_S - 60.0,
    )
    world = change(starts, replicas=(*starts.replicas, later))
    assert action(only(world, "swap"), Relieve).replica == 4
