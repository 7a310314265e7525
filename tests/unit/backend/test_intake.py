"""How many agents one web process lets in at a time, and when the others come again."""

import heapq
import random
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.core import backoff
from controlplane.live.intake import (
    BACKLOG,
    LATEST_S,
    LEAST_PER_S,
    LEAST_WAITING,
    LONGEST_WINDOW_S,
    SOONEST_S,
    START_WAITING,
    WAIT_S,
    Intake,
    Rate,
    room,
    spread_s,
)
from controlplane.protocol.frames import RECONNECT_SHORTEST_S, SESSIONS_START_PER_S


def opens(rate: Rate, per_s: float, *, for_s: float, waiting: int, from_s: float = 0.0) -> None:
    for number in range(1, int(per_s * for_s) + 1):
        rate.opened(from_s + number / per_s, waiting=waiting)


@given(st.floats(5.0, 2000.0))
def test_the_rate_is_what_was_opened_while_others_waited(per_s: float) -> None:
    rate = Rate()
    opens(rate, per_s, for_s=10.0, waiting=BACKLOG)
    assert rate.measured
    assert rate.per_s == pytest.approx(per_s, rel=0.05)


def test_who_come_one_by_one_say_nothing_of_how_many_there_can_be() -> None:
    rate = Rate()
    opens(rate, 3.0, for_s=60.0, waiting=BACKLOG - 1)
    assert (rate.measured, rate.per_s) == (False, SESSIONS_START_PER_S)


def test_a_pause_in_which_few_came_makes_no_rate_slower() -> None:
    rate = Rate()
    opens(rate, 200.0, for_s=5.0, waiting=BACKLOG)
    opens(rate, 1.0, for_s=3.0, waiting=BACKLOG - 1, from_s=5.0)
    opens(rate, 200.0, for_s=3.0, waiting=BACKLOG, from_s=8.0)
    assert rate.per_s == pytest.approx(200.0, rel=0.02)


def test_while_the_database_is_away_the_rate_stands() -> None:
    rate = Rate()
    opens(rate, 200.0, for_s=5.0, waiting=BACKLOG)
    before = rate.per_s
    rate.opened(5.0 + 2.0 * LONGEST_WINDOW_S, waiting=BACKLOG)
    assert rate.per_s == before
    opens(rate, 50.0, for_s=8.0, waiting=BACKLOG, from_s=5.0 + 2.0 * LONGEST_WINDOW_S)
    assert rate.per_s == pytest.approx(50.0, rel=0.1), "a slower one is found again"


def test_where_sessions_are_not_opened_in_time_fewer_are_let_in_and_more_again_when_they_are() -> None:
    rate = Rate()
    for tenth_s in range(60):
        rate.late(tenth_s / 10.0)
    assert rate.per_s == pytest.approx(SESSIONS_START_PER_S / 2.0**6), "halved once a second"
    assert room(rate) == LEAST_WAITING
    opens(rate, 300.0, for_s=8.0, waiting=BACKLOG, from_s=10.0)
    assert rate.per_s == pytest.approx(300.0, rel=0.1)


@given(st.floats(0.0, 5000.0))
def test_who_is_let_in_waits_for_a_few_seconds_at_most(per_s: float) -> None:
    number = room(Rate(per_s=max(LEAST_PER_S, per_s), measured=True))
    assert number == LEAST_WAITING or number / per_s <= WAIT_S


@given(st.integers(0, 5000), st.integers(-500, 50_000), st.floats(LEAST_PER_S, 5000.0), st.floats(0.0, 1.0))
def test_who_is_refused_comes_behind_who_waits_and_within_what_the_rest_takes(
    waiting: int, missing: int, per_s: float, share: float
) -> None:
    again_s = spread_s(waiting, missing, per_s, share)
    assert SOONEST_S <= again_s <= LATEST_S + 1e-9
    assert again_s >= min(LATEST_S, waiting / per_s)
    assert again_s <= max(SOONEST_S, (waiting + max(0, missing)) / per_s) + 1e-9, "a sum in another order"


