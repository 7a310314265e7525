"""Who is ordered out is relieved: another starts beside it. Where none can, or ordered again, it leaves first."""

import pytest

from controlplane.policy.budget import Rung, entries
from controlplane.policy.plan import (
    AnnounceView,
    Relieve,
    SetReplicaState,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import BudgetFact, JobSnapshot
from controlplane.protocol.membership import Install
from controlplane.protocol.spec import Training
from controlplane.protocol.states import JobState, NodeState, ReplicaState

from .builders import (
    CONTRIBUTOR,
    NOW_S,
    action,
    actions,
    attempt,
    change,
    decisions,
    install_of,
    job,
    node,
    only,
    replica,
    running,
    spec,
    starting,
    view_of,
    with_replica,
)
from .test_relief import LONG, TOLD, WHY, died, relieved


def ordered(*, spares: int = 1, **fields: object) -> JobSnapshot:
    """Replica 1 trains, and was ordered out just now."""
    world = running(spares=spares, attempt=TOLD, job=job(spec=LONG), **fields)
    return with_replica(world, 1, relieved=WHY, ordered_out=WHY, ordered_s=NOW_S - 0.1)


SHRINKS = spec(min_replicas=1, training=Training(steps=10_000, global_batch=6))


def may_shrink(world: JobSnapshot) -> JobSnapshot:
    """One replica is enough for this job."""
    return change(world, job=change(world.job, spec=SHRINKS))


def test_an_order_starts_another_beside_it_and_charges_nothing() -> None:
    world = ordered()
    decision = only(world, "ordered_eviction")
    assert (decision.choice, decision.reason_code) == ("start_beside", "ordered")
    assert action(decision, StartReplica).replica == 3
    assert not actions(decision, StopReplica) and not actions(decision, AnnounceView)
    assert [(e.rung, e.charged) for e in entries(decision, world)] == [(Rung.REPLICA, False)]
    assert decision.title == "Replica 1 evicted at the request of ada"


def test_a_spent_budget_keeps_no_order_from_being_carried_out() -> None:
    assert only(ordered(budget=BudgetFact(restarts_total=10**6)), "ordered_eviction").choice == "start_beside"


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (ordered(spares=0), "no device is free for another replica"),
        (change(ordered(), attempt=attempt()), "its ranks were started by an older release"),
        (with_replica(ordered(), 1, relieved=""), "It leaves at once, as requested"),
    ],
)
def test_where_nothing_is_started_beside_it_it_leaves_the_view_first_and_nothing_of_it_ends(
    world: JobSnapshot, why: str
) -> None:
    decision = only(may_shrink(world), "ordered_eviction")
    assert (decision.choice, decision.reason_code) == ("leave", "ordered")
    assert why in decision.sentence
    view = action(decision, AnnounceView).view
    assert [member.replica for member in view.members] == [0, 2] and view.waits(1, 1)
    assert action(decision, Relieve).reason == "" and not actions(decision, StopReplica)
    assert action(decision, SetReplicaState).to is ReplicaState.SUSPECT
    assert decision.title == "Replica 1 evicted at the request of ada"
    assert not any(entry.charged for entry in entries(decision, world))


def left(*, committed: bool) -> JobSnapshot:
    """The view without 1, which was ordered out twice, is installed."""
    view = view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR), epoch=3)
    view = change(view, left_out=(view_of((1, 1, CONTRIBUTOR)).members[0],))
    world = change(
        may_shrink(ordered(spares=0)),
        view=view,
        install=Install("job_1", 1, 3, 52, (0, 2)),
        installed_s=NOW_S - 2.0,
        job=job(spec=SHRINKS, epoch=3, progressed_s=NOW_S - (1.0 if committed else 3.0), state=JobState.RECOVERING),
    )
    return with_replica(
        world, 1, relieved="", state=ReplicaState.SUSPECT, contributing=False, in_view=False, waiting=True, times_out=1
    )


def test_it_ends_when_the_view_without_it_has_committed_a_step_and_not_before() -> None:
    assert decisions(left(committed=False), rule="ordered_eviction") == ()
    decision = only(left(committed=True), "ordered_eviction")
    assert (decision.choice, action(decision, StopReplica).replica) == ("end", 1)
    assert action(decision, SetReplicaState).to is ReplicaState.EVICTED
    assert "the view without it has committed a step" in decision.sentence
    assert not actions(decision, Relieve), "its slot is to be filled again"


def test_it_is_not_taken_back_meanwhile_though_it_waits_and_is_heard() -> None:
    world = left(committed=True)
    assert decisions(world, rule="admit_joiner") == ()
    back = with_replica(world, 1, ordered_out="", ordered_s=None)
    assert only(change(back, now_s=NOW_S + 60.0), "admit_joiner").reason_code != ""


