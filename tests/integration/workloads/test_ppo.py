"""PPO on real Megatron ranks: whatever dies, the numbers are those of an undisturbed run."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.flight import decode_dump
from tests.forks import command
from tests.integration.workloads.scenarios import BASE, STEPS, Outcome
from trainer.checkpoint.manifest import list_complete, verify
from trainer.workloads.ppo.controller import StepResult
from trainer.workloads.ppo.demo import COMPARED, TOLERANCE, Report

pytestmark = pytest.mark.trainer
Outcomes = dict[str, Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ppo")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> Outcomes:
    """Every scenario, run once."""
    argv = command("-m", "tests.integration.workloads.scenarios", str(folder))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return msgspec.json.decode((folder / "outcomes.json").read_bytes(), type=Outcomes)


def assert_near(found: StepResult, wanted: StepResult) -> None:
    """Sums in another order: the same samples were drawn, the numbers agree to the tolerance."""
    assert found.responses == wanted.responses
    for name in COMPARED:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), abs=TOLERANCE), name


@pytest.mark.parametrize(
    "name", ["replica_killed", "scattered", "hung_rank", "stopped_and_continued", "loss_in_a_recovery"]
)
def test_a_recovered_run_equals_the_undisturbed_one_to_the_last_bit(outcomes: Outcomes, name: str) -> None:
    found, wanted = outcomes[name], outcomes["undisturbed"]
    assert len(wanted.steps) == STEPS
    assert found.steps == wanted.steps
    assert found.state == wanted.state


def test_healthy_ranks_restore_from_memory_and_only_fresh_ones_load(outcomes: Outcomes) -> None:
    _, recovery, _ = outcomes["replica_killed"].recoveries
    assert recovery is not None
    assert recovery.fresh == [1, 3]
    assert recovery.sources == {"memory": 2, "storage": 2}
    assert recovery.places == [0, 4, 2, 5]


def test_every_rank_answers_at_its_own_private_door(outcomes: Outcomes) -> None:
    notes = outcomes["saved"].notes
    assert notes["doors"] == ["0o700"] + ["0o600"] * 4
    looks = notes["looks"]
    assert {what: looks[what][1] for what in ("ping", "flight_recorder", "wait_counters", "profile")} == {
        "ping": "debug server",
        "flight_recorder": "debug server",
        "wait_counters": "debug server",
        "profile": "sampling",
    }
    assert "_wait_for_wakes" in looks["stacks"][0]
    dump = decode_dump(looks["flight_recorder"][0])
    assert dump.groups[0].ranks == (0, 1, 2, 3)
    assert dump.entries


def test_with_everybody_alive_recovery_does_nothing(outcomes: Outcomes) -> None:
    before, _, after = outcomes["replica_killed"].recoveries
    assert (before, after) == (None, None)


def test_dead_ranks_that_are_no_neighbours_are_replaced_at_their_own_places(outcomes: Outcomes) -> None:
    outcome = outcomes["scattered"]
    (recovery,) = outcome.recoveries
    assert recovery is not None
    assert outcome.notes["lost"] == [0, 3]
    assert recovery.places == [4, 1, 2, 5]
    assert recovery.fresh == [0, 3]
    assert recovery.step == 1


def test_after_recovery_each_replica_gets_the_samples_it_had_before(outcomes: Outcomes) -> None:
    found, wanted = outcomes["replica_killed"].steps, outcomes["undisturbed"].steps
    for step in range(STEPS):
        numbers = list(range(step * BASE.global_batch, (step + 1) * BASE.global_batch))
        assert [sample for replica in found[step].sharding for sample in replica] == numbers
        assert [len(replica) for replica in found[step].sharding] == [4, 4]
        assert found[step].trained == wanted[step].trained
        trained = [sample for update in found[step].trained for replica in update for sample in replica]
        assert sorted(trained) == numbers


def test_stale_rendezvous_variables_are_gone_from_every_rank(outcomes: Outcomes) -> None:
    notes = outcomes["replica_killed"].notes
    for when, holders in (("before", ["0", "1", "2", "3"]), ("after", ["0", "4", "2", "5"])):
        for rank, number in enumerate(holders):
            seen = notes[when][number]
            assert (seen["RANK"], seen["WORLD_SIZE"]) == (str(rank), "4")
            assert (seen["LOCAL_RANK"], seen["LOCAL_WORLD_SIZE"]) == ("0", "1")
            assert seen["MASTER_ADDR"] == "127.0.0.1"
            assert seen["MASTER_PORT"] != "1"
            assert "GROUP_RANK" not in seen


def test_without_spares_the_mesh_shrinks_and_the_same_samples_are_trained(outcomes: Outcomes) -> None:
    outcome = outcomes["no_spare"]
    (recovery,) = outcome.recoveries
    assert recovery is not None
    assert recovery.dissolved == [0]
    assert recovery.sources == {"memory": 2}
    assert [len(result.sharding) for result in outcome.steps] == [2, 1, 1]
    assert [len(update[0]) for update in outcome.steps[1].trained] == [BASE.mini_batch] * 2
    for found, wanted in zip(outcome.steps, outcomes["undisturbed"].steps, strict=True):
        assert_near(found, wanted)


def test_a_hung_rank_is_ended_at_the_deadline_and_replaced(outcomes: Outcomes) -> None:
    outcome = outcomes["hung_rank"]
    assert "no answer to Update in time; ended" in outcome.notes["lost"].values()
    (recovery,) = outcome.recoveries
    assert recovery is not None


def test_ranks_that_gave_up_on_a_slow_one_meet_again_without_a_death(outcomes: Outcomes) -> None:
    outcome = outcomes["stopped_and_continued"]
    assert "process 0" in outcome.notes["words"]
    assert outcome.notes["alive"] == [0, 1, 2, 3]
    (recovery,) = outcome.recoveries
    assert recovery is not None
    assert (recovery.fresh, recovery.dissolved, recovery.sources) == ([], [], {"memory": 4})


def test_a_loss_in_the_midst_of_a_recovery_is_recovered_too(outcomes: Outcomes) -> None:
    (recovery,) = outcomes["loss_in_a_recovery"].recoveries
    assert recovery is not None
    assert 0 not in recovery.places
    assert 1 not in recovery.places


def test_spares_alone_carry_on_from_storage_and_the_end_is_said(outcomes: Outcomes) -> None:
    outcome = outcomes["all_lost"]
    (recovery,) = outcome.recoveries
    assert recovery is not None
    assert recovery.sources == {"storage": 2}
    assert "ranks are dead, 0 spares are left" in outcome.notes["end"]
    for found, wanted in zip(outcome.steps, outcomes["undisturbed"].steps, strict=True):
        assert_near(found, wanted)


def test_a_checkpoint_is_committed_whole_and_another_mesh_goes_on_from_it(outcomes: Outcomes, folder: Path) -> None:
    ((path, found),) = list_complete(folder / "saved" / "checkpoints")
    assert (found.step, found.consumed_samples, found.layout.replicas) == (1, BASE.global_batch, 2)
    assert verify(path).ok
    resumed = outcomes["resumed"].steps
    assert [result.step for result in resumed] == [1, 2]
    for result, wanted in zip(resumed, outcomes["undisturbed"].steps[1:], strict=True):
        assert_near(result, wanted)


def test_tensor_parallel_ranks_compute_the_same_step(outcomes: Outcomes) -> None:
    (one,), (two,) = outcomes["one_rank"].steps, outcomes["two_tensor_ranks"].steps
    assert_near(two, one)


def test_the_actor_learns_to_write_what_pays(outcomes: Outcomes) -> None:
    rewards = outcomes["learning"].notes["rewards"]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.1


def test_the_demo_is_one_command_that_prints_its_durations_and_its_proof(tmp_path: Path) -> None:
    sizes = ["--global-batch", "8", "--mini-batch", "8", "--steps", "2", "--spares", "2"]
    argv = command("-m", "trainer.workloads.ppo", "--demo", *sizes, "--report", str(tmp_path / "r.json"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "equal to the undisturbed run to the last bit" in done.stdout
    report = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=Report)
    assert report.exact
    assert report.faults == []
    assert report.steps == report.undisturbed
    for phase in report.phases:
        assert phase.name in done.stdout
    wanted = ("start processes", "save step 1", "kill a replica", "enter a world", "restore", "undisturbed run")
    assert {*wanted} <= {phase.name for phase in report.phases}
