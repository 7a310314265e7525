"""Every way out of a moment of failure, carried out in the simulator and weighed by what it cost there (G14)."""

import os
from collections.abc import Callable
from dataclasses import replace
from statistics import mean

import pytest

from controlplane.policy import ways
from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import Plan
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import ReplicaState
from controlplane.simulator import rollout
from controlplane.simulator.load import load
from controlplane.simulator.moments import DRAWN, REBOOT_S, SECOND, Kind, Moment, Strike, draw
from controlplane.simulator.rollout import Judged, Luck, Rollout, judge, lucks_of
from controlplane.simulator.steering import Fork, Steering

SEEDS = tuple(seed for seed in range(700, 720) if draw(seed).replicas <= 4)
MEAN_REGRET = 0.02
# A node that is lost alone computes twice as long as the others together: before a release.
STRUCK = [(Kind.CRASH,), (Kind.CRASH, Kind.NODE_LOST)]
STRUCK += [(Kind.NODE_LOST,)] if "HOLDFAST_TEST_RELEASE" in os.environ else []


def moment(*kinds: Kind, **changes: object) -> Moment:
    """Three replicas of two ranks, a free node, one-second steps, 20 s a start, 10 s a transfer."""
    known = {
        "replicas": 3,
        "ranks": 2,
        "spares": 1,
        "spares_kept": False,
        "needed": 1,
        "share": 2,
        "step_s": 1.0,
        "start_s": 20.0,
        "load_s": 10.0,
        "catch_up_s": 10.0,
        "regroup_s": 0.2,
        "rejoin_s": 0.1,
        "repair_s": 400.0,
        "measured_start_s": 20.0,
        "measured_catch_up_s": 10.0,
        "interval_steps": 10,
        "steps_before": 15,
        "redone": 0.5,
        "steps_after": 300,
        "ends": False,
        "strikes": tuple(Strike(kind=kind, replica=index, after_s=0.1 * index) for index, kind in enumerate(kinds)),
        "budget_spent": False,
        "bad_start": False,
        "returns_s": 20.0,
    }
    return replace(draw(1), **(known | changes))


def rolled(of: Moment, way: str) -> Rollout:
    """Its world, past the fork."""
    world = Rollout(of)
    world.warm_up()
    run = world.copied(way)
    run.to_fork()
    return run


def always(way: str) -> Callable[[JobSnapshot, PolicyConfig], Plan]:
    """A policy that answers a failure with `way`, whatever that costs."""
    return lambda snapshot, config: Steering(way, armed=True)(snapshot, config)


def test_the_policys_way_costs_little_more_than_the_best_in_random_moments():
    found = [judge(draw(seed)) for seed in SEEDS]
    assert mean(each.regret for each in found) <= MEAN_REGRET, [each for each in found if each.regret > MEAN_REGRET]
    assert [text for each in found for text in each.violations] == []
    assert sum(len(each.costs) > 1 for each in found) > len(SEEDS) / 2, "most leave a choice"
    assert {way for each in found for way in each.costs} == set(ways.ORDER) - {ways.BESIDE}, (
        "each way out of a failure was carried out somewhere"
    )


def test_a_diagnostic_that_is_decided_beside_an_answer_is_no_way() -> None:
    """Of a hang that is found with another fault the stacks are asked for by a decision of their own."""
    found = judge(draw(140001401))
    assert found.chosen in found.costs
    assert found.regret < 0.5


def test_to_hold_for_one_that_was_left_out_and_may_come_back_is_a_way() -> None:
    found = judge(draw(150007726))
    assert found.chosen == ways.HOLD
    assert set(found.costs) == {ways.HOLD, ways.RESTART, ways.WAIT}


def test_a_last_step_that_is_committed_as_a_view_is_installed_ends_the_job_in_time() -> None:
    found = judge(draw(150003015))
    assert set(found.costs) == {ways.EVICT, ways.REPLACE, ways.RESTART}
    assert found.costs[ways.REPLACE] < found.costs[ways.RESTART]