def test_one_that_is_in_no_view_ends_at_once_for_nobody_waits_for_it() -> None:
    world = with_replica(
        ordered(), 1, relieved="", incarnation=2, state=ReplicaState.FORMING, contributing=False, in_view=False
    )
    decision = only(may_shrink(world), "ordered_eviction")
    assert (decision.choice, action(decision, StopReplica).incarnation) == ("end", 2)
    assert not actions(decision, AnnounceView)


def test_where_all_must_train_the_others_wait_for_another_and_it_ends_for_its_devices() -> None:
    world = with_replica(ordered(spares=0), 1, relieved="")
    decision = only(world, "ordered_eviction")
    assert decision.choice == "leave" and "they wait for another" in decision.sentence
    view = action(decision, AnnounceView).view
    held = change(world, view=view, view_since_s=NOW_S - 1.0, install=None, job=change(world.job, epoch=view.epoch))
    held = with_replica(held, 1, state=ReplicaState.SUSPECT, contributing=False, in_view=False)
    end = only(held, "ordered_eviction")
    assert (end.choice, action(end, StopReplica).replica) == ("end", 1)


def test_the_last_one_ends_first_as_no_view_can_leave_it_out() -> None:
    alone = change(replica(0), ordered_out=WHY, ordered_s=NOW_S)
    view = view_of((0, 1, CONTRIBUTOR))
    decision = only(running(replicas=(alone,), view=view, install=install_of(view)), "ordered_eviction")
    assert (decision.choice, action(decision, StopReplica).replica) == ("stop", 0)
    assert not actions(decision, AnnounceView) and not actions(decision, SetReplicaState)


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


def before_the_first_view(*, due: bool) -> JobSnapshot:
    """Replica 2 is to leave without a successor; all have come (`due`), or replica 1 may yet."""
    world = starting() if due else with_replica(starting(), 1, joined_ranks=0)
    return with_replica(world, 2, ordered_out=WHY, ordered_s=NOW_S - 0.1)


def test_who_is_in_the_view_that_this_pass_announces_does_not_end_in_it() -> None:
    world = before_the_first_view(due=True)
    assert [m.replica for m in action(only(world, "lifecycle"), AnnounceView).view.members] == [0, 1, 2]
    assert decisions(world, rule="ordered_eviction") == (), "it leaves as any member does: a view first"


def test_before_the_first_view_is_due_who_is_to_leave_ends_at_once() -> None:
    decision = only(before_the_first_view(due=False), "ordered_eviction")
    assert (decision.choice, action(decision, StopReplica).replica) == ("end", 2)
    assert decision.sentence.endswith("Nobody waits for it (there is no view yet), its processes end.")


@pytest.mark.parametrize("home", [NodeState.READY, NodeState.DRAINING])
def test_of_two_slots_that_are_emptied_together_the_one_with_a_place_is_waited_for(home: NodeState) -> None:
    """Replica 0 and its successor 3 end in one decision: 0 has no place any more, 3 may start again where it was."""
    gone = {"state": ReplicaState.EVICTED, "state_since_s": NOW_S, "contributing": False, "in_view": False}
    slots = (replica(0, **gone), replica(1), replica(2), replica(3, **gone))
    view = view_of((1, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR), epoch=3)
    held = running(
        replicas=slots,
        nodes=tuple(
            node(i, state=s, free=False) for i, s in enumerate((NodeState.DRAINING, *[NodeState.READY] * 2, home))
        ),
        view=view,
        view_since_s=NOW_S,
        install=None,
        attempt=TOLD,
        job=job(spec=spec(min_replicas=3, training=LONG.training), epoch=3, state=JobState.RECOVERING),
    )
    assert [d.reason_code for d in decisions(held, rule="restart")] == (
        [] if home is NodeState.READY else ["below_min_replicas"]
    )


def test_an_attempt_that_ends_as_people_had_too_many_leave_ends_by_request() -> None:
    """All that is missing was asked to leave and has no place: no failure, and charged to no budget."""
    gone = {"state": ReplicaState.EVICTED, "state_since_s": NOW_S, "contributing": False, "in_view": False}
    nodes = tuple(node(i, state=NodeState.READY if i == 1 else NodeState.DRAINING, free=False) for i in range(3))
    base = {
        "nodes": nodes,
        "view": view_of((1, 1, CONTRIBUTOR), epoch=3),
        "view_since_s": NOW_S,
        "install": None,
        "attempt": TOLD,
        "job": job(spec=spec(min_replicas=2, training=LONG.training), epoch=3, state=JobState.RECOVERING),
    }
    asked = running(
        replicas=tuple(replica(i, ordered_out=WHY, **gone) if i != 1 else replica(1) for i in range(3)), **base
    )
    assert [d.reason_code for d in decisions(asked, rule="restart")] == ["ordered"]
    failed = with_replica(asked, 0, ordered_out="")
    assert [d.reason_code for d in decisions(failed, rule="restart")] == ["below_min_replicas"]
