"""The ways out are priced on one basis, the cheapest open one is taken, and what decided is said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy import prices
from controlplane.policy.decide import decide
from controlplane.policy.plan import AnnounceView, EndAttempt, SendInstall, StartReplica
from controlplane.policy.snapshot import BudgetFact, LearnedTimes
from controlplane.protocol.spec import Training
from controlplane.protocol.states import ReplicaState
from tests.properties.policy.test_decide import worlds
from tests.unit.policy.builders import (
    CONFIG,
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    WITHOUT_1,
    action,
    actions,
    change,
    checkpoint,
    decisions,
    flush,
    install_of,
    job,
    only,
    running,
    shrunk,
    signal,
    spec,
    view_of,
)

ALL = spec(min_replicas=3, training=Training(steps=10_000, global_batch=6))
LONG = spec(training=Training(steps=100_000, global_batch=6))
TIMES = LearnedTimes(step_s=1.0, start_replica_s=20.0, catch_up_s=10.0)


def ended(index: int = 1, code: float = -9.0):
    return signal("rank_exit", index + 1, replica=index, incarnation=1, rank=0, value=code)


def hang(**fields):
    return running(
        signals=(signal("rank_overdue", replica=1, incarnation=1, rank=0, value=61.0, threshold=60.0),), **fields
    )


def way(decision, name: str):
    return next(other for other in decision.alternatives if other.action == name)


# --- P8: one basis --------------------------------------------------------------------------


def test_each_way_is_priced_in_seconds_of_all_devices_that_commit_nothing_new():
    """Three replicas of two devices, one lost: the sums by hand."""
    world = running(signals=(ended(),), job=job(spec=LONG), checkpoints=(checkpoint(40),), learned=TIMES)
    decision = only(world, "replica_failure")
    stall = (1.0 / 2 + CONFIG.view_way_s + CONFIG.install_way_s) * 6
    assert decision.choice == "evict_and_replace"
    assert decision.cost_gpu_s == pytest.approx(stall + 2 * (20.0 + 10.0))
    assert way(decision, "evict").cost_gpu_s == pytest.approx(stall + 2 * 3600.0)
    assert way(decision, "restart").cost_gpu_s == pytest.approx(stall + (20.0 + 10.0 + 10 * 1.0) * 6)


def test_a_restart_is_priced_with_what_stays_away_after_it_as_leaving_out_is():
    """No device is free: fewer train afterwards whichever is chosen, so the restart is no cheaper."""
    lost = signal("device_lost", node_id="n1", device_index=0)
    decision = only(running(spares=0, job=job(spec=LONG), learned=TIMES, signals=(lost,)), "replica_failure")
    assert decision.choice == "evict"
    again = way(decision, "restart")
    assert again.cost_gpu_s is not None and decision.cost_gpu_s is not None
    assert again.cost_gpu_s > decision.cost_gpu_s and again.why_not == "costs more"


def test_to_wait_costs_the_wait_and_then_what_follows_it():
    decision = only(hang(job=job(spec=LONG)), "replica_failure")
    assert decision.cost_gpu_s is not None
    assert way(decision, "wait").cost_gpu_s == pytest.approx(decision.cost_gpu_s + CONFIG.hang_timeout_s * 6)


def test_where_a_constraint_decides_the_journal_names_it_beside_the_cheaper_price():
    spent = BudgetFact(restarts_total=1000)
    decision = only(running(signals=(ended(),), job=job(spec=LONG), budget=spent), "replica_failure")
    cheaper = way(decision, "evict_and_replace")
    assert cheaper.cost_gpu_s is not None and decision.cost_gpu_s is not None
    assert cheaper.cost_gpu_s < decision.cost_gpu_s
    assert cheaper.why_not == "1000 restarts are all its budget allows"


def test_too_few_left_are_named_as_what_ruled_the_cheaper_way_out():
    lost = signal("device_lost", node_id="n1", device_index=0)
    decision = only(running(spares=0, signals=(lost,), job=job(spec=ALL)), "restart")
    assert way(decision, "evict").why_not == "2 replicas would be left, 3 must be"


@given(
    seconds=st.tuples(*(st.floats(0.01, 5000.0) for _ in range(5))),
    asked=st.integers(1, 2000),
    gpus=st.integers(1, 64),
    shares=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)
def test_to_go_on_is_never_dearer_than_a_restart_that_places_no_more(seconds, asked, gpus, shares):
    step_s, start_s, catch_up_s, left_s, at_risk_s = seconds
    missing = int(shares[0] * (asked - 1))
    started = int(shares[1] * missing)
    times = prices.Times(
        step_s=step_s, start_s=start_s, catch_up_s=catch_up_s, view_s=0.45, left_s=left_s, at_risk_s=at_risk_s,
        hang_s=60.0,
    )  # fmt: skip
    stakes = prices.Stakes(
        gpus=gpus, asked=asked, missing=missing, started=started, placeable=asked - missing + started
    )
    restart_s = prices.restart_s(times, stakes) * (1.0 + 1e-9)
    assert prices.evict_and_replace_s(times, stakes) <= prices.hold_and_replace_s(times, stakes) <= restart_s
    none = change(stakes, started=0, placeable=asked - missing)
    assert prices.evict_s(times, none) <= prices.restart_s(times, none) * (1.0 + 1e-9)


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_the_journal_never_says_costs_more_of_what_is_cheaper(world):
    for decision in decide(change(world, learned=TIMES), CONFIG).decisions:
        for other in decision.alternatives:
            assert other.why_not
            if other.why_not == "costs more":
                assert decision.cost_gpu_s is not None and other.cost_gpu_s is not None
                assert other.cost_gpu_s > decision.cost_gpu_s


def test_prices_scale_with_the_job_and_stay_a_price():
    stakes = prices.Stakes(gpus=8, asked=1000, missing=1, started=1, placeable=1000)
    times = prices.times_of(running(job=job(spec=LONG), learned=TIMES), CONFIG)
    replace = prices.evict_and_replace_s(times, stakes)
    assert replace == pytest.approx((0.5 + 0.45) * 8000 + 8 * 30.0)
    assert replace < prices.restart_s(times, stakes) < prices.queue_s(times, stakes)


# --- P9: who holds the newest state waits for the replacement -----------------------------------


def test_with_min_replicas_all_and_a_free_spare_the_survivors_wait_and_nothing_is_rolled_back():
    world = running(signals=(ended(),), job=job(spec=ALL), learned=TIMES)
    assert decisions(world, rule="restart") == ()
    decision = only(world, "replica_failure")
    assert decision.choice == "hold_and_replace"
    assert [m.replica for m in action(decision, AnnounceView).view.members] == [0, 2]
    assert actions(decision, StartReplica) and not actions(decision, EndAttempt)
    assert "2 replicas keep the newest state and wait, 3 must train" in decision.sentence
    assert way(decision, "restart").why_not == "costs more"


def held(*, since_s: float = 10.0, joined: int = 0, flushed: bool = True, **fields):
    """Replica 1 starts again; 0 and 2 wait in a view of their own that nobody installs."""
    world = shrunk(spares=1, state=ReplicaState.FORMING, incarnation=2, joined_ranks=joined, state_since_s=NOW_S - 9.0)
    said = tuple(flush(index, rank, epoch=3) for index in (0, 2) for rank in range(2)) if flushed else ()
    base = {
        "job": change(world.job, spec=ALL),
        "install": None,
        "view": WITHOUT_1,
        "view_since_s": NOW_S - since_s,
        "flushes": said,
        "learned": TIMES,
    }
    return change(world, **(base | fields))


def test_a_view_too_small_to_train_is_not_installed():
    assert decisions(held()) == ()


def test_the_replacement_is_taken_into_the_next_view_as_soon_as_it_is_up():
    view = action(only(held(joined=2), "admit_joiner"), AnnounceView).view
    assert [(m.replica, m.role) for m in view.members] == [(0, CONTRIBUTOR), (1, JOINER), (2, CONTRIBUTOR)]
    assert view.epoch == 4 and view.at_step is None and view.donors
    said = tuple(
        flush(m.replica, rank, epoch=4, incarnation=m.incarnation, role=m.role)
        for m in view.members
        for rank in range(2)
    )
    joined = held(joined=2, view=view, flushes=said, job=job(spec=ALL, epoch=4))
    order = action(only(joined, "membership_install"), SendInstall).install
    assert (order.contributors, order.step) == ((0, 2), 50)


def test_a_replacement_that_does_not_come_ends_the_wait():
    assert decisions(held(since_s=59.0), rule="restart") == ()
    late = only(held(since_s=200.0), "restart")
    assert late.reason_code == "below_min_replicas"


def test_a_second_failure_while_they_wait_keeps_the_last_holder():
    world = held(signals=(ended(2),))
    decision = only(change(world, flushes=()), "replica_failure")
    assert decision.choice == "hold_and_replace"
    assert [m.replica for m in action(decision, AnnounceView).view.members] == [0]


def test_a_replacement_that_fails_while_they_wait_is_not_waited_for_again():
    world = held()
    gone = shrunk(spares=1, failed_starts=1, state_since_s=NOW_S - 1.0)
    assert only(change(world, replicas=gone.replicas), "restart").reason_code == "below_min_replicas"


def test_with_a_fixed_number_that_computes_nobody_trains_with_fewer():
    fixed = spec(min_replicas=2, training=Training(steps=10_000, global_batch=6, batch_mode="spares"))
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, CONTRIBUTOR))
    world = running(job=job(spec=fixed), signals=(ended(),), view=view, install=install_of(view))
    world = change(world, replicas=world.replicas[:2])
    assert only(world, "restart").reason_code == "below_min_replicas"


def test_a_slow_replica_is_moved_onto_an_idle_spare_though_all_must_train():
    told = {"score": "relative", "cause": "compute", "late_s": 0.5, "relative": 0.4, "epoch": 2}
    slow = signal(
        "straggler", replica=1, incarnation=1, rank=0, node_id="n1", device_index=0, value=0.4, threshold=0.7,
        evidence=told,
    )  # fmt: skip
    decision = only(running(signals=(slow,), job=job(spec=ALL), learned=TIMES), "straggler")
    assert (decision.choice, decision.reason_code) == ("move", "cheaper_to_move")
    stand_still = 2 * 2 * 20.0
    stall = 0.95 * 6
    assert decision.cost_gpu_s == pytest.approx(stall + 2 * 30.0 + stand_still)
    assert actions(decision, StartReplica) and not actions(decision, EndAttempt)
