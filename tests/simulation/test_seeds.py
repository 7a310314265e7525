"""The real policy in the seeded world. A seed that failed once stays here."""

import os

import msgspec
import pytest

from controlplane.protocol.spec import Budget, Resiliency, Timeouts
from controlplane.protocol.states import AttemptState
from controlplane.simulator.__main__ import main
from controlplane.simulator.faults import Fault
from controlplane.simulator.load import load
from controlplane.simulator.process import Rank
from controlplane.simulator.rows import AttemptRow
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan, job_spec

# Before a release as many again.
MANY, FEW = (40, 12) if "HOLDFAST_TEST_RELEASE" in os.environ else (10, 6)
NODES = {f"node-{index}": 2 for index in range(5)}

# What each of them found, when it was found.
FOUND = {
    37: "devices of an incarnation nobody had proved gone were given away",
    45: "a hardware finding was settled before the eviction that rested on it",
    87: "a lost heartbeat and another replica's hang evicted a healthy replica",
    126: "two silent nodes under packet loss were both evicted",
    123: "an answer to a view that was lost with an agent was not given again",
    217: "a rank that was stopped when its agent started again was taken to be in its start for ever",
    369: "a machine that lost power forked an incarnation a second time",
    1426: "one attempt's key silenced the same eviction in the next",
    1550: "a job that failed for its spent budget was taken to have failed without a reason",
    1817: "a step that only a joiner had committed was forgotten",
}

# (seed, how many replicas stand by)
FOUND_STANDING_BY = {
    (181, 1): "an attempt with too few replicas and room for no more waited for ever",
    (3018, 2): "replicas that stand by accused the only one that computes by waiting for it",
    (3148, 2): "a finding about a replica that the new attempt does not have stayed open",
    (5137, 1): "a step that only one that stands by had told of was no progress, and a lost heartbeat evicted",
    (5222, 1): "a step that only one that stands by had told of was no progress, and a lost heartbeat evicted",
}

# (seed, how many stand by, share of messages that are lost all the time)
FOUND_LOSSY = {
    (3098, 1, 0.05): "replicas that had waited for the install were taken to wait for a silent one",
    (4145, 0, 0.05): "a word from before a step was committed accused a silent replica",
}

# (seed, how many stand by, shares of messages that are lost and that are repeated): each ended a
# healthy replica of a node that had missed two frames, the last one of a rank that had gone on
FOUND_HARSH = {
    (902611, 0, 0.2, 0.2): "of three replicas two waited, and the third's frames were lost",
    (902611, 2, 0.2, 0.1): "of three replicas two waited, and the third's frames were lost",
    (902627, 0, 0.2, 0.2): "the last two replicas, and one's frames were lost",
    (903009, 0, 0.2, 0.2): "a rank that was stopped for 5 s, and the word of it came late",
}


@pytest.mark.parametrize("seed", sorted(FOUND))
def test_a_seed_that_failed_once_passes(seed):
    assert World(seed).run().violations == ()


@pytest.mark.parametrize(("seed", "standing_by"), sorted(FOUND_STANDING_BY))
def test_a_seed_that_failed_once_while_a_replica_stands_by_passes(seed, standing_by):
    assert World(seed, standing_by=standing_by).run().violations == ()


@pytest.mark.parametrize(("seed", "standing_by", "loss"), sorted(FOUND_LOSSY))
def test_a_seed_that_failed_once_on_a_bad_network_passes(seed, standing_by, loss):
    world = World(seed, standing_by=standing_by)
    world.network.loss = loss
    assert world.run().violations == ()


@pytest.mark.parametrize(("seed", "standing_by", "loss", "repeat"), sorted(FOUND_HARSH))
def test_nobody_healthy_is_ended_where_a_fifth_of_all_messages_is_lost(seed, standing_by, loss, repeat):
    world = World(seed, standing_by=standing_by)
    world.network.loss, world.network.repeat, world.network.extra_delay_s = loss, repeat, 0.3
    assert [told for told in world.run().violations if "I-evict" in told] == []


