"""Checkpoints whose bytes rot, numbers that go bad, and connections of a process that ended, in whole worlds."""

import pytest

from controlplane.protocol.states import CheckpointState
from controlplane.simulator.extras import Extras
from controlplane.simulator.world import World


def restarts(outcome: object) -> list[str]:
    return [each for each in outcome.decisions if each.startswith("restart:restart:nan_loss")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(30, 36))
def test_worlds_whose_checkpoints_rot_and_whose_numbers_go_bad_hold_every_invariant(seed: int) -> None:
    world = World(seed, steps=100_000)
    assert world.run(2, extras=Extras(rotten=3, bad_numbers=1)).violations == ()


def test_one_bad_step_ends_one_attempt_however_many_ranks_report_it() -> None:
    world = World(6, steps=100_000)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.after(40.0, world.harsh.lose_numbers)
    world.kernel.run(90.0)
    assert len(restarts(world.outcome())) == 1 and world.checkers.violations == []


def test_what_rots_before_it_is_read_is_found_and_what_does_not_climbs() -> None:
    world = World(4, steps=100_000)
    world.start()
    world.faults.schedule(400.0, 0)
    world.storage.rotten.add("/checkpoints/job_sim/1/2/40")
    world.kernel.run(120.0)
    states = {fact.step: fact.state for fact in world.server.rows.checkpoints}
    assert (states[20], states[40], states[60]) == (
        CheckpointState.VERIFIED,
        CheckpointState.CORRUPT,
        CheckpointState.VERIFIED,
    )
    assert world.checkers.violations == []


def test_a_node_that_does_not_come_back_to_a_server_that_was_restarted_is_not_called_connected_for_ever() -> None:
    world = World(4, steps=100_000)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(20.0)
    node = world.server.rows.nodes["node-4"]
    world.agents["node-4"].stop(300.0)
    world.server.restart(0.5)
    for name, agent in world.agents.items():
        if name != "node-4":
            agent.hang_up()
    world.kernel.run(30.0)
    assert node.connected, "its connection was of a process that is gone: nobody saw the end of it"
    world.kernel.run(40.0)
    assert not node.connected and world.server.rows.nodes["node-3"].connected
