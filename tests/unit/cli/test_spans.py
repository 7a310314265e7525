"""Moments and lengths of time as people write them."""

from datetime import datetime, timedelta

import pytest

from controlplane.cli.exits import CliError
from controlplane.cli.spans import begins, length_of


def test_a_length_is_a_number_and_a_unit() -> None:
    assert (length_of("30m"), length_of("2h"), length_of("3d")) == (
        timedelta(minutes=30),
        timedelta(hours=2),
        timedelta(days=3),
    )
    for wrong in ("", "h", "0h", "-1h", "2 h", "2y", "two", "\u00b2h", "9999999d"):
        with pytest.raises(CliError):
            length_of(wrong)


def test_a_moment_is_so_long_from_now_or_an_instant() -> None:
    assert abs(begins("2h") - datetime.now().astimezone() - timedelta(hours=2)) < timedelta(seconds=5)
    assert begins("2026-03-01T12:00:00+00:00").timestamp() == 1_772_366_400.0
    for wrong in ("soon", "\u00b2h", "9999999d", "999999w"):
        with pytest.raises(CliError):
            begins(wrong)
