"""The published effective training times, by runs of the real policy; `make test-release` runs more failures."""

import os

import pytest

from controlplane.protocol.states import Phase
from controlplane.simulator.__main__ import main
from controlplane.simulator.effective import MTBF_S, RECOVERIES, WARM_UP_S, Arrivals, measure, plan_for
from controlplane.simulator.world import World

WHOLE, REPLICA, _, OURS = RECOVERIES
RELEASE = "HOLDFAST_TEST_RELEASE" in os.environ
FAILURES, WITHOUT_MEMORY = (8, 25) if RELEASE else (3, 8)


def test_a_restart_of_everything_leaves_the_published_44_percent():
    run = measure(WHOLE, failures=FAILURES)
    # Few intervals may all be short ones: what a failure costs is their measure.
    assert 1.0 - run.lost_s / MTBF_S == pytest.approx(1.0 - 600.0 / MTBF_S, abs=0.03)
    assert not RELEASE or run.ratio == pytest.approx(1.0 - 600.0 / MTBF_S, abs=0.05)
    assert (run.restarts, run.evictions, run.violations) == (FAILURES, 0, ())


def test_replica_fault_tolerance_leaves_the_published_80_percent():
    run = measure(REPLICA, failures=FAILURES)
    assert run.ratio == pytest.approx(1.0 - 180.0 / MTBF_S, abs=0.05)
    assert run.ratio == pytest.approx(0.80, abs=0.04)
    assert run.lost_s == pytest.approx(200.0, abs=15.0), "a failure's cost, whenever they come"
    assert (run.restarts, run.evictions, run.violations) == (0, FAILURES, ())


def test_with_our_own_stalls_little_more_is_lost_than_the_replica_that_is_away():
    run = measure(OURS, failures=FAILURES)
    assert run.ratio > 0.95
    assert run.lost_s > 0.95 * OURS.start_s / 12, "less a part of a step, of few failures"


def test_failures_without_memory_cost_less_a_piece_where_they_strike_a_recovery():
    run = measure(WHOLE, failures=WITHOUT_MEMORY, arrivals=Arrivals.MEMORYLESS)
    assert run.violations == ()
    assert run.formula == pytest.approx(0.574, abs=0.001)
    assert run.lost_s < WHOLE.start_s


def test_failures_that_strike_while_groups_are_built_cost_replica_fault_tolerance_no_more_than_on_paper():
    run = measure(REPLICA, failures=WITHOUT_MEMORY, arrivals=Arrivals.MEMORYLESS)
    assert run.ratio > run.formula - 0.1, "so many intervals are not their mean"
    assert (run.restarts, run.evictions, run.violations) == (0, WITHOUT_MEMORY, ())


def test_a_view_that_comes_while_a_process_builds_its_groups_is_entered():
    world = World(7, plan=plan_for(REPLICA))
    world.start()
    world.kernel.run(REPLICA.start_s + WARM_UP_S)
    training = [process for process in world.trainer.processes.values() if process.epoch]
    first, second = training[0], training[1]
    world.faults.kill_rank(first)
    world.kernel.run(world.kernel.now_s + REPLICA.stall_s / 2)
    building = [process for process in training if process.able()]
    assert {process.phase() for process in building} == {Phase.VIEW_CHANGE}, "all of them build"
    interrupted, committed = building[-1].epoch, building[-1].committed
    world.faults.kill_rank(second)
    world.kernel.run(world.kernel.now_s + 2 * REPLICA.stall_s)
    survivors = [process for process in training if process.able()]
    assert len(survivors) == len(training) - 2
    assert all(process.epoch > interrupted and process.committed > committed for process in survivors)
    assert world.checkers.violations == []


def test_the_command_prints_every_way_of_recovery(capsys):
    assert main(["effective", "--failures", "1"]) == 0
    out = capsys.readouterr().out
    assert [recovery.name for recovery in RECOVERIES if recovery.name not in out] == []
    assert "PASSED" in out
