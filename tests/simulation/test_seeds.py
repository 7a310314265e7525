"""The real policy in the seeded world. A seed that failed once stays here."""

import pytest

from controlplane.simulator.__main__ import main
from controlplane.simulator.faults import Fault
from controlplane.simulator.world import World

# What each of them found, when it was found.
FOUND = {
    37: "devices of an incarnation nobody had proved gone were given away",
    45: "a hardware finding was settled before the eviction that rested on it",
    87: "a lost heartbeat and another replica's hang evicted a healthy replica",
    126: "two silent nodes under packet loss were both evicted",
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


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_no_seed_breaks_an_invariant(first):
    assert {s: v for s in range(first, first + 10) if (v := World(s).run().violations)} == {}


def test_no_seed_breaks_an_invariant_while_a_replica_stands_by():
    assert {seed: found for seed in range(12) if (found := World(seed, standing_by=1).run().violations)} == {}


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


def test_a_killed_rank_loses_no_step():
    world = struck(Fault.RANK_KILL)
    assert world.server.rows.committed_step > 60
    assert world.checkers.evictions == 1


def test_an_attempt_that_has_saved_pays_for_no_idle_attempt_before_it():
    world = World(3)
    world.start()
    world.faults.schedule(60.0, 0)
    world.server.rows.no_progress = 3
    world.kernel.run(20.0)
    assert world.server.rows.checkpoints
    world.faults.strike(Fault.RANK_KILL)
    world.kernel.run(60.0)
    assert (world.server.rows.state, world.server.rows.no_progress) == ("running", 0)


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
