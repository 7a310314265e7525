"""The demo's directory stays open to its ranks' users, whichever process of the demo starts later."""

import os
import subprocess
import sys
from pathlib import Path

from controlplane.config.guards import MADE_BY_DEMO, PASS_ONLY, close_directory
from controlplane.demo.directory import take


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_directory_is_closed_to_others(tmp_path):
    tmp_path.chmod(0o755)
    close_directory(tmp_path)
    assert mode(tmp_path) == 0o700


def test_where_others_were_let_through_they_still_are_and_list_nothing(tmp_path):
    (tmp_path / MADE_BY_DEMO).touch()
    tmp_path.chmod(0o755)
    close_directory(tmp_path, demo_may_open=True)
    assert mode(tmp_path) == 0o711
    tmp_path.chmod(0o700)
    close_directory(tmp_path, demo_may_open=True)
    assert mode(tmp_path) == 0o700


def test_outside_the_demo_no_mark_keeps_a_directory_open(tmp_path):
    (tmp_path / MADE_BY_DEMO).touch()
    tmp_path.chmod(0o711)
    close_directory(tmp_path)
    assert mode(tmp_path) == 0o700


def test_a_process_that_starts_late_by_hand_too_leaves_the_way_to_the_demos_checkpoints_open(tmp_path):
    for place, left in ((tmp_path / "demo", 0o700 | PASS_ONLY), (tmp_path / "other", 0o700)):
        if place.name == "demo":
            os.close(take(place, keep=False))
        else:
            place.mkdir()
        place.chmod(0o700 | PASS_ONLY)
        env = {**os.environ, "HOLDFAST_PROFILE": "embedded", "HOLDFAST_STATE_DIR": str(place)}
        subprocess.run([sys.executable, "-c", "import controlplane.config.settings.embedded"], env=env, check=True)
        assert mode(place) == left
