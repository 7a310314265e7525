"""What was found of a slow rank is looked at again: in the view after a recovery, and before its place is taken."""

import msgspec
import pytest

from controlplane.policy.signals.ranks import SlowRank
from controlplane.protocol.spec import Budget, Resiliency, Stragglers, Timeouts
from controlplane.simulator.world import World, WorldPlan, job_spec
from tests.simulation.test_relief import (
    ASK_S,
    END_S,
    SEEDS,
    SLOW,
    find_slow,
    judged,
    kill,
    rank_gone,
    relieved,
    until,
    world_of,
)

INTERVAL_S = 10.0
BESIDE = "straggler:start_beside:cheaper_to_move"
WHOLE = "strength:full_strength:all_contribute"
AWAY_S = 320.0
"""Longer than an interval."""


def acts(world: World) -> list[str]:
    return [each for each in world.server.rows.history if each.startswith("straggler:") and ":tell:" not in each]


def renewed(world: World) -> None:
    """Its newest windows say it again."""
    signals = world.server.rows.signals
    signals["straggler:1"] = msgspec.structs.replace(signals["straggler:1"], renewed_s=world.kernel.now_s)
    world.server.ring()


@pytest.mark.parametrize("min_replicas", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_found_before_a_recovery_moves_nobody_after_it_until_it_is_found_again(
    seed: int, min_replicas: int
) -> None:
    world = world_of(seed, min_replicas=min_replicas, nodes=6)
    world.faults.schedule(END_S, 0)
    world.kernel.run(ASK_S)
    epoch = world.server.rows.epoch
    kill(world, 0)
    until(world, lambda: world.server.rows.epoch > epoch)
    find_slow(world, epoch=epoch)
    until(world, lambda: WHOLE in world.server.rows.history)
    world.kernel.run(world.kernel.now_s + 10.0)
    assert (acts(world), any(rank_gone(world, SLOW))) == ([], False)
    find_slow(world)
    until(world, lambda: acts(world) == [BESIDE])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("since", [BESIDE, "admit_joiner:admit:joined"])
def test_one_that_is_as_fast_as_the_others_again_stays_and_its_successor_leaves(seed: int, since: str) -> None:
    world = relieved(seed)
    rows = world.server.rows
    until(world, lambda: since in rows.history)
    del rows.signals["straggler:1"]
    world.server.ring()
    until(world, lambda: rows.replicas[3].state == "evicted")
    assert not any(rank_gone(world, SLOW))
    judged(world, contributors=(0, 1, 2))
    assert (rows.replicas[SLOW].incarnation, rows.replicas[SLOW].relieved) == (1, "")
    assert "swap:keep:slow_no_more" in rows.history and "swap:dismiss:not_needed" in rows.history


def test_a_server_that_was_away_for_an_interval_swaps_nobody_on_what_it_knew_before() -> None:
    world = relieved(3)
    rows = world.server.rows
    world.server.pause(AWAY_S)
    world.kernel.run(world.kernel.now_s + AWAY_S)
    until(world, lambda: "admit_joiner:stand_by:caught_up" in rows.history, limit_s=90.0)
    world.kernel.run(world.kernel.now_s + 20.0)
    assert rows.replicas[SLOW].contributing and not any("swap:swap" in each for each in rows.history)
    renewed(world)
    until(world, lambda: "swap:retire:place_taken" in rows.history)
    assert world.checkers.violations == []


def measured(seed: int) -> World:
    """Ranks tell their speed twice in 10 s, no device is free, and one under a rank turns slow at 20 s."""
    wanted = Resiliency(
        timeouts=Timeouts(setup_s=30.0), stragglers=Stragglers(interval_s=INTERVAL_S), budget=Budget(max_restarts=1000)
    )
    spec = msgspec.structs.replace(job_spec(spare_gpus=0, min_replicas=1), resiliency=wanted)
    world = World(seed, plan=WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(3)}))
    world.start()
    world.faults.schedule(600.0, 0)
    world.slowness.schedule(ASK_S, ASK_S, 1)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_rank_is_acted_on_though_no_view_lasts_for_two_windows(seed: int) -> None:
    world = measured(seed)
    for number in range(40):
        world.kernel.after(ASK_S + 0.45 * INTERVAL_S * number, world.faults.blip)
    world.kernel.run(ASK_S)
    before = world.server.rows.epoch
    until(world, lambda: bool(acts(world)), limit_s=12.0 * INTERVAL_S)
    assert world.server.rows.epoch - before >= 4, "one for each of its windows"
    (found,) = [each for key, each in world.server.rows.signals.items() if key.startswith(SlowRank.KIND)] or [None]
    assert found is None or found.evidence["epoch"] > before
    assert world.checkers.violations == []
