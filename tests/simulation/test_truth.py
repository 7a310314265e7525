"""What the checkers hold against an eviction is what was injected, however it came about."""

import pytest

from controlplane.simulator import mixed
from controlplane.simulator.world import World


def training(seed: int = 21) -> World:
    world = World(seed)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(20.0)
    return world


def test_a_process_that_is_stopped_again_stands_since_it_was_stopped_first() -> None:
    process = next(iter(training().trainer.processes.values()))
    rank = process.ranks[0]
    rank.stop(20.0, 19.0)
    rank.stop(25.0, 24.0)
    assert (rank.hung, rank.hung_since_s, rank.stood_since_s) == (True, 20.0, 19.0)
    rank.hung = False
    rank.stop(30.0, 29.0)
    assert (rank.hung_since_s, rank.stood_since_s) == (30.0, 29.0)


def test_a_broken_device_is_true_of_a_replica_that_is_placed_on_it_and_has_not_come_up_yet() -> None:
    world = training()
    row = world.server.rows.replicas[0]
    place = row.placements[0]
    name = (row.attempt, row.index, row.incarnation)
    del world.trainer.processes[name]
    assert world.truth.sick(*name, "xid_fatal") is None
    world.agents[place.node_id].machine.broken.add(place.device_index)
    assert world.truth.sick(*name, "xid_fatal") == "a device under it is broken"
    assert world.truth.sick(*name, "hang") is None


def test_an_exchange_that_failed_keeps_its_members_until_another_view_comes() -> None:
    world = training()
    row = world.server.rows.replicas[0]
    name = (row.attempt, row.index, row.incarnation)
    assert world.truth.keeps(*name) is None
    world.faults.blip()
    world.server.pause(60.0)
    world.kernel.run(60.0)
    assert world.truth.keeps(*name) == "every exchange fails"
    world.kernel.run(120.0)
    assert world.truth.keeps(*name) is None


@pytest.mark.parametrize("seed", [960107, 960405, 960524, 961149])
def test_worlds_in_which_the_checkers_were_wrong_pass(seed: int) -> None:
    assert mixed.run(seed).violations == ()


def test_a_broken_device_under_a_start_ends_it_in_a_seed() -> None:
    assert World(29, standing_by=1).run(24).violations == ()
