"""The published effective training times, by runs of the real policy."""

import pytest

from controlplane.simulator.__main__ import main
from controlplane.simulator.effective import MTBF_S, RECOVERIES, Arrivals, measure

WHOLE, REPLICA, _, OURS = RECOVERIES
FAILURES = 8


def test_a_restart_of_everything_leaves_the_published_44_percent():
    run = measure(WHOLE, failures=FAILURES)
    assert run.ratio == pytest.approx(1.0 - 600.0 / MTBF_S, abs=0.05)
    assert (run.restarts, run.evictions, run.violations) == (FAILURES, 0, ())


def test_replica_fault_tolerance_leaves_the_published_80_percent():
    run = measure(REPLICA, failures=FAILURES)
    assert run.ratio == pytest.approx(1.0 - 180.0 / MTBF_S, abs=0.05)
    assert run.ratio == pytest.approx(0.80, abs=0.02)
    assert (run.restarts, run.evictions, run.violations) == (0, FAILURES, ())


def test_with_our_own_stalls_little_more_is_lost_than_the_replica_that_is_away():
    run = measure(OURS, failures=FAILURES)
    assert run.ratio > 0.95
    assert run.lost_s > OURS.start_s / 12


def test_failures_without_memory_cost_less_a_piece_where_they_strike_a_recovery():
    run = measure(WHOLE, failures=FAILURES, arrivals=Arrivals.MEMORYLESS)
    assert run.violations == ()
    assert run.formula == pytest.approx(0.574, abs=0.001)
    assert run.lost_s < WHOLE.start_s


def test_who_joins_long_after_a_restart_needs_no_checkpoint_that_is_gone_by_then():
    run = measure(REPLICA, failures=25, arrivals=Arrivals.MEMORYLESS)
    assert run.restarts > 0, "failures without memory take the last replica at times"
    assert run.evictions > run.restarts


def test_the_command_prints_every_way_of_recovery(capsys):
    assert main(["effective", "--failures", "1"]) == 0
    out = capsys.readouterr().out
    assert [recovery.name for recovery in RECOVERIES if recovery.name not in out] == []
    assert "PASSED" in out
