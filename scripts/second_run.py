"""Failed tests of sets that run real processes against real clocks, run once more when nothing runs beside them.

On a loaded machine such a test can miss a deadline without any defect. `run_tests.py all` comes here last, and reports
each test that passes only now. What fails alone too, or is skipped then, stays a failure; a set of which more than
`MOST_TESTS` failed, or whose pytest did not end with a verdict about each of its tests, is not repeated.
"""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

REAL_CLOCKS = frozenset({"services", "attacks", "trainer", "install", "e2e", "scenes", "alerts"})
MOST_TESTS = 5
TESTS_FAILED = 1
"""Pytest's exit code when tests failed, and nothing else went wrong."""


def first_options(cache: Path) -> list[str]:
    """Pytest's, with which it notes in `cache` which tests failed."""
    return ["--cache-clear", "-o", f"cache_dir={cache}"]


def second_options(cache: Path) -> list[str]:
    """Pytest's, with which it runs of the same paths the tests noted in `cache`, and only those."""
    return ["--last-failed", "--last-failed-no-failures=none", "-o", f"cache_dir={cache}"]


def may_repeat(name: str, code: int, report: Path) -> bool:
    """Whether the set `name`, which ended with `code`, deserves a second run of its failed tests."""
    return name in REAL_CLOCKS and code == TESTS_FAILED and 1 <= len(failed_tests(report)) <= MOST_TESTS


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
