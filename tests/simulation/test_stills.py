"""An agent, or its whole node, stands still for a while and goes on: nobody is ended for what nobody watched."""

import os

import pytest

from controlplane.simulator.faults import STILLS
from controlplane.simulator.world import World


@pytest.mark.parametrize("seed", range(7090, 7102 if "HOLDFAST_TEST_RELEASE" in os.environ else 7096))
def test_agents_and_nodes_that_stand_still_end_nobody_healthy(seed):
    world = World(seed)
    outcome = world.run(2, stills=4)
    assert outcome.violations == ()
    assert set(world.faults.injected) & set(STILLS)
