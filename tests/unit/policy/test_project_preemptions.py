"""How many preemptions the jobs of one project may suffer within an hour (`max_preemptions_of_project`)."""

import pytest

from controlplane.policy.queue.explain import explain
from controlplane.policy.queue.rows import QueueFleet, QueuePlan
from controlplane.policy.queue.schedule import schedule

from .builders import change
from .test_make_room import stake
from .test_queue import NOW_S, fleet
from .test_quota_kept import RED
from .test_shares import QUEUE, of, runs, shared

CAP = change(QUEUE, max_preemptions_of_project=2)


def suffered(times: int) -> QueueFleet:
    """Two nodes of red and two of blue, whose jobs cost more; red was asked so often."""
    dear = [change(runs("blue", name, priority=100), stake=stake(save_s=500.0)) for name in ("c", "d")]
    cheap = [change(runs("red", name, priority=100), suffered=times) for name in ("a", "b")]
    return change(fleet(0, *cheap, *dear), preempted=times)


def asked(plan: QueuePlan) -> list[str]:
    return [victim.id for victim in plan.victims]


@pytest.mark.parametrize(("times", "who"), [(0, ["a", "b"]), (1, ["a", "c"]), (2, ["c", "d"])])
def test_no_more_jobs_of_a_project_yield_than_may_within_an_hour(times: int, who: list[str]) -> None:
    urgent = of("blue", "u", 2, priority=900)
    assert asked(schedule([urgent], suffered(times), CAP, NOW_S)) == who
    assert asked(schedule([urgent], suffered(times), QUEUE, NOW_S)) == ["a", "b"], "as shipped it is the fleet's"


def test_where_no_others_can_nobody_is_asked_and_the_explanation_names_what_decided() -> None:
    urgent, lends = of("blue", "u", 4, priority=900), suffered(2)
    assert asked(schedule([urgent], lends, CAP, NOW_S)) == []
    told = explain([urgent], lends, CAP, NOW_S, "u")
    assert told is not None
    assert {each.id: each.why for each in told.spared} == dict.fromkeys(
        "ab", "jobs of its project yielded as often within an hour as they may be asked together (2)"
    )
    assert told.no_preemption == "those that may be asked do not make room for it"


def test_within_its_project_too() -> None:
    """For the quota alone."""
    lends = shared(4, *(change(runs("red", name, 2, 100), suffered=1) for name in "ab"), projects=RED)
    assert len(asked(schedule([of("red", "u", 2, priority=900)], lends, CAP, NOW_S))) == 1
    assert asked(schedule([of("red", "u", 4, priority=900)], lends, CAP, NOW_S)) == []
