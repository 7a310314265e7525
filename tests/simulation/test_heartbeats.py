"""G5 at the size of a test: late and lost heartbeats evict nobody."""

import os
from random import Random

import pytest

from controlplane.policy import void
from controlplane.simulator import heartbeats
from controlplane.simulator.__main__ import main

# What the seeds below drew when they were found.
STEPS_S = (0.5, 5.0, 25.0)
HEARTBEATS, NODES = 100_000 if "HOLDFAST_TEST_RELEASE" in os.environ else 20_000, 12


def test_late_and_lost_heartbeats_and_pauses_that_end_evict_nobody():
    total = heartbeats.measure(HEARTBEATS, nodes=NODES)
    assert total.heartbeats >= HEARTBEATS
    assert total.pauses > 0
    assert total.stops > 0
    assert total.stalls > 0 and total.holds >= total.stalls // 2
    assert (total.evictions, total.restarts, total.told) == (0, 0, ())


def as_found(chance: Random) -> heartbeats.Setting:
    """Each length of a step as often as the others, and replicas of two ranks alone."""
    loss, delay_s = chance.choice(heartbeats.LOSSES), chance.choice(heartbeats.DELAYS_S)
    return heartbeats.Setting(loss=loss, delay_s=delay_s, step_s=chance.choice(STEPS_S), ranks=2)


def test_a_tenth_of_the_worlds_has_short_steps_and_half_of_them_replicas_of_one_rank():
    settings = [heartbeats.drawn(Random(seed)) for seed in range(2000)]
    assert 140 < sum(each.step_s == min(heartbeats.STEPS_S) for each in settings) < 260
    assert 900 < sum(each.ranks == 1 for each in settings) < 1100


@pytest.mark.parametrize("seed", [70_000_000])
def test_worlds_that_once_evicted_somebody_evict_nobody(seed):
    """Its rank was done half a second within its limit, which its agent heard after it; that word was dated before
    the finding, whose frame was late."""
    count = heartbeats.one(seed, world_s=110.0, draw=as_found, stall_ratio=0.0)
    assert count.stops > 0
    assert count.told == ()


def test_without_the_look_at_what_came_after_a_finding_it_fails(monkeypatch):
    from controlplane.policy import failures

    monkeypatch.setattr(void, "is_void", lambda snapshot, signal: False)
    monkeypatch.setattr(failures, "is_void", lambda snapshot, signal: False)
    monkeypatch.setattr("controlplane.policy.rules.void.is_settled", lambda snapshot, signal: False)
    count = heartbeats.one(73_000_007, nodes=NODES, world_s=150.0, draw=as_found, stall_ratio=0.0)
    assert count.evictions == count.stops > 0


def test_without_a_moment_for_the_others_to_be_late_too_a_stall_that_all_share_evicts_half_of_them(monkeypatch):
    """Limits are over one after the other: each of the first half was found late alone, and evicted at once."""
    from controlplane.policy import common

    count = heartbeats.one(90_000_004, world_s=300.0)
    assert (count.stalls > 0, count.holds > 0, count.evictions, count.told) == (True, True, 0, ())
    monkeypatch.setattr(common, "_most_are_at_work", lambda computing: False)
    assert heartbeats.one(90_000_004, world_s=300.0).evictions >= 10


def test_the_command_prints_what_was_run_and_its_verdict(capsys):
    assert main(["heartbeats", "--heartbeats", "10", "--nodes", "4"]) == 0
    out = capsys.readouterr().out
    assert "2400 heartbeats of 1 worlds" in out
    assert "PASSED" in out
