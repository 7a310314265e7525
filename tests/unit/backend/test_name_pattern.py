"""Patterns of node names: anchored, two signs, and a match is quick whatever the pattern is."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.access.name_pattern import MAX_CHARS, fault_of, matches

SIGNS = st.text("ab1-.*?", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("gpu-a1-*", "gpu-a1-7", True),
        ("gpu-a1-*", "gpu-a1-", True),
        ("gpu-a1-*", "gpu-a10-7", False),
        ("gpu-a1-*", "not-gpu-a1-7", False),
        ("*-a1", "gpu-a1", True),
        ("*-a1", "gpu-a1-7", False),
        ("gpu-?", "gpu-7", True),
        ("gpu-?", "gpu-77", False),
        ("gpu-?", "gpu-", False),
        ("gpu.?", "gpux7", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("**a", "a", True),
    ],
)
def test_a_pattern_is_for_whole_names_and_has_two_signs(pattern: str, name: str, fits: bool) -> None:
    assert matches(pattern, name) == fits


@given(pattern=SIGNS, name=st.text("ab1-.", min_size=1, max_size=12))
def test_it_agrees_with_the_shell(pattern: str, name: str) -> None:
    assert matches(pattern, name) == fnmatchcase(name, pattern)


def test_no_pattern_makes_a_match_slow() -> None:
    """A matcher that goes back for each star would try about 10^28 ways here."""
    assert not matches("*a" * 49 + "*b", "a" * 99)
    assert matches("*a" * 49 + "*b", "a" * 99 + "b")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("gpu-[0-9]", "no pattern"),
        ("gpu-(a|b)*", "no pattern"),
        ("GPU-*", "no pattern"),
        ("gpu-*\n", "no pattern"),
        ("a" * MAX_CHARS + "*", "no pattern"),
        ("gpu-7", "give it as the name"),
        ("*", "fits every name"),
        ("?*-*", "fits every name"),
    ],
)
def test_what_is_no_pattern_or_binds_nobody_is_refused_with_the_reason(pattern: str, why: str) -> None:
    assert why in fault_of(pattern)


def test_a_pattern_that_binds_has_no_fault() -> None:
    assert fault_of("gpu-a1-*") == fault_of("?.rack-7") == ""