def test_a_moment_judged_again_gives_the_same_figures():
    assert judge(draw(703)) == judge(draw(703))


def test_a_policy_that_always_restarts_is_told_what_that_costs():
    of = moment(Kind.CRASH)
    found, right = judge(of, policy=always(ways.RESTART)), judge(of)
    assert (found.chosen, found.best, right.chosen) == (ways.RESTART, ways.REPLACE, ways.REPLACE)
    assert found.costs == right.costs, "what a way costs does not hang on who chose it"
    assert found.regret > 1.0
    assert right.regret == 0.0


def test_what_a_way_costs_is_what_its_times_say():
    """One of three away for a start and a transfer, while the other two have three micro-batches
    each instead of two; against everything for a start, a load and the steps since the checkpoint."""
    found = judge(moment(Kind.CRASH))
    slower = (3 / 2 - 1) / (3 / 2)
    assert found.costs[ways.REPLACE] == pytest.approx((20.0 + 10.0) * slower, abs=3.0)
    assert found.costs[ways.RESTART] == pytest.approx(20.0 + 10.0 + 6.0, abs=3.0)
    assert found.costs[ways.EVICT] == pytest.approx(300.0 * (3 / 2 - 1), rel=0.07)


def test_all_ways_of_a_moment_are_one_world_up_to_the_decision():
    of = moment(Kind.HANG)
    tapes = {}
    for way in (ways.REPLACE, ways.EVICT, ways.RESTART, ways.WAIT):
        run = rolled(of, way)
        fork = run.steering.fork
        assert set(fork.open) == {ways.REPLACE, ways.EVICT, ways.RESTART, ways.WAIT}
        assert fork.chosen == ways.REPLACE
        run.to_end()
        tapes[way] = run.world.kernel.tape
    parted = {way: next(i for i, line in enumerate(tape) if "decision   re" in line) for way, tape in tapes.items()}
    before = {way: tape[: parted[ways.REPLACE]] for way, tape in tapes.items()}
    assert all(tape == before[ways.REPLACE] for tape in before.values())
    assert "replica_failure/evict_and_replace/" in tapes[ways.REPLACE][parted[ways.REPLACE]]
    assert "replica_failure/evict/" in tapes[ways.EVICT][parted[ways.EVICT]]
    assert "restart/restart/rolled_out" in tapes[ways.RESTART][parted[ways.RESTART]]
    waited_s = float(tapes[ways.WAIT][parted[ways.WAIT]].split()[0]) - fork.at_s
    assert waited_s == pytest.approx(PolicyConfig().hang_timeout_s, abs=1.0)


def test_a_slot_that_is_evicted_for_good_stays_empty_though_devices_are_free():
    run = rolled(moment(Kind.CRASH), ways.EVICT)
    run.world.kernel.run(run.world.kernel.now_s + 300.0)
    rows = run.world.server.rows
    assert [row.state for row in rows.replicas.values()].count(ReplicaState.EVICTED) == 1
    assert run.world.checkers.violations == []


def test_ways_are_open_by_the_spec_and_the_devices_alone():
    def open_in(of: Moment) -> set[str]:
        return set(rolled(of, "").steering.fork.open)

    assert open_in(moment(Kind.CRASH)) == {ways.EVICT, ways.REPLACE, ways.RESTART}
    assert open_in(moment(Kind.CRASH, needed=3)) == {ways.HOLD, ways.RESTART}
    assert open_in(moment(Kind.CRASH, budget_spent=True)) == {ways.EVICT}
    assert open_in(moment(Kind.CRASH, budget_spent=True, needed=3)) == set()
    assert open_in(moment(Kind.NODE_LOST, spares=0)) == {ways.EVICT, ways.RESTART, ways.WAIT}