@pytest.mark.parametrize("missing", [4000, 40_000])
def test_the_moments_of_all_that_are_refused_are_spread_evenly(missing: int) -> None:
    at_s = [spread_s(100, missing, 400.0, share / missing) for share in range(missing)]
    in_each = [sum(second <= when < second + 1.0 for when in at_s) for second in range(int(max(at_s)) + 1)]
    assert len(in_each) > 9
    assert max(in_each) <= 1.02 * max(400, missing / LATEST_S), "not all at the latest moment"
    assert min(in_each[1:-1]) >= 0.98 * max(in_each)


def test_nobody_more_is_let_in_while_so_many_wait_and_who_leaves_makes_room() -> None:
    intake = Intake(rate=Rate(per_s=20.0, measured=True))
    with ExitStack() as others:
        for _ in range(room(intake.rate) - 1):
            others.enter_context(intake.inside())
        assert not intake.full
        with intake.inside():
            assert intake.full
        assert not intake.full
    assert intake.waiting == 0


def test_who_is_asked_for_another_proof_and_says_nothing_is_no_sign_of_a_slow_process() -> None:
    intake = Intake()
    with ExitStack() as silent:
        for _ in range(20):
            silent.enter_context(intake.inside())
            silent.enter_context(intake.outside())
        for at_s in (0.0, 1.1, 2.2):
            with intake.inside():
                intake.opened(at_s)
        assert (intake.waiting, intake.rate.measured, intake.rate.per_s) == (0, False, SESSIONS_START_PER_S)
    assert intake.waiting == 0


def test_two_sessions_in_a_second_are_too_few_for_a_rate() -> None:
    rate = Rate()
    for at_s in (0.0, 0.6, 1.2):
        rate.opened(at_s, waiting=BACKLOG)
    assert (rate.measured, rate.per_s) == (False, SESSIONS_START_PER_S)
    for at_s in (1.8, 2.4, 3.0, 3.6, 4.2):
        rate.opened(at_s, waiting=BACKLOG)
    assert (rate.measured, rate.per_s) == (True, LEAST_PER_S), "over four seconds they are enough"


def test_agents_spread_their_return_by_what_all_processes_open() -> None:
    intake = Intake(rate=Rate(per_s=200.0), webs=2, fleet_nodes=4000)
    assert intake.return_s() == 10.0
    assert Intake(rate=Rate(per_s=200.0), webs=2, fleet_nodes=40).return_s() == RECONNECT_SHORTEST_S


def returned_s(nodes: int, per_s: float, seed: int) -> tuple[float, int, float]:
    """A fleet that comes to one process at once, which opens `per_s` in a second: when all are back, how many were
    refused, and the longest that one who was let in has waited. Agents wait by their own core."""
    random_of = random.Random(seed)
    intake = Intake(fleet_nodes=nodes, draw=random_of.random)
    knocks = [(random_of.random() * RECONNECT_SHORTEST_S, number, 0) for number in range(nodes)]
    heapq.heapify(knocks)
    served: list[tuple[float, float]] = []
    free_s, back, longest_s, now_s = 0.0, 0, 0.0, 0.0
    while back < nodes:
        if served and (not knocks or served[0][0] <= knocks[0][0]):
            now_s, came_s = served.pop(0)
            intake.opened(now_s)
            intake.waiting -= 1
            back, longest_s = back + 1, max(longest_s, now_s - came_s)
            continue
        now_s, number, failures = heapq.heappop(knocks)
        if intake.full:
            at_least_s = intake.come_again_s(back)
            delay_s = backoff.delay_s(failures + 1, random_of.random(), at_least_s=at_least_s)
            heapq.heappush(knocks, (now_s + delay_s, number, failures + 1))
            continue
        intake.waiting += 1
        free_s = max(free_s, now_s) + 1.0 / per_s
        served.append((free_s, now_s))
    return now_s, intake.refused, longest_s


@pytest.mark.parametrize(("nodes", "per_s"), [(300, 20.0), (2000, 150.0), (12_500, 100.0), (12_500, 500.0)])
def test_a_fleet_is_back_in_little_more_than_its_sessions_take_whatever_the_rate_is(nodes: int, per_s: float) -> None:
    all_s, refused, longest_s = returned_s(nodes, per_s, seed=1)
    assert all_s <= 1.3 * nodes / per_s + 5.0
    assert longest_s <= max(WAIT_S, START_WAITING / per_s) + 1.0, "longer only until the rate is known"
    assert refused <= 4 * nodes
