"""One that still trains is relieved: another is started beside it, one view swaps them, it ends last."""

import pytest

from controlplane.policy import prices
from controlplane.policy.budget import Rung, entries
from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.plan import (
    AnnounceView,
    EndAttempt,
    KeepSpares,
    Relieve,
    SendInstall,
    SetReplicaState,
    SettleSignals,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import BudgetFact, JobSnapshot, LearnedTimes
from controlplane.protocol.membership import Install, MemberRole
from controlplane.protocol.spec import Training
from controlplane.protocol.states import JobState, Mode, ReplicaState

from .builders import (
    CONFIG,
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    STANDBY,
    action,
    actions,
    attempt,
    change,
    decisions,
    flush,
    install_of,
    job,
    node,
    only,
    replica,
    running,
    signal,
    spec,
    view_of,
    with_replica,
)

WHY = "ada: rack 7"
TOLD = attempt(max_contributors=3)
LONG = spec(min_replicas=3, training=Training(steps=10_000, global_batch=6))


def slow(*, late_s: float = 0.1, spares: int = 1, min_replicas: int = 3, **fields: object) -> JobSnapshot:
    """Rank 0 of replica 1 holds each step up."""
    told = {"score": "relative", "cause": "compute", "late_s": late_s, "epoch": 2}
    found = signal(
        "straggler", replica=1, incarnation=1, rank=0, node_id="n1", device_index=0, value=0.4, threshold=0.7,
        evidence=told,
    )  # fmt: skip
    wanted = spec(min_replicas=min_replicas, training=Training(steps=10_000, global_batch=6))
    base = {"spares": spares, "signals": (found,), "job": job(spec=wanted), "attempt": TOLD}
    return running(**(base | fields))


def relieved(*, state: ReplicaState = ReplicaState.FORMING, ordered: bool = False, **fields: object) -> JobSnapshot:
    """Replica 1 is relieved; 3, in that state, was started beside it on node 3."""
    first, old, last = (replica(index) for index in range(3))
    old = change(old, relieved=WHY, ordered_out=WHY if ordered else "", ordered_s=NOW_S - 9.0 if ordered else None)
    new = replica(3, state=state, contributing=False, in_view=False, state_since_s=NOW_S - 5.0, joined_ranks=0)
    homes = tuple(node(index, free=False) for index in range(4))
    base: dict[str, object] = {
        "replicas": (first, old, last, new),
        "nodes": homes,
        "attempt": TOLD,
        "job": job(spec=LONG),
        "signals": () if ordered else slow().signals,
    }
    return running(**(base | fields))


def caught_up(**fields: object) -> JobSnapshot:
    """3 stands by beside the three that train."""
    view = view_of(*((index, 1, CONTRIBUTOR) for index in range(3)), (3, 1, JOINER), epoch=3)
    world = relieved(
        state=ReplicaState.SPARE,
        view=view,
        install=Install("job_1", 1, 3, 50, (0, 1, 2)),
        job=job(spec=LONG, epoch=3, progressed_s=NOW_S - 0.5),
        **fields,
    )
    return with_replica(world, 3, standby=True, in_view=True, joined_ranks=2)


def swapped(*, committed: bool = True, **fields: object) -> JobSnapshot:
    """The view without 1 is installed."""
    view = view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR), (3, 1, STANDBY), epoch=4)
    view = change(view, left_out=(view_of((1, 1, CONTRIBUTOR)).members[0],))
    world = change(
        caught_up(**fields),
        view=view,
        install=Install("job_1", 1, 4, 52, (0, 2, 3)),
        installed_s=NOW_S - 2.0,
        job=job(spec=LONG, epoch=4, progressed_s=NOW_S - (1.0 if committed else 3.0)),
    )
    world = with_replica(world, 3, state=ReplicaState.ACTIVE, contributing=True, standby=False)
    return with_replica(world, 1, state=ReplicaState.SUSPECT, contributing=False, in_view=False, times_out=1)


# --- the decision to relieve ---------------------------------------------------------------


def test_where_devices_are_free_another_is_started_beside_a_slow_one_and_nothing_of_it_is_touched() -> None:
    decision = only(slow(), "straggler")
    assert (decision.choice, decision.reason_code) == ("start_beside", "cheaper_to_move")
    start = action(decision, StartReplica)
    assert (start.replica, start.incarnation) == (3, 1)
    assert {(p.node_id, p.device_index) for p in start.placements} == {("n3", 0), ("n3", 1)}
    assert action(decision, Relieve).replica == 1
    assert not actions(decision, AnnounceView) and not actions(decision, StopReplica)
    assert "It trains on until another has caught up and takes its place" in decision.sentence
    assert "replica 3 starts beside it on node-3" in decision.sentence


