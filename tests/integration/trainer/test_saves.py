"""Saves that fail, saves that are shared out, saves that are killed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import crash_harness
from benchmarks.crash_harness import Kill
from tests.forks import command
from tests.integration.trainer import save_probe

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What `save_probe` found."""
    done = subprocess.run(
        command("-m", "tests.integration.trainer.save_probe"), capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_full_disk_fails_the_save_of_either_tier_and_training_goes_on(facts: dict[str, Any]) -> None:
    states = [(kind, state) for kind, state, _ in facts["full"]]
    assert states == [("manual", "writing"), ("manual", "failed"), ("local", "failed")]
    assert [facts["full_says"] in error for _, _, error in facts["full"]] == [False, True, True], facts["full"]
    assert facts["loss_after"] > 0


def test_a_disk_that_fails_in_fsync_fails_the_save_of_either_tier_until_it_is_mended(facts: dict[str, Any]) -> None:
    states = [(kind, state) for kind, state, _ in facts["broken"]]
    assert states == [("manual", "writing"), ("manual", "failed"), ("local", "failed")]
    assert ["Input/output error" in error for _, _, error in facts["broken"]] == [False, True, True], facts["broken"]
    assert facts["mended"] == ["writing", "complete", "complete"]


def test_a_local_save_without_memory_for_its_buffers_fails_and_the_next_one_does_not(facts: dict[str, Any]) -> None:
    """Of the persistent tier the probe itself asserts it: rank 0 is told, and does not wait."""
    (_, failed, error), (_, complete, _) = facts["no_memory"]
    assert (failed, complete) == ("failed", "complete")
    assert "no buffer in memory" in error


def test_a_failed_save_leaves_nothing_that_takes_space(facts: dict[str, Any]) -> None:
    assert facts["left_behind"] == []


def test_training_goes_on_while_a_save_is_written_and_changes_nothing_in_it(facts: dict[str, Any]) -> None:
    """Also: a scheduled save that comes meanwhile is left out, it neither waits nor fails."""
    assert facts["while_held_up"] == [[1, "writing"]]
    assert facts["afterwards"] == [[1, "writing"], [1, "complete"]]
    assert facts["saved_is_then_not_now"] == [True, True]


def test_data_parallel_ranks_share_a_save_out_and_each_loads_all_of_it(facts: dict[str, Any]) -> None:
    mine, other = facts["shares"]
    assert min(mine, other) > 0.3 * (mine + other)
    assert len(set(facts["hashes"].values())) == 1
    assert set(facts["hashes"]) == {"0-of-2", "1-of-2", "0-of-1"}


def test_data_parallel_ranks_that_share_the_optimizer_out_keep_half_of_it_each(facts: dict[str, Any]) -> None:
    found = facts["optimizers"]
    shared, plain = ([found[f"trained-{kind}-{rank}"] for rank in (0, 1)] for kind in ("shared", "plain"))
    parameters = plain[0]["elements"]
    assert [rank["elements"] for rank in plain] == [parameters, parameters]
    assert sum(rank["elements"] for rank in shared) == parameters
    assert max(rank["elements"] for rank in shared) < 0.52 * parameters
    # bf16 parameters are whole on both; masters, moments and step counts are one rank's or the other's.
    assert all(rank["donated"] < parameters + 0.52 * (plain[0]["donated"] - parameters) for rank in shared)


def test_they_stage_half_of_the_gradient_each(facts: dict[str, Any]) -> None:
    found = facts["optimizers"]
    staged = [found[f"trained-shared-{rank}"]["staged"] for rank in (0, 1)]
    assert staged[0] == staged[1] < 0.52 * found["trained-plain-0"]["staged"]


def test_they_train_as_those_that_do_not_and_all_hold_the_parameters_of_each_step(facts: dict[str, Any]) -> None:
    first, second, plain, other = (
        facts["optimizers"][f"trained-{kind}-{rank}"] for kind in ("shared", "plain") for rank in (0, 1)
    )
    assert first["norms"] == second["norms"] == pytest.approx(plain["norms"], rel=1e-4)
    assert min(first["norms"]) > 2 * save_probe.CLIPPED
    assert (first["hash"], plain["hash"]) == (second["hash"], other["hash"])


@pytest.mark.parametrize("reader", ["shared-shared", "shared-plain", "plain-shared", "shared-alone"])
def test_the_whole_state_is_loaded_bit_for_bit_whoever_shares_it_out(facts: dict[str, Any], reader: str) -> None:
    found, source = facts["optimizers"], reader.split("-")[0]
    trained = [found[f"trained-{source}-{rank}"] for rank in (0, 1)]
    loaded = [facts for name, facts in found.items() if name.startswith(f"loaded-{reader}-")]
    assert len(loaded) == (1 if reader == "shared-alone" else 2)
    assert _whole_state(loaded) == _whole_state(trained)
    assert {rank["hash"] for rank in loaded} == {trained[0]["hash"]}
    assert all(rank["steps"] == [3.0] for rank in loaded)


def _whole_state(ranks: list[dict[str, Any]]) -> dict[str, str]:
    return {key: digest for rank in ranks for key, digest in rank["state"].items()}


def test_a_restore_test_loads_any_layout_into_one_rank(facts: dict[str, Any]) -> None:
    ok, loaded, detail = facts["examined"]
    assert (ok, loaded) == (True, True)
    assert "loaded into one rank" in detail
    assert facts["examined_as_another"] == [False, "its marker is of step 3, epoch 1, job_probe"]


def test_the_hash_that_replicas_compare_sees_optimizer_schedule_and_random_state(facts: dict[str, Any]) -> None:
    assert facts["state_hash"] == {
        "optimizer": True, "random": True, "schedule": True, "again": True, "parameters": True,
    }  # fmt: skip


def test_random_state_goes_on_in_the_same_layout_and_starts_alike_in_another(facts: dict[str, Any]) -> None:
    assert facts["own"][0] == facts["own"][1]
    first, again, neighbour = facts["other"]
    assert first == again
    assert all(mine != theirs for mine, theirs in zip(first, neighbour, strict=True))
    assert first != facts["own"][0]


def test_real_saves_that_are_killed_leave_something_that_loads(facts: dict[str, Any]) -> None:
    assert facts["kills"] == []


def test_sixty_kills_leave_the_newest_complete_checkpoint_whole(tmp_path: Path) -> None:
    found = crash_harness.run(tmp_path, crash_harness.plans(60, seed=11), seed=11)
    assert found.faults == []
    assert found.kills == 60
    assert found.commits >= 20
    assert len(found.killed_in) >= 4


def test_a_kill_before_the_marker_leaves_a_torso_that_is_passed_over(tmp_path: Path) -> None:
    """At calls all over the first saves: none of them may leave a half checkpoint that counts."""
    kills = [Kill(at_call=number) for number in range(20, 110, 4)]
    found = crash_harness.run(tmp_path, kills, seed=1)
    assert found.faults == []
    assert found.partials > 0
