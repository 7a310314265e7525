"""What failed is told again at the end of a run, by name and with its reason."""

import subprocess
import sys
from pathlib import Path

from tests.house.tree import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from run_tests import failures


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


def test_a_set_that_left_no_report_is_no_failure(tmp_path: Path) -> None:
    assert failures(tmp_path / "none.xml") == []