def test_its_price_is_two_view_changes_and_what_it_holds_up_until_the_other_is_in() -> None:
    world = slow(learned=LearnedTimes(step_s=2.0, step_max_s=2.0, start_replica_s=30.0, catch_up_s=10.0))
    decision = only(world, "straggler")
    view_s = CONFIG.view_way_s + CONFIG.install_way_s
    assert decision.cost_gpu_s == pytest.approx(6 * (2 * view_s + 2.0 / 3 + 40.0 / 2.0 * 0.1))
    first = {other.action: other for other in decision.alternatives}
    # All must train, so that without it the two others would wait for the whole start.
    assert first["hold_and_replace"].cost_gpu_s == pytest.approx(6 * (1.0 + view_s) + 2 * 40.0 + 4 * 30.0)
    assert first["hold_and_replace"].why_not == "costs more"
    assert first["evict_and_replace"].why_not == "2 replicas would be left, 3 must be"


@pytest.mark.parametrize(
    ("world", "choice", "why"),
    [
        (slow(min_replicas=1, late_s=0.9), "move", "costs more"),
        (slow(attempt=attempt()), "move", "its ranks were started by an older release"),
        (slow(nodes=(*(node(i, free=False) for i in range(3)), node(3, devices=1))), "move", "no free devices"),
    ],
)
def test_it_is_ended_first_where_that_is_cheaper_or_nothing_can_be_started_beside_it(world, choice, why) -> None:
    decision = only(world, "straggler")
    assert decision.choice == choice
    beside = next(other for other in decision.alternatives if other.action == "start_beside")
    assert why in beside.why_not
    assert action(decision, StopReplica).replica == 1