@pytest.mark.parametrize("cut_s", [3.0, 6.0, 11.0])
def test_with_25_s_steps_a_node_that_is_cut_off_for_a_while_is_never_replaced(cut_s):
    wanted = job_spec()
    patient = msgspec.structs.replace(wanted.resiliency.timeouts, step_s=150.0)
    resiliency = msgspec.structs.replace(wanted.resiliency, timeouts=patient)
    spec = msgspec.structs.replace(wanted, resiliency=resiliency)
    world = World(3, plan=WorldPlan(spec=spec, nodes=NODES, timing=Timing(micro_batch_s=(12.0, 13.0))))
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(200.0)
    committed = world.server.rows.committed_step
    while world.server.rows.committed_step == committed:
        world.kernel.run(world.kernel.now_s + 0.5)
    world.network.cut_link("node-1")
    world.kernel.run(world.kernel.now_s + cut_s)
    world.network.mend_link("node-1")
    world.kernel.run(400.0)
    rows = world.server.rows
    assert (world.checkers.evictions, rows.restarts, world.checkers.violations) == (0, 0, [])
    assert (rows.state, [replica.incarnation for replica in rows.replicas.values()]) == ("running", [1, 1, 1])


def patient(world: World) -> World:
    """Its agents allow a step more than these faults last, whatever they learn."""
    wanted = world.server.rows.spec
    timeouts = msgspec.structs.replace(wanted.resiliency.timeouts, step_floor_s=6.5)
    resiliency = msgspec.structs.replace(wanted.resiliency, timeouts=timeouts)
    world.server.rows.spec = world.spec = msgspec.structs.replace(wanted, resiliency=resiliency)
    return world


def test_a_member_that_is_cut_off_while_the_others_wait_is_left_out_and_rejoins_as_it_is():
    world = patient(World(3))
    world.start()
    world.faults.schedule(90.0, 0)
    world.kernel.run(20.0)
    cut_while_its_exchange_hangs(world, 4.0)
    world.kernel.run(90.0)
    rows = world.server.rows
    assert (world.checkers.left_out, world.checkers.evictions, world.checkers.violations) == (1, 0, [])
    assert (rows.state, [replica.incarnation for replica in rows.replicas.values()]) == ("running", [1, 1, 1])
    assert all(replica.contributing for replica in rows.replicas.values())


def test_a_node_whose_link_comes_and_goes_costs_fewer_views_each_time_and_nobody_is_ended():
    world = patient(World(3))
    world.start()
    world.faults.schedule(400.0, 0)
    world.kernel.run(20.0)
    cuts = 0
    while world.kernel.now_s < 300.0:
        cut_while_its_exchange_hangs(world, 4.0)
        world.kernel.run(world.kernel.now_s + 7.0)
        cuts += 1
    world.kernel.run(400.0)
    rows = world.server.rows
    assert cuts == 40
    assert 2 <= world.checkers.left_out <= 10
    assert (world.checkers.evictions, world.checkers.violations, rows.state) == (0, [], "running")
    assert all(replica.contributing for replica in rows.replicas.values())


def test_a_member_that_hangs_for_a_while_on_a_node_that_is_heard_is_left_out_and_rejoins_as_it_is():
    world = patient(World(3))
    world.start()
    world.faults.schedule(90.0, 0)
    world.kernel.run(40.0)
    stuck = next(process for process in world.trainer.processes.values() if process.index == 1)
    rank = stuck.ranks[0]
    rank.hung, rank.hung_since_s = True, world.kernel.now_s
    world.kernel.run(world.kernel.now_s + 4.5)
    rows = world.server.rows
    assert rows.view.waits(1, 1)
    world.trainer.wake(rank)
    world.kernel.run(90.0)
    assert (world.checkers.left_out, world.checkers.evictions, world.checkers.violations) == (1, 0, [])
    assert (rows.state, [replica.incarnation for replica in rows.replicas.values()]) == ("running", [1, 1, 1])
    assert all(replica.contributing for replica in rows.replicas.values())


def test_one_that_hangs_for_good_is_left_out_first_and_ended_when_its_agent_finds_it_late():
    world = World(3)
    world.start()
    world.faults.schedule(90.0, 0)
    world.kernel.run(40.0)
    world.faults.hang_rank(next(process for process in world.trainer.processes.values() if process.index == 1))
    world.kernel.run(90.0)
    told = [entry for entry in world.server.rows.history if "leave_out" in entry or "hang" in entry]
    assert told[0] == "leave_out:leave_out:stuck"
    assert told[1].startswith("replica_failure:")
    assert (world.server.rows.restarts, world.checkers.violations) == (0, [])


