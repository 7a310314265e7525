"""`make gpu-check` where no card is: the half that runs on a CPU holds, and claims nothing about one."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.page import Part, page
from benchmarks.gpu.part import Findings
from benchmarks.gpu.readings import agree
from trainer.config import outer_backend
from trainer.errors import ConfigInvalid

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(300)


def check(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_part_runs_without_a_card_and_none_says_that_it_saw_one(tmp_path: Path) -> None:
    done = check("--cpu", "--report", str(tmp_path / "report.md"))
    report = (tmp_path / "report.md").read_text()
    assert done.returncode == 0, done.stdout + report
    assert "No card was seen" in report
    assert "DOES NOT HOLD" not in report
    for task in gpu.TASKS:
        state = "not here" if task.name == "readings" else "held"
        assert f"## {task.title}: {state}" in report
    assert "steps whose parameters differ between replicas | 0 | holds" in report
    assert "every micro-batch once in each step" in report


def test_a_part_that_is_not_over_in_time_fails_alone_and_says_so() -> None:
    slow = gpu.run(gpu.TASKS[4], cpu=True, env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}, limit_s=0.2)
    assert (slow.state, slow.rows) == ("failed", [])
    assert "not over within 0 s" in slow.why


def test_a_folder_without_wheels_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = check("--cpu", "--wheels", str(tmp_path), "--report", str(tmp_path / "report.md"))
    assert done.returncode == 2
    assert "holds no wheels" in done.stderr
    assert not (tmp_path / "report.md").exists()


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        ("GPU-1", "GPU-1", True), ("GPU-1", "GPU-2", False), ("40", 42.0, True), ("40", 44.0, False),
        ("[N/A]", None, True), ("[N/A]", 0, False), ("0", None, False), ("No", 0, True), ("Yes", 9, False),
        ("what", 1.0, False),
    ],
)  # fmt: skip
def test_a_reading_agrees_within_its_bounds_and_a_missing_one_with_a_missing_one(
    theirs: str, ours: object, same: bool
) -> None:
    assert agree(theirs, ours, apart=3.0) is same


def test_what_does_not_hold_is_said_in_the_report_with_its_value() -> None:
    found = Findings()
    found.claim("bits", 3, holds=False, note="of 4")
    part = Part(title="Copy", took_s=1.0, state="failed", rows=found.rows, why="; ".join(found.broken))
    text = page([part], cpu=False)
    assert "## Copy: failed" in text and "bits: 3 of 4" in text and "| bits | 3 | DOES NOT HOLD: of 4 |" in text


def test_replicas_exchange_by_what_is_configured_and_nothing_else() -> None:
    assert outer_backend({}) is None
    assert outer_backend({"HOLDFAST_OUTER_BACKEND": "gloo"}) == "gloo"
    with pytest.raises(ConfigInvalid, match="HOLDFAST_OUTER_BACKEND is 'mpi'"):
        outer_backend({"HOLDFAST_OUTER_BACKEND": "mpi"})
