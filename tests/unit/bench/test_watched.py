"""What processes took is read by the pid that they had."""

import pytest

from controlplane.bench.watched import Use, ended, spent_ms


def test_what_one_session_cost_each_service_is_what_it_took_between_two_readings() -> None:
    before = {"web": Use(10, 4.0, 1), "worker": Use(11, 1.0, 1), "gone": Use(12, 1.0, 1)}
    after = {"web": Use(10, 6.0, 1), "worker": Use(11, 1.0, 1)}
    assert spent_ms(before, after, 500) == pytest.approx({"web": 4.0, "worker": 0.0})


def test_of_a_service_that_was_started_between_them_all_that_it_took_counts() -> None:
    assert spent_ms({"web": Use(10, 4.0, 1)}, {"web": Use(20, 6.0, 1)}, 500) == pytest.approx({"web": 12.0})


def test_a_service_that_is_gone_or_another_at_the_end_has_ended() -> None:
    before = {"web": Use(10, 4.0, 1), "worker": Use(11, 1.0, 1), "beat": Use(12, 1.0, 1)}
    after = {"web": Use(20, 0.5, 1), "worker": Use(11, 1.0, 1), "new": Use(30, 0.0, 1)}
    assert ended(before, after) == ["web", "beat"]


def test_where_nobody_came_nothing_is_divided() -> None:
    assert spent_ms({}, {"web": Use(20, 6.0, 1)}, 0) == {}
