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

    count = heartbeats.one(90_000_008, world_s=200.0)
    assert (count.stalls > 0, count.holds > 0, count.evictions, count.told) == (True, True, 0, ())
    monkeypatch.setattr(common, "another_is_at_work", lambda computing, late: False)
    assert heartbeats.one(90_000_008, world_s=200.0).evictions >= 10


FEW = 92_100_028
"""Of steps of half a second, and of stalls that few replicas share."""


def test_where_few_replicas_share_what_stands_still_the_others_train_on_and_all_of_them_come_back(monkeypatch):
    """Also while a view with some of them back is installed, and others of them are late yet."""
    monkeypatch.setattr(heartbeats, "FEW_RATIO", 1.0)
    count = heartbeats.one(FEW, world_s=250.0, stall_ratio=0.6)
    assert count.stalls > 0 and count.left_out >= 2 * count.stalls
    assert (count.evictions, count.restarts, count.told) == (0, 0, ())
    stood_s = sum(heartbeats.STALL_S) / 2 * count.stalls
    assert count.steps > (250.0 - stood_s) / 0.5 / 4, "they trained meanwhile"


def test_without_leaving_them_out_it_ends_them(monkeypatch):
    from controlplane.policy import failures

    monkeypatch.setattr(heartbeats, "FEW_RATIO", 1.0)
    monkeypatch.setattr(failures, "stall_of_few", lambda snapshot, config, hung: None)
    assert heartbeats.one(FEW, world_s=250.0, stall_ratio=0.6).evictions >= 4


def test_a_fourth_of_the_worlds_has_stalls_of_few_and_steps_that_may_last_twice_as_long():
    few = sum(Random(f"few {seed}").random() < heartbeats.FEW_RATIO for seed in range(2000))
    assert 440 < few < 560
    usual = heartbeats.Setting(loss=0.0, delay_s=0.0, step_s=5.0, ranks=1)
    assert usual.spare_s == heartbeats.SPARE_S
    assert heartbeats.replace(usual, few=True).spare_s == heartbeats.SPARE_S + 1.05 * 5.0


def test_the_command_prints_what_was_run_and_its_verdict(capsys):
    assert main(["heartbeats", "--heartbeats", "10", "--nodes", "4"]) == 0
    out = capsys.readouterr().out
    assert "2400 heartbeats of 1 worlds" in out
    assert "PASSED" in out
