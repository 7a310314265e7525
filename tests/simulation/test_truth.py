"""What the checkers hold against an eviction is what was injected, however it came about."""

import msgspec
import pytest

from controlplane.policy.plan import Decision
from controlplane.policy.rules import restart
from controlplane.simulator import mixed
from controlplane.simulator.world import World
from trainer.core.rank import Stage


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


def test_a_server_that_was_away_learns_when_a_step_was_committed_and_not_only_that_it_was() -> None:
    world = training()
    process = next(iter(world.trainer.processes.values()))
    world.server.pause(40.0)
    world.faults.hang_rank(process)
    world.kernel.run(110.0)
    assert world.server.rows.evictions == 1, "steps of before the hang do not refute it"
    world.kernel.run(150.0)
    assert world.checkers.violations == []
    assert world.server.rows.state == "running"


def test_who_saw_the_last_step_and_had_no_agent_does_not_clear_the_rank_that_hangs_in_it() -> None:
    world = training()
    hung = next(each for each in world.trainer.processes.values() if each.index == 0)
    while not all(rank.core.stage is Stage.PASSING for rank in hung.ranks.values()):
        world.kernel.run(world.kernel.now_s + 0.001)
    world.faults.hang_rank(hung)
    for process in world.trainer.processes.values():
        if process is not hung:
            world.faults.agents[process.first.node].stop(8.0)
    world.server.pause(9.0)
    world.kernel.run(80.0)
    assert world.checkers.violations == []
    assert [entry for entry in world.server.rows.history if entry.endswith(":hang")]
    assert world.server.rows.state == "running"


def test_a_node_whose_agent_starts_again_is_out_of_touch_so_long() -> None:
    world = training()
    agent = world.agents["node-1"]
    world.faults.restart_agent(agent)
    while not any("the agent of node-1 ends after" in line for line in world.kernel.tape):
        world.kernel.run(world.kernel.now_s + 0.01)
    assert world.network.out_of_touch_s("node-1", 6.0) is not None


def test_an_attempt_that_ends_for_too_few_replicas_has_too_few() -> None:
    world = training()
    ended = Decision(
        rule=restart.RULE, choice="restart", reason_code="no_contributor", sentence="none is left", key="k", actions=()
    )
    world.checkers.decided(ended)
    (said,) = world.checkers.violations
    assert "I-restart: attempt ended with 3 sound holders of the newest state, 1 are needed" in said
    for process in tuple(world.trainer.processes.values()):
        world.faults.kill_rank(process)
    world.checkers.decided(msgspec.structs.replace(ended, key="l"))
    assert world.checkers.violations == [said]


def test_whom_a_view_leaves_out_holds_the_newest_state_until_that_is_installed() -> None:
    world = training()
    rows, processes = world.server.rows, tuple(world.trainer.processes.values())
    out, ordered = processes[1], rows.view
    assert ordered is not None
    for row in rows.replicas.values():
        row.ordered_out = "ada"
    assert world.truth.holders() == (3, 1), "that a person wants them out changes nothing"
    stay = tuple(each for each in ordered.members if each.replica != out.index)
    rows.view = msgspec.structs.replace(ordered, members=stay)
    assert world.truth.holders() == (2, 1)
    rows.install = None
    assert world.truth.holders() == (3, 1)
    for rank in processes[0].ranks.values():
        rank.core.standing.epoch += 1
    assert world.truth.holders() == (2, 1), "somebody is in it all the same"


@pytest.mark.parametrize("seed", [960107, 960405, 960524, 961149])
def test_worlds_in_which_the_checkers_were_wrong_pass(seed: int) -> None:
    assert mixed.run(seed).violations == ()


def test_a_broken_device_under_a_start_ends_it_in_a_seed() -> None:
    assert World(29, standing_by=1).run(24).violations == ()
