"""Ends that are known: by a time limit a job passes one that waits, and is expected to be over."""

import pytest

from controlplane.changes.assembly.queue import Held, holder_of
from controlplane.policy.queue.ends import FREED_S, limited_s
from controlplane.policy.queue.place import Turn

from .builders import change
from .test_queue import NOW_S, demand, fleet, holder, job, plan

SOON_S = NOW_S + 100.0


@pytest.mark.parametrize(
    ("left", "limit_s", "ends_s"),
    [(10, 0.0, 20.0), (10, 400.0, 20.0), (1000, 400.0, 100.0), (None, 400.0, 100.0), (None, 0.0, None)],
    ids=["pace", "pace first", "limit first", "limit alone", "nobody knows"],
)
def test_a_running_job_is_expected_to_end_by_its_pace_or_its_limit_whichever_is_first(
    left: int | None, limit_s: float, ends_s: float | None
) -> None:
    held = Held(
        id="j",
        name="j",
        priority=500,
        state="running",
        devices={"n": 8},
        left=left,
        recent=(2.0, 2.0, 2.0),
        limit_s=limit_s,
        begun_s=NOW_S - 300.0,
    )
    by_limit = 0.0 if ends_s != 100.0 else FREED_S
    assert holder_of(held, NOW_S).ends_s == (None if ends_s is None else NOW_S + ends_s + by_limit)


def test_a_limit_counts_from_the_first_attempt_and_what_is_over_ends_now() -> None:
    assert limited_s(60.0, None, NOW_S) == 60.0 + FREED_S
    assert limited_s(60.0, NOW_S - 50.0, NOW_S) == 10.0 + FREED_S
    assert limited_s(60.0, NOW_S - 500.0, NOW_S) == FREED_S
    assert limited_s(0.0, NOW_S, NOW_S) is None


@pytest.mark.parametrize(("limit_s", "starts"), [(99.0, True), (100.0, True), (101.0, False), (None, False)])
def test_a_job_that_its_limit_ends_before_the_head_has_room_passes_it(limit_s: float | None, starts: bool) -> None:
    running = (holder("r", 4, ends_s=SOON_S),)
    head, small = job("head", demand(6)), change(job("small", demand(2), at_s=1.0), limit_s=limit_s)
    found = plan(fleet(2, *running), head, small)
    assert found["head"].expected_s == SOON_S
    assert (found["small"].may_start, found["small"].turn is Turn.BACKFILL) == (starts, starts)


def test_what_passes_with_a_limit_leaves_to_those_without_one_what_the_head_can_spare() -> None:
    running = (holder("r", 4, ends_s=SOON_S),)
    limited = change(job("limited", demand(1), at_s=1.0), limit_s=50.0)
    found = plan(fleet(2, *running), job("head", demand(5)), limited, job("endless", demand(1), at_s=2.0))
    assert found["limited"].may_start and found["endless"].may_start, "the head can spare one node for good"


def test_where_nobody_knows_when_the_head_has_room_no_limit_lets_a_job_pass() -> None:
    small = change(job("small", demand(1), at_s=1.0), limit_s=1.0)
    assert not plan(fleet(2, holder("r", 4)), job("head", demand(3)), small)["small"].may_start


def test_a_limit_lets_nobody_take_what_one_ahead_starts_on_now() -> None:
    limited = change(job("small", demand(1), at_s=1.0), limit_s=1.0)
    found = plan(fleet(1), job("first", demand(1)), limited)
    assert found["first"].may_start and not found["small"].may_start
