"""Failed tests of sets that run real processes against real clocks, run once more when nothing runs beside them.

On a loaded machine such a test can miss a deadline without any defect. `run_tests.py all` comes here last, and reports
each test that passes only now. Of the other sets, the tests whose files start something or wait are repeated too.
What fails alone too, or is skipped then, stays a failure; a set of which more than `MOST_TESTS` failed, or whose pytest
did not end with a verdict about each of its tests, is not repeated.
"""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

REAL_CLOCKS = frozenset({"services", "attacks", "trainer", "install", "e2e", "scenes", "alerts"})
# What a test file names that starts a process, waits for one or for a clock.
WAITS = re.compile(
    r"redis_server|\bStack\b|FakeAgent|\brunning\(|running_whole|subprocess|Popen|asyncio|async def"
    r"|[Tt]hread|time\.sleep|monotonic|read_all_back"
)
MOST_TESTS = 5
TESTS_FAILED = 1
"""Pytest's exit code when tests failed, and nothing else went wrong."""


def first_options(cache: Path) -> list[str]:
    """Pytest's, with which it notes in `cache` which tests failed."""
    return ["--cache-clear", "-o", f"cache_dir={cache}"]


def second_options(cache: Path) -> list[str]:
    """Pytest's, with which it runs of the same paths the tests noted in `cache`, and only those."""
    return ["--last-failed", "--last-failed-no-failures=none", "-o", f"cache_dir={cache}"]


def may_repeat(name: str, code: int, report: Path, root: Path) -> bool:
    """Whether the set `name`, which ended with `code`, deserves a second run of its failed tests. `root`: of the
    files that `report` names."""
    failed = failed_tests(report)
    if code != TESTS_FAILED or not 1 <= len(failed) <= MOST_TESTS:
        return False
    return name in REAL_CLOCKS or all(_waits(root, test) for test in failed)


def _waits(root: Path, test: str) -> bool:
    """By the file that a test of a report is in, which may name a class behind it."""
    parts = test.split("::")[0].split(".")
    files = (root.joinpath(*parts[:end]).with_suffix(".py") for end in range(len(parts), 0, -1))
    file = next((each for each in files if each.is_file()), None)
    return file is not None and WAITS.search(file.read_text(encoding="utf-8")) is not None


def failed_tests(report: Path) -> set[str]:
    """Those with a failure or an error in pytest's `report`, as file and name; none where it left no report."""
    return {test for test, tags in _outcomes(report) if tags & {"failure", "error"}}


def passed_tests(report: Path) -> set[str]:
    """Those that ran in pytest's `report` and neither failed nor were skipped."""
    found = _outcomes(report)
    return {test for test, _ in found} - {test for test, tags in found if tags & {"failure", "error", "skipped"}}


def _outcomes(report: Path) -> list[tuple[str, set[str]]]:
    """Each case of the report, and the tags in it; a test of which setup or teardown failed has two cases."""
    if not report.exists():
        return []
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it
    return [(f"{case.get('classname')}::{case.get('name')}", {each.tag for each in case}) for case in cases]
