"""The simulator's nodes: `agents.core` on a simulated machine."""

import pytest

from controlplane.changes.outbox import LIVE
from controlplane.simulator.judge import READS
from controlplane.simulator.world import World


def calm(until_s: float = 30.0, seed: int = 3) -> World:
    """A world that trains, and in which nothing goes wrong by itself."""
    world = World(seed)
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(until_s)
    return world


def incarnations(world: World) -> list[int]:
    return [row.incarnation for row in world.server.rows.replicas.values()]


def test_ranks_train_on_while_their_agent_is_away_and_are_met_again():
    world = calm()
    agent, committed = world.agents["node-1"], world.server.rows.committed_step
    ranks = [child.rank for child in agent.machine.children.values()]
    assert ranks
    agent.stop(1.5)
    world.kernel.run(world.kernel.now_s + 1.0)
    assert agent.machine.children and all(rank.alive for rank in ranks)
    world.kernel.run(world.kernel.now_s + 10.0)
    assert world.server.rows.committed_step > committed + 5
    assert (world.checkers.violations, world.checkers.evictions, incarnations(world)) == ([], 0, [1, 1, 1])
    assert all(child.conn_id for child in agent.machine.children.values())


# After 21 and after 26 a command was closed in the journal and its answer not kept: it was never answered.
@pytest.mark.parametrize("effects", sorted({*range(1, 40, 3), 21, 26}))
def test_an_agent_that_ends_after_any_effect_of_a_recovery_goes_on_from_its_journal(effects):
    world = calm()
    victim = next(process for process in world.trainer.processes.values() if process.index == 1)
    agent = world.agents[victim.ranks[0].node]
    agent.restarts_after, agent.away_s = effects, 0.5
    world.faults.kill_rank(victim)
    world.kernel.run(90.0)
    rows = world.server.rows
    assert (world.checkers.violations, rows.state, rows.restarts) == ([], "running", 0)
    assert all(row.contributing for row in rows.replicas.values())
    live = [row.envelope.body for row in rows.commands.values() if row.state in LIVE]
    assert [body for body in live if not isinstance(body, READS)] == [], "each has its answer; a checkpoint is read yet"


def test_after_a_reboot_with_its_disk_kept_nothing_runs_and_the_fences_stand():
    world = calm()
    agent = world.agents["node-1"]
    world.faults.lose_node(agent)
    world.kernel.run(world.kernel.now_s + 0.5)
    assert agent.machine.disk.written
    agent.reboot(disk_kept=True)
    world.kernel.run(world.kernel.now_s + 60.0)
    assert (world.checkers.violations, world.server.rows.state) == ([], "running")
    assert agent.machine.boot == 1


def test_a_device_that_wants_a_reset_is_kept_from_work_reset_and_its_node_returns():
    """The error ends the rank on the device, and both are told at once."""
    world = calm(20.0)
    node = world.server.rows.nodes[next(iter(world.server.rows.replicas.values())).placements[0].node_id]
    world.agents[node.id].xid(0, 95)
    world.kernel.run(world.kernel.now_s + 0.5)
    assert (node.state, node.barred) == ("cordoned", {0})
    world.kernel.run(world.kernel.now_s + 30.0)
    assert (node.state, node.barred, node.resets) == ("ready", set(), {})
    assert (world.checkers.violations, world.checkers.evictions) == ([], 1)