@pytest.mark.parametrize("late_s", [0.0, 0.01, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("replicas", [2, 3, 100, 1000])
def test_beside_is_never_dearer_than_holding_and_cheaper_than_ending_first_where_it_is_hardly_late(
    late_s, replicas
) -> None:
    times = prices.Times(
        step_s=1.0, start_s=60.0, catch_up_s=20.0, view_s=0.1, left_s=3600.0, at_risk_s=10.0, hang_s=60.0
    )
    stakes = prices.Stakes(gpus=8, asked=replicas, missing=1, started=1, placeable=replicas)
    beside = prices.beside_s(times, stakes, late_s=late_s)
    by_hand = 8 * replicas * (0.2 + 1.0 / replicas + 80.0 * late_s)
    assert beside == pytest.approx(by_hand)
    # What it holds up, against one replica that is away for as long.
    if late_s * replicas < 1.0:
        assert beside < prices.evict_and_replace_s(times, stakes)
    if late_s * replicas > 2.0:
        assert beside > prices.evict_and_replace_s(times, stakes)


def test_a_single_replica_is_relieved_too_for_it_is_the_donor_itself() -> None:
    view = view_of((0, 1, CONTRIBUTOR))
    world = slow(
        replicas=(replica(1),), view=view_of((1, 1, CONTRIBUTOR)), install=Install("job_1", 1, 2, 50, (1,)),
        attempt=attempt(max_contributors=1, replicas=1), min_replicas=1,
    )  # fmt: skip
    assert view.members
    assert only(world, "straggler").choice == "start_beside"


def test_it_is_decided_once_and_its_successor_is_not_started_twice() -> None:
    world = change(relieved(), signals=slow().signals)
    assert decisions(world, rule="straggler") == ()
    assert not [a for d in decisions(world) for a in actions(d, StartReplica)]


def test_a_careful_job_is_told_and_nothing_is_started() -> None:
    base = slow()
    careful = change(base.job.spec, resiliency=change(base.job.spec.resiliency, mode=Mode.RECOMMEND))
    decision = only(change(base, job=change(base.job, spec=careful)), "straggler")
    assert (decision.choice, decision.mode) == ("start_beside", Mode.RECOMMEND)


def test_a_slot_that_was_emptied_by_a_swap_takes_the_next_successor_as_its_next_life() -> None:
    world = slow()
    gone = replica(
        3, incarnation=4, home=3, state=ReplicaState.EVICTED, stopped=True, contributing=False, in_view=False
    )
    start = action(only(change(world, replicas=(*world.replicas, gone)), "straggler"), StartReplica)
    assert (start.replica, start.incarnation) == (3, 5)


def test_a_slot_of_an_earlier_attempt_goes_on_counting_its_lives() -> None:
    world = slow()
    start = action(only(change(world, job=change(world.job, past_lives={3: 7})), "straggler"), StartReplica)
    assert (start.replica, start.incarnation) == (3, 8)


# --- slots ----------------------------------------------------------------------------------


def test_a_slot_whose_place_was_taken_stays_empty_and_the_job_is_at_full_strength() -> None:
    world = with_replica(swapped(), 1, state=ReplicaState.EVICTED, stopped=True, joined_ranks=0)
    world = change(world, nodes=(*world.nodes, node(4)), job=change(world.job, state=JobState.RECOVERING))
    assert decisions(world, rule="replace") == ()
    assert only(world, "strength").sentence == "All 3 replicas train."
    # Its retry moment passes without a look.
    assert next_pass_s(change(world, job=job(spec=LONG)), CONFIG, changed=False) != NOW_S + CONFIG.capacity_retry_s


def test_of_the_empty_slots_the_one_that_was_emptied_last_is_filled() -> None:
    world = with_replica(swapped(), 1, state=ReplicaState.EVICTED, stopped=True, state_since_s=NOW_S - 90.0)
    world = with_replica(
        world,
        2,
        state=ReplicaState.EVICTED,
        stopped=True,
        in_view=False,
        contributing=False,
        state_since_s=NOW_S - 50.0,
    )
    world = change(world, nodes=(*world.nodes, node(4)), job=job(spec=spec(), epoch=4))
    assert action(only(world, "replace"), StartReplica).replica == 2


def test_spares_are_kept_although_a_slot_is_empty_whose_place_was_taken() -> None:
    world = with_replica(swapped(), 1, state=ReplicaState.EVICTED, stopped=True, joined_ranks=0)
    wish = spec(spares=2, min_replicas=3, training=LONG.training)
    world = change(world, nodes=(*world.nodes, node(4)), job=change(world.job, spec=wish))
    assert action(only(world, "spares"), KeepSpares).reserve == ("n4",)


# --- the swap --------------------------------------------------------------------------------


def test_one_view_leaves_the_old_one_out_and_nothing_of_it_ends() -> None:
    decision = only(caught_up(), "swap")
    view = action(decision, AnnounceView).view
    assert [(m.replica, m.role) for m in view.members] == [(0, CONTRIBUTOR), (2, CONTRIBUTOR), (3, STANDBY)]
    assert view.waits(1, 1) and view.epoch == 4
    assert action(decision, SetReplicaState).to is ReplicaState.SUSPECT
    assert not actions(decision, StopReplica)


def test_it_begins_with_a_step_where_the_pace_is_known() -> None:
    world = caught_up(learned=LearnedTimes(step_s=2.0, step_max_s=2.0))
    assert action(only(world, "swap"), AnnounceView).view.at_step == 50


def test_that_view_is_installed_with_the_successor_in_the_old_ones_place() -> None:
    view = action(only(caught_up(), "swap"), AnnounceView).view
    flushes = tuple(flush(m.replica, rank, epoch=4, role=m.role) for m in view.members for rank in range(2))
    world = change(
        caught_up(), view=view, install=None, view_since_s=NOW_S, flushes=flushes, job=job(spec=LONG, epoch=4)
    )
    world = with_replica(world, 1, state=ReplicaState.SUSPECT, contributing=False, in_view=False)
    install = action(only(world, "membership_install"), SendInstall).install
    assert (install.contributors, install.standbys) == ((0, 2, 3), ())


def test_while_it_joins_no_more_compute_than_were_placed() -> None:
    """The first install after the successor has caught up, whatever made it necessary."""
    members = (*((i, 1, CONTRIBUTOR) for i in range(3)), (3, 1, STANDBY))
    view = view_of(*members, epoch=4)
    flushes = tuple(flush(i, rank, epoch=4, role=role) for i, _, role in members for rank in range(2))
    world = change(caught_up(), view=view, install=None, flushes=flushes, view_since_s=NOW_S)
    install = action(only(world, "membership_install"), SendInstall).install
    assert (install.contributors, install.standbys) == ((0, 1, 2), (3,))


def test_the_old_one_ends_once_the_view_without_it_has_committed_a_step() -> None:
    assert decisions(swapped(committed=False), rule="swap") == ()
    found = change(swapped(), signals=slow().signals)
    decision = only(found, "swap")
    stop = action(decision, StopReplica)
    assert (decision.choice, stop.replica, stop.incarnation) == ("retire", 1, 1)
    assert action(decision, SetReplicaState).to is ReplicaState.EVICTED
    assert action(decision, SettleSignals).signal_ids == ("sig_1",)


def test_one_whose_place_is_taken_is_not_taken_back() -> None:
    waiting = with_replica(swapped(committed=False), 1, waiting=True)
    assert decisions(waiting, rule="admit_joiner") == ()


def test_the_job_is_not_called_whole_while_a_swap_is_due() -> None:
    world = caught_up()
    assert decisions(change(world, job=change(world.job, state=JobState.RECOVERING)), rule="strength") == ()


def test_the_budget_pays_for_the_start_and_not_for_the_view() -> None:
    world = slow()
    assert [(e.rung, e.charged) for e in entries(only(world, "straggler"), world)] == [(Rung.REPLICA, True)]
    after = caught_up()
    assert [(e.rung, e.charged) for e in entries(only(after, "swap"), after)] == [(Rung.VIEW_CHANGE, False)]
    broke = change(world, budget=BudgetFact(restarts_total=10**6))
    assert only(broke, "straggler").choice == "tell"


# --- what goes wrong meanwhile ----------------------------------------------------------------


def died(index: int):
    return signal("rank_exit", replica=index, incarnation=1, rank=0, value=137.0)


def test_an_old_one_that_dies_is_an_ordinary_failure_whose_place_is_taken_already() -> None:
    for_all = change(relieved(), signals=(died(1),), job=job(spec=spec()))
    decision = only(with_replica(for_all, 1, exited_ranks=2), "replica_failure")
    assert decision.choice == "evict" and not actions(decision, StartReplica)
    assert "nothing is started in its place: its successor is there already" in decision.sentence
    assert [m.replica for m in action(decision, AnnounceView).view.members] == [0, 2]


def test_where_all_must_train_the_others_wait_for_the_successor_and_nothing_starts_again() -> None:
    world = with_replica(change(relieved(), signals=(died(1),)), 1, exited_ranks=2)
    decision = only(world, "replica_failure")
    assert decision.choice == "hold_and_replace"
    assert not actions(decision, StartReplica) and not actions(decision, EndAttempt)


def test_a_third_that_dies_is_started_again_beside_the_successor() -> None:
    world = change(relieved(), signals=(died(2),), job=job(spec=spec()))
    world = change(world, nodes=(*world.nodes, node(4)))
    decision = only(with_replica(world, 2, exited_ranks=2), "replica_failure")
    assert action(decision, StartReplica).replica == 2
    assert [m.replica for m in action(decision, AnnounceView).view.members] == [0, 1]


def test_a_successor_that_dies_is_started_again_and_the_old_one_is_left_alone() -> None:
    world = change(relieved(), signals=(died(3),))
    decision = only(with_replica(world, 3, exited_ranks=2), "replica_failure")
    assert action(decision, StartReplica).replica == 3
    assert not actions(decision, AnnounceView)


def test_nobody_is_swapped_while_something_fails() -> None:
    assert decisions(with_replica(change(caught_up(), signals=(died(0),)), 0, exited_ranks=2), rule="swap") == ()


def test_a_successor_that_dies_before_the_swap_is_over_gives_the_place_back() -> None:
    world = with_replica(swapped(), 3, state=ReplicaState.EVICTED, in_view=False, contributing=False, stopped=True)
    view = view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR), epoch=5)
    view = change(view, left_out=(view_of((1, 1, CONTRIBUTOR)).members[0],))
    world = change(world, view=view, install=install_of(view, 52), job=job(spec=LONG, epoch=5))
    back = only(with_replica(world, 1, waiting=True), "admit_joiner")
    members = {m.replica: m.role for m in action(back, AnnounceView).view.members}
    assert members == {0: CONTRIBUTOR, 1: MemberRole.JOINER, 2: CONTRIBUTOR}
    assert decisions(world, rule="swap") == ()


def test_a_slow_one_stays_where_no_other_can_take_its_place() -> None:
    world = with_replica(relieved(), 3, state=ReplicaState.EVICTED, failed_starts=9, stopped=True)
    decision = only(world, "swap")
    assert (decision.choice, action(decision, Relieve).reason) == ("stay", "")
    assert not actions(decision, StopReplica)
