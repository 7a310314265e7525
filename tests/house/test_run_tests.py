"""A run says what failed, by name and with its reason, and keeps the rest in a log."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from run_tests import (
    APART,
    BACKEND,
    BESIDE,
    FILLS,
    LAST,
    LEFT_OUT,
    QUEUE,
    ROWS,
    SETS,
    failures,
    in_short,
    paths_of,
    readable,
    run_pytest,
)


def test_a_failed_test_is_told_with_its_assertion_and_a_passed_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text("def test_good(): pass\n\ndef test_bad():\n    assert 1 == 2, 'too few'\n")
    report = tmp_path / "report.xml"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:django",
            "--rootdir",
            str(tmp_path),
            f"--junitxml={report}",
            "test_two.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    (told,) = failures(report)
    assert told.startswith("test_two::test_bad (failure)")
    assert "too few" in told
    assert in_short(told) == "test_two::test_bad (failure): AssertionError: too few ... assert 1 == 2"


def test_a_set_that_left_no_report_is_no_failure(tmp_path: Path) -> None:
    assert failures(tmp_path / "none.xml") == []


def test_progress_skips_and_sum_are_shown_and_what_tests_and_warnings_print_is_not() -> None:
    printed = [
        "....F...s  [100%]\n",
        "=== FAILURES ===\n",
        "E  assert 1 == 2\n",
        "=== warnings summary ===\n",
        "  UserWarning: old\n",
        "=== slowest 8 durations ===\n",
        "1.0s call test_a\n",
        "=== short test summary info ===\n",
        "SKIPPED [1] no card\n",
        "1 failed, 7 passed, 1 skipped in 3.00s\n",
    ]
    shown = [printed[0], printed[6], printed[8], printed[9]]
    assert list(readable(printed)) == shown
    assert list(readable([printed[0], printed[1], printed[2], printed[9]])) == [printed[0], printed[9]]


def test_all_runs_every_set_once() -> None:
    """The attacks on PostgreSQL are part of its set, and that is part of the whole one."""
    others = {"attacks-postgres", "whole-postgres", *APART}
    assert sorted([*QUEUE, BESIDE, *FILLS, LAST]) == sorted(set(SETS) - others)
    assert set(SETS["attacks-postgres"]) < set(SETS["postgres"]) < set(SETS["whole-postgres"])


def test_every_scene_is_in_their_set_once() -> None:
    there = [str(path.relative_to(ROOT)) for path in (ROOT / "tests/scenes").glob("test_*.py")]
    assert sorted(SETS[LAST]) == sorted(there)


def test_what_a_set_leaves_out_exists_and_runs_in_another() -> None:
    paths = {path for left in LEFT_OUT.values() for path in left}
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert (set(LEFT_OUT["services"]) - set(SETS["rows"])).isdisjoint(LEFT_OUT["postgres"])


def test_what_runs_beside_the_scenes_is_of_the_backend_and_starts_nothing() -> None:
    """What needs a server, a thread or a clock keeps its place among the services."""
    assert set(BACKEND) <= set(SETS["services"])
    assert len(ROWS) > 50
    for name in ("backend/test_ring", "backend/test_documents", "backend/test_figures", "api/test_jobs"):
        assert f"tests/integration/{name}.py" not in ROWS
    assert {"tests/integration/api/test_access.py", "tests/integration/backend/test_commit.py"} < set(ROWS)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_set_leaves_out_is_not_named_to_pytest(name: str) -> None:
    """It is told to ignore what a folder of the set holds; a file that is named is run all the same."""
    named = {path for path in paths_of(name) if not path.startswith("-")}
    assert named.isdisjoint(LEFT_OUT[name]) and named <= set(SETS[name])
    assert {f"--ignore={path}" for path in LEFT_OUT[name]} <= set(paths_of(name))


def test_a_child_that_outlives_a_run_keeps_nobody_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = tmp_path / "pid"
    shell = f"sleep 600 & echo $! > {left}; echo 'all of it'; exit 3"
    assert run_pytest(["bash", "-c", shell], tmp_path / "log", dict(os.environ)) == 3
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert capsys.readouterr().out == (tmp_path / "log").read_text() == "all of it\n"


def test_a_set_tells_what_those_took_too_for_whom_nobody_of_it_waited(tmp_path: Path) -> None:
    """Its processor time: a child outlives its parent, takes half a second of a core and ends before the set does."""
    burn = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.5: pass'"
    shell = f'bash -c "{burn} & echo \\$! > {tmp_path}/pid"; while kill -0 $(cat {tmp_path}/pid); do sleep 0.05; done'
    program = (
        "import os, sys; from pathlib import Path; from run_tests import adopt, run_pytest, taken_s\n"
        "adopt()\nrun_pytest(['bash', '-c', sys.argv[1]], Path(sys.argv[2]), dict(os.environ))\nprint(taken_s())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, shell, str(tmp_path / "log")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert float(done.stdout.splitlines()[-1]) >= 0.5