@pytest.mark.parametrize("kinds", STRUCK)
def test_time_that_is_not_simulated_is_counted_right(kinds, monkeypatch):
    of = moment(*kinds, spares=0, repair_s=150.0)
    short = judge(of)
    monkeypatch.setattr(Rollout, "_even_pace_s", lambda self: None)
    whole = judge(of)
    assert short.costs == pytest.approx(whole.costs, abs=1.5 * of.step_s, rel=0.02)


def test_what_nobody_can_know_is_averaged_over():
    of = moment(Kind.CRASH, Kind.CRASH)
    fork = Fork(at_s=0.0, chosen=ways.REPLACE, open=(ways.REPLACE, ways.RESTART), told=frozenset({0}))
    follows, spared = lucks_of(of, fork, {})
    assert (follows.weight, follows.strikes, spared.strikes) == (SECOND, of.strikes, of.strikes[:1])
    both = lucks_of(of, replace(fork, told=frozenset({0, 1})), {})
    assert both == (Luck(weight=1.0, repair_s=of.repair_s, strikes=of.strikes),)
    waiting = replace(fork, open=(ways.EVICT, ways.WAIT))
    hung = lucks_of(moment(Kind.HANG), waiting, {})
    assert [luck.returns for luck in hung] == [False, True]
    repairs = lucks_of(moment(Kind.NODE_LOST), waiting, {"node-000": -12.0})
    assert len({luck.repair_s for luck in repairs}) == rollout.REPAIRS
    assert min(luck.repair_s for luck in repairs) > 12.0, "it is not repaired yet"
    for lucks in (hung, repairs, (follows, spared)):
        assert sum(luck.weight for luck in lucks) == pytest.approx(1.0)


def test_the_policy_is_told_what_starts_and_transfers_took():
    run = rolled(moment(Kind.CRASH, start_s=24.0, measured_catch_up_s=None), "")
    run.to_end()
    learned = load(run.world.server.rows, run.world.kernel.now_s, False).learned
    assert learned.start_replica_s == pytest.approx((3 * 20.0 + 24.0) / 4, abs=1.5)
    assert learned.catch_up_s == pytest.approx(10.0, abs=0.1)


def test_an_attempt_that_resumes_loads_its_checkpoint_and_a_replacement_does_not():
    joined = {}
    for way in (ways.REPLACE, ways.RESTART):
        run = rolled(moment(Kind.CRASH), way)
        began_s = run.world.kernel.now_s
        while not run.world.server.rows.starts[3:]:
            run.world.kernel.run(run.world.kernel.now_s + 0.5)
        joined[way] = run.world.kernel.now_s - began_s
    assert joined[ways.RESTART] - joined[ways.REPLACE] == pytest.approx(10.0, abs=1.1)


def test_a_job_that_fails_has_lost_what_was_left_of_it_and_one_that_ends_first_needs_no_decision():
    of = moment(Kind.CRASH, Kind.CRASH, spares=0, budget_spent=True, needed=2, steps_after=100)
    run = rolled(of, "")
    assert run.to_end().cost_s == pytest.approx(100.0 * of.step_s, rel=0.1)
    over = judge(moment(Kind.NODE_LOST, ends=True, steps_after=1, redone=0.99))
    assert (over.chosen, over.costs, over.regret) == ("", {}, 0.0)


def test_regret_is_none_where_one_way_was_open():
    assert Judged(seed=1, at_s=0.0, chosen=ways.EVICT, costs={}).regret == 0.0


def test_moments_are_drawn_from_their_seeds_and_differ():
    drawn = [draw(seed) for seed in range(300)]
    assert drawn == [draw(seed) for seed in range(300)]
    assert {len(each.strikes) for each in drawn} == {1, 2}
    assert {strike.kind for each in drawn for strike in each.strikes} == set(DRAWN)
    assert max(each.replicas for each in drawn) >= 24
    assert min(each.repair_s for each in drawn) >= REBOOT_S