def owes_an_answer(world: World) -> Rank:
    """The training thread of a rank of replica 1 stands still in its step and the rank beats; then a rank
    of replica 0 dies. Runs until the view without that is announced."""
    world.start()
    world.faults.schedule(120.0, 0)
    world.kernel.run(40.0)
    processes = {process.index: process for process in world.trainer.processes.values()}
    while not processes[1].computes():
        world.kernel.run(world.kernel.now_s + 0.01)
    rank, epoch = processes[1].ranks[0], world.server.rows.epoch
    rank.hung, rank.beats, rank.hung_since_s = True, True, world.kernel.now_s
    world.faults.kill_rank(processes[0])
    while world.server.rows.epoch == epoch:
        world.kernel.run(world.kernel.now_s + 0.05)
    return rank


def test_a_member_whose_answer_to_a_view_alone_is_missing_is_left_out_and_rejoins_when_it_answers():
    world = patient(World(3))
    rank = owes_an_answer(world)
    rows, asked_s = world.server.rows, world.kernel.now_s
    assert rows.install is None
    while not rows.view.waits(1, 1):
        world.kernel.run(world.kernel.now_s + 0.05)
        assert world.kernel.now_s < asked_s + 5.0, "everybody waits for the long limit"
    world.kernel.run(asked_s + 4.5)
    assert rows.install is not None, "the others go on without it"
    assert (rows.install.contributors, rows.view.waits(1, 1)) == ((2,), True), "it has not answered"
    world.trainer.wake(rank)
    world.kernel.run(120.0)
    assert (world.checkers.left_out, rows.restarts, world.checkers.violations) == (1, 0, [])
    assert (rows.state, rows.replicas[1].incarnation) == ("running", 1), "as it is"
    assert all(replica.contributing for replica in rows.replicas.values())


def test_one_that_never_answers_a_view_is_ended_when_its_agent_finds_it_late():
    world = World(3)
    owes_an_answer(world)
    world.kernel.run(120.0)
    rows = world.server.rows
    assert "leave_out:leave_out:unflushed" in rows.history
    assert (rows.restarts, world.checkers.violations, rows.state) == (0, [], "running")
    assert rows.replicas[1].incarnation == 2


def cut_while_its_exchange_hangs(world: World, seconds: float) -> None:
    """Node 1 is out of reach of everybody, the other replicas of its job included."""
    process = next(process for process in world.trainer.processes.values() if process.index == 1)
    world.network.cut_link("node-1")
    for rank in process.ranks.values():
        rank.hung, rank.hung_since_s = True, world.kernel.now_s

    def mend() -> None:
        for rank in process.ranks.values():
            world.trainer.wake(rank)
        world.network.mend_link("node-1")

    world.kernel.after(seconds, mend)


@pytest.mark.parametrize("first", range(0, MANY, 10))
def test_no_seed_breaks_an_invariant(first):
    assert {s: v for s in range(first, first + 10) if (v := World(s).run().violations)} == {}


def test_no_seed_breaks_an_invariant_while_a_replica_stands_by():
    assert {seed: found for seed in range(FEW) if (found := World(seed, standing_by=1).run().violations)} == {}


def test_a_killed_contributor_is_replaced_without_a_restart_by_the_one_that_stands_by():
    world = World(3, standing_by=1)
    world.start()
    world.faults.schedule(60.0, 0)
    world.kernel.run(20.0)
    assert world.server.rows.install.standbys == (2,)
    world.trainer.kill(
        next(
            rank
            for process in world.trainer.processes.values()
            if process.index == 0
            for rank in process.ranks.values()
        )
    )
    world.kernel.run(60.0)
    rows = world.server.rows
    assert (rows.install.contributors, rows.replicas[0].state) == ((1, 2), "spare")
    assert rows.restarts == 0
    assert world.checkers.violations == []


def test_the_same_seed_gives_the_same_tape():
    assert World(7).run().digest == World(7).run().digest


def test_another_seed_gives_another_tape():
    assert World(7).run().digest != World(8).run().digest


def test_without_faults_nothing_is_evicted():
    outcome = World(3).run(faults=0)
    assert (outcome.evictions, outcome.restarts, outcome.violations) == (0, 0, ())


def test_a_short_job_succeeds():
    assert World(3, steps=20).run(faults=0).state == "succeeded"


