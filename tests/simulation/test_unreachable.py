"""The exchange fails again and again for all of them, and no error names anybody (P10)."""

from controlplane.simulator.faults import Fault
from controlplane.simulator.world import World


def broken_until(world: World, what: str, limit_s: float) -> list[str]:
    """The exchange fails in each view before a step is committed in it, until `what` is decided; what was."""
    rows = world.server.rows
    before = len(rows.history)
    while not any(what in entry for entry in rows.history[before:]):
        assert world.kernel.now_s < limit_s, f"{what} did not come: {rows.history[before:]}"
        if rows.install is not None and not rows.signals:
            world.faults.strike(Fault.EXCHANGE_BLIP)
        world.kernel.run(world.kernel.now_s + 0.01)
    return rows.history[before:]


def left_out_for_a_guess() -> World:
    world = World(3)
    world.start()
    world.faults.schedule(200.0, 0)
    world.kernel.run(30.0)
    told = broken_until(world, "leave_out", 60.0)
    assert told.count("outer_error:reissue_view:exchange_failed") >= 3
    assert told[-1] == "leave_out:leave_out:unreachable"
    return world


def test_the_one_that_is_guessed_is_left_out_and_rejoins_as_it_is_when_the_exchange_works():
    world = left_out_for_a_guess()
    rows = world.server.rows
    assert rows.view.waits(0, 1)
    world.kernel.run(world.kernel.now_s + 30.0)
    assert (world.checkers.left_out, world.checkers.evictions, world.checkers.violations) == (1, 0, [])
    assert (rows.state, [replica.incarnation for replica in rows.replicas.values()]) == ("running", [1, 1, 1])
    assert all(replica.contributing for replica in rows.replicas.values())


def test_when_the_exchange_fails_with_it_a_second_time_it_is_ended_and_started_again():
    world = left_out_for_a_guess()
    rows = world.server.rows
    world.kernel.run(world.kernel.now_s + 15.0)
    told = broken_until(world, "replica_failure", 100.0)
    assert "replica_failure:evict_and_replace:unreachable" in told
    world.kernel.run(200.0)
    assert (world.checkers.left_out, world.checkers.evictions) == (1, 1)
    assert (rows.state, [replica.incarnation for replica in rows.replicas.values()]) == ("running", [2, 1, 1])
    assert all(replica.contributing for replica in rows.replicas.values())


def test_a_rank_that_was_stopped_as_its_exchange_broke_finds_that_when_it_runs_again():
    """Nobody else is in the view who would."""
    world = World(3)
    world.start()
    world.faults.schedule(60.0, 0)
    world.kernel.run(40.0)
    alone = next(process for process in world.trainer.processes.values() if process.index == 0)
    for process in world.trainer.processes.values():
        if process is not alone:
            world.faults.kill_rank(process)
    while (view := world.server.rows.view).epoch != alone.epoch or len(view.members) > 1:
        world.kernel.run(world.kernel.now_s + 0.1)
    rank = alone.ranks[0]
    rank.hung, rank.hung_since_s = True, world.kernel.now_s
    world.trainer.break_group_of(alone)
    world.kernel.run(world.kernel.now_s + 1.0)
    world.trainer.wake(rank)
    assert alone.noticed == view.epoch
