"""A failed test of a set with real clocks is run once more, alone; what fails then too stays a failure."""

import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import run_tests
from second_run import MOST_TESTS, REAL_CLOCKS, may_repeat

LATE = """
from pathlib import Path

def test_late():
    here = Path(__file__).with_name("was_here")
    seen, _ = here.exists(), here.touch()
    assert seen, "too late"

def test_other(): Path(__file__).with_name("others").open("a").write("x")
"""
BROKEN = "\ndef test_broken():\n    assert 1 == 2, 'never right'\n"
SKIPPED = """
import pytest
from pathlib import Path

def test_hides():
    if Path(__file__).with_name("hidden").exists():
        pytest.skip("not now")
    Path(__file__).with_name("hidden").touch()
    assert not "first"
"""
MANY = "\nimport pytest\n\n@pytest.mark.parametrize('n', range(6))\ndef test_each(n):\n    assert n < 0, 'all'\n"


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tests that is both sets `services` and `fast`; the runs of sets are real, in processes of their
    own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(run_tests, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "SETS", {"services": (".",), "fast": (".",)})
    monkeypatch.setattr(run_tests, "LEFT_OUT", {})
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run_apart(name: str, *, alone: bool = False) -> int:
        return run_tests.run_set(name, part=run_tests.ALONE if alone else "")

    monkeypatch.setattr(run_tests, "run_apart", run_apart)
    return tmp_path


def passes_alone(name: str = "services") -> bool:
    return run_tests.passes_alone(name, run_tests.run_apart(name))


def test_a_test_that_was_only_late_passes_alone_and_its_line_says_so(sets: Path) -> None:
    (sets / "test_late.py").write_text(LATE)
    assert passes_alone()
    assert (sets / "others").read_text() == "x", "only what failed is run again"
    (line,) = run_tests.verdicts(["services"])
    assert line.startswith("passed at the second run, alone: test_late::test_late (first: AssertionError: too late")


def test_what_fails_alone_too_stays_a_failure(sets: Path) -> None:
    (sets / "test_both.py").write_text(LATE + BROKEN)
    assert not passes_alone()
    broken, late = run_tests.verdicts(["services"])
    assert broken.startswith("services: test_both::test_broken (failure): AssertionError: never right")
    assert late.startswith("passed at the second run, alone: test_both::test_late")


def test_to_be_skipped_alone_is_not_to_pass(sets: Path) -> None:
    (sets / "test_hides.py").write_text(SKIPPED)
    assert not passes_alone()
    assert run_tests.verdicts(["services"])[0].startswith("services: test_hides::test_hides (failure)")


@pytest.mark.parametrize(("name", "content"), [("services", MANY), ("services", "import nothing_here"), ("fast", LATE)])
def test_many_failures_a_broken_file_and_a_set_without_real_clocks_are_not_repeated(
    sets: Path, name: str, content: str
) -> None:
    (sets / "test_some.py").write_text(content)
    assert not passes_alone(name)
    assert not run_tests.report_of(name, run_tests.ALONE).exists()
    assert all(line.startswith(f"{name}: ") for line in run_tests.verdicts([name]))


def test_of_a_set_without_real_clocks_what_waits_is_repeated_and_nothing_else(sets: Path) -> None:
    for waits in ("import subprocess", "import asyncio", "from tests.integration.backend.servers import Stack"):
        (sets / "test_late.py").write_text(LATE.replace("import Path", f"import Path  # {waits}"))
        assert passes_alone("fast")
        (sets / "was_here").unlink()
    (sets / "test_both.py").write_text(BROKEN)
    assert not passes_alone("fast")


def test_an_earlier_second_run_excuses_nothing(sets: Path) -> None:
    (sets / "test_late.py").write_text(LATE)
    assert passes_alone()
    (sets / "was_here").unlink()
    assert run_tests.run_apart("services") == 1
    assert run_tests.verdicts(["services"])[0].startswith("services: test_late::test_late (failure)")


def test_sets_that_wait_for_no_clock_are_never_repeated(tmp_path: Path) -> None:
    assert {*run_tests.QUEUE, run_tests.BESIDE, run_tests.LAST} - {"postgres"} == REAL_CLOCKS
    ended_early = may_repeat("services", 1, tmp_path / "no report", tmp_path)
    assert not ended_early, f"at most {MOST_TESTS} failed"