def struck(kind: Fault, seed: int = 3, until_s: float = 60.0) -> World:
    """A calm world in which one fault strikes at 20 s."""
    world = World(seed)
    world.start()
    world.faults.schedule(until_s, 0)
    world.kernel.run(20.0)
    world.faults.strike(kind)
    world.kernel.run(until_s)
    return world


@pytest.mark.parametrize("kind", [Fault.RANK_KILL, Fault.RANK_HANG, Fault.EXCHANGE_BLIP, Fault.DEVICE_LOST])
def test_one_fault_is_overcome_without_a_restart(kind):
    world = struck(kind)
    assert world.server.rows.state == "running"
    assert world.server.rows.restarts == 0
    assert world.checkers.violations == []


@pytest.mark.parametrize("seed", [2, 3, 7, 11])
def test_where_all_must_train_the_survivors_wait_for_the_replacement_and_nothing_is_rolled_back(seed):
    plan = WorldPlan(spec=job_spec(min_replicas=3), nodes={f"node-{index}": 2 for index in range(5)})
    world = World(seed, plan=plan)
    world.start()
    world.faults.schedule(60.0, 0)
    world.kernel.run(20.0)
    before = world.server.rows.committed_step
    world.faults.strike(Fault.RANK_KILL)
    world.kernel.run(60.0)
    rows = world.server.rows
    assert "replica_failure:hold_and_replace:rank_exit" in rows.history
    assert (rows.state, rows.restarts, world.checkers.violations) == ("running", 0, [])
    assert rows.committed_step > before + 20


def test_no_seed_breaks_an_invariant_where_all_must_train():
    plan = WorldPlan(spec=job_spec(min_replicas=3), nodes={f"node-{index}": 2 for index in range(5)})
    assert {seed: found for seed in range(FEW) if (found := World(seed, plan=plan).run().violations)} == {}


def test_kills_beyond_the_budget_leave_a_smaller_job_that_trains():
    spec = msgspec.structs.replace(
        job_spec(), resiliency=Resiliency(timeouts=Timeouts(setup_s=30.0), budget=Budget(restarts_per_window=1))
    )
    world = World(3, plan=WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(5)}))
    world.start()
    world.faults.schedule(120.0, 0)
    for moment_s in (20.0, 50.0, 80.0):
        world.kernel.run(moment_s)
        before = world.server.rows.committed_step
        world.faults.strike(Fault.RANK_KILL)
    world.kernel.run(120.0)
    rows = world.server.rows
    assert (rows.state, rows.restarts, world.checkers.violations) == ("running", 0, [])
    assert len(rows.view.members) == 1 and rows.committed_step > before + 10


def test_a_killed_rank_loses_no_step():
    world = struck(Fault.RANK_KILL)
    assert world.server.rows.committed_step > 60
    assert world.checkers.evictions == 1


def test_an_attempt_that_has_saved_pays_for_no_idle_attempt_before_it():
    world = World(3)
    world.start()
    world.faults.schedule(60.0, 0)
    spent = AttemptRow(0, AttemptState.ENDED, world.spec.parallelism, 3, 0.0, 0, ended_s=0.0)
    world.server.rows.attempts += [spent] * 3
    world.kernel.run(20.0)
    assert world.server.rows.checkpoints
    world.faults.strike(Fault.RANK_KILL)
    world.kernel.run(60.0)
    assert world.server.rows.state == "running"
    assert load(world.server.rows, 80.0, blind=False).budget.no_progress_cycles == 0


def test_a_cut_link_evicts_nobody_while_steps_go_on():
    world = struck(Fault.NODE_CUT)
    assert world.checkers.evictions == 0


def test_a_stopped_backend_evicts_nobody():
    world = struck(Fault.BACKEND_PAUSE)
    assert world.checkers.evictions == 0
    assert world.server.rows.committed_step > 60


def test_a_checker_that_is_violated_fails_the_run(capsys, monkeypatch):
    from controlplane.policy import membership

    monkeypatch.setattr(membership, "_done", lambda contributing, step: ())
    monkeypatch.setattr(membership, "_step", lambda by_replica, contributing: (0, None))
    assert main(["--seed", "0", "--seeds", "6"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_passing_run_exits_0_and_prints_its_tape(capsys):
    assert main(["--seed", "7"]) == 0
    out = capsys.readouterr().out
    assert "PASSED" in out
    assert "tape: " in out
