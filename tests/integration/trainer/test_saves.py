"""Saves that fail, saves that are shared out, saves that are killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import crash_harness
from benchmarks.crash_harness import Kill

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """What `save_probe` found."""
    probe = [sys.executable, "-m", "tests.integration.trainer.save_probe"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=110)
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


def test_a_restore_test_loads_any_layout_into_one_rank(facts: dict[str, Any]) -> None:
    ok, loaded, detail = facts["examined"]
    assert (ok, loaded) == (True, True)
    assert "loaded into one rank" in detail
    assert facts["examined_as_another"] == [False, "its marker is of step 3, epoch 1, job_probe"]


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
    assert found.torsos > 0
