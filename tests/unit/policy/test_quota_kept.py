"""Who passes a job that waits for its project's quota, who of the project yields to it, what an elastic one takes."""

import pytest

from controlplane.policy.plan import AskPreemption, PlaceAttempt
from controlplane.policy.queue.demand import later_demand
from controlplane.policy.queue.explain import explain
from controlplane.policy.queue.place import QueuePlace, Turn, Victim
from controlplane.policy.queue.rows import Entry, Holder, Part, Pending, QueueFleet, QueuePlan, Share
from controlplane.policy.queue.words import place_of
from controlplane.policy.rules import lifecycle, make_room
from controlplane.protocol.spec import Parallelism, Resources, TrainSpec

from .builders import action, change, only
from .test_elastic_start import asks, waits
from .test_make_room import stake
from .test_queue import NOW_S, demand
from .test_queue import job as wants
from .test_shares import QUEUE, of, planned, runs, shared, starts, turns

SOON_S = NOW_S + 100.0
RED = (Share(name="red", quota=32, borrow=0),)


def entries(plan: QueuePlan) -> dict[str, Entry]:
    return {entry.job.id: entry for entry in plan.entries}


def full(*more: Holder, free: int = 4, ends_s: float | None = SOON_S) -> QueueFleet:
    """Red has four nodes, one of its jobs three of them until then; so many more are free."""
    return shared(free, change(runs("red", "r", 3), ends_s=ends_s), *more, projects=RED)


def queue(*, limit_s: float | None = None, large: int = 4, small: int = 1) -> tuple[Pending, Pending]:
    """A large job that waits for the quota, and a small one behind it."""
    return (
        of("red", "large", large, submitted_s=1.0),
        of("red", "small", small, submitted_s=2.0, limit_s=limit_s),
    )


@pytest.mark.parametrize(("limit_s", "passes"), [(100.0, True), (101.0, False), (None, False)])
def test_who_is_over_before_the_quota_suffices_passes_the_one_that_waits_for_it(
    limit_s: float | None, passes: bool
) -> None:
    found = entries(planned(full(), *queue(limit_s=limit_s)))
    assert (found["large"].turn, found["large"].expected_s) == (Turn.QUOTA, SOON_S)
    assert (found["small"].may_start, found["small"].turn) == (passes, Turn.BACKFILL if passes else Turn.QUOTA)
    assert found["small"].behind == ("" if passes else "large")


def test_who_leaves_enough_of_the_quota_for_good_passes_it_too() -> None:
    enough = entries(planned(full(), *queue(large=3)))
    assert enough["small"].turn is Turn.BACKFILL, "three and one are the quota"
    second = of("red", "second", 1, submitted_s=3.0)
    both = entries(
        planned(shared(4, change(runs("red", "r", 2), ends_s=SOON_S), projects=RED), *queue(large=3), second)
    )
    assert (both["small"].may_start, both["second"].may_start) == (True, False), "one of them together"


def test_who_would_take_the_devices_that_it_needs_then_does_not_pass_though_the_quota_has_enough() -> None:
    wide = (Share(name="red", quota=40, borrow=0),)
    for free, passes in ((1, False), (2, True)):
        lends = shared(free, change(runs("red", "r", 3), ends_s=SOON_S), projects=wide)
        found = entries(planned(lends, *queue(large=4)))
        assert (found["large"].turn, found["large"].expected_s) == (Turn.QUOTA, SOON_S)
        assert found["small"].may_start is passes, "of the quota one node more is left then"


def test_where_nobody_knows_when_the_quota_suffices_nobody_passes_and_is_told_so() -> None:
    found = entries(planned(full(ends_s=None), *queue(limit_s=1.0)))
    assert not found["small"].may_start
    assert "nobody knows when that starts" in found["small"].why


def test_the_sentence_of_who_does_not_pass_says_what_would_let_it() -> None:
    lends = full()
    for limit_s, words in ((None, "no time limit ends it before"), (500.0, "its time limit does not end it before")):
        told = explain(queue(limit_s=limit_s), lends, QUEUE, NOW_S, "small")
        assert told is not None and words in told.sentence and "large (priority 500)" in told.sentence


def test_of_another_project_nothing_is_kept() -> None:
    found = entries(planned(full(), queue()[0], of("", "other", 1, submitted_s=2.0)))
    assert found["other"].may_start


def test_devices_of_spare_nodes_that_do_not_count_are_not_expected_back_in_the_quota() -> None:
    half = shared(4, change(runs("red", "r", 3), ends_s=SOON_S, uncounted=8), projects=RED)
    assert entries(planned(half, *queue()))["large"].expected_s is None


# --- who yields for the quota alone ------------------------------------------------------------------


def yielding(*holders: Holder, priority: int = 900) -> QueuePlan:
    """Red's four nodes are in use, four more are free."""
    return planned(shared(4, *holders, projects=RED), of("red", "u", 2, priority=priority))


def test_of_its_project_those_of_lower_priority_yield_to_it_who_lose_least() -> None:
    dear, cheap = runs("red", "dear", 2), change(runs("red", "cheap", 2), stake=stake(at_risk_s=0.0, save_s=0.1))
    plan = yielding(dear, cheap)
    assert (plan.head, [victim.id for victim in plan.victims]) == ("u", ["cheap"])
    assert turns(plan)["u"] == (Turn.QUOTA, False)
    place = place_of(plan, "u")
    assert place is not None and place.victims == plan.victims and place.seeks


@pytest.mark.parametrize(
    ("holders", "priority"),
    [
        ((runs("red", "a", 2), runs("red", "b", 2)), 500),
        ((runs("red", "a", 2), change(runs("red", "b", 2), stake=None)), 500),
        ((change(runs("red", "a", 4), stake=stake(begun_s=NOW_S - 1.0)),), 900),
        ((change(runs("red", "a", 4), ends_s=NOW_S + 10.0),), 900),
    ],
    ids=["no lower priority", "not preemptible", "just begun", "soon over"],
)
def test_by_the_same_limits_as_for_devices(holders: tuple[Holder, ...], priority: int) -> None:
    assert yielding(*holders, priority=priority).victims == ()


def test_a_job_of_another_project_yields_to_no_quota() -> None:
    plan = planned(
        shared(4, runs("red", "r", 4, priority=900), runs("", "x", 4, priority=100), projects=RED),
        of("red", "u", 2, priority=900),
    )
    assert (plan.head, plan.victims) == ("", ())


def test_nobody_yields_for_a_quota_where_devices_would_lack_all_the_same() -> None:
    plan = planned(
        shared(0, runs("red", "r", 1), runs("red", "s", 3, priority=900), runs("", "x", 4, priority=900), projects=RED),
        of("red", "u", 2, priority=900),
    )
    assert plan.victims == ()


def test_replicas_are_given_before_a_whole_job_yields() -> None:
    wide = runs("red", "wide", 4)
    parts = tuple(Part(index=n, incarnation=1, devices=(each,)) for n, each in enumerate(wide.devices))
    plan = yielding(change(wide, parts=parts, spares=3))
    assert [len(victim.gives) for victim in plan.victims] == [2]


def test_while_they_leave_it_keeps_what_they_free_and_nobody_else_is_asked() -> None:
    leaves = change(runs("red", "a", 2), leaves=True, yields_to="u")
    plan = planned(
        shared(1, leaves, runs("red", "b", 2), projects=RED),
        of("red", "u", 2, priority=900),
        of("", "other", 1, submitted_s=2.0),
        of("", "late", 1, submitted_s=3.0),
    )
    assert (plan.head, plan.victims) == ("u", ())
    assert starts(plan) == ["other"], "of three nodes it needs two"


def test_it_says_that_its_quota_lacks_and_asks_them() -> None:
    victim = Victim(
        id="v", name="v", priority=100, attempt=1, asked=0, devices=8, at_risk_s=0.0, save_s=1.0, lost_gpu_s=8.0
    )
    place = QueuePlace(place=1, waiting=1, turn=Turn.QUOTA, may_start=False, sentence="Waits.", victims=(victim,))
    decision = only(change(waits(asks(), 4), queue=place), make_room.RULE)
    assert "for which the quota of its project has too few devices left" in decision.sentence
    assert "the quota of its project" in action(decision, AskPreemption).why


def test_the_explanation_says_who_of_its_project_is_left_alone() -> None:
    young = change(runs("red", "a", 4), stake=stake(begun_s=NOW_S - 1.0))
    told = explain([of("red", "u", 2, priority=900)], shared(4, young, projects=RED), QUEUE, NOW_S, "u")
    assert told is not None
    assert told.no_preemption == "all of lower priority are left alone"
    assert [each.id for each in told.spared] == ["a"]


# --- an elastic job ---------------------------------------------------------------------------------


def elastic(least: int, name: str = "e") -> Pending:
    """Four replicas of a node each, of which so many will do."""
    spec = TrainSpec(resources=Resources(nodes=4, gpus_per_node=8, min_replicas=least), parallelism=Parallelism(tp=8))
    return change(wants(name, later_demand(spec)), project="red")


def test_where_fewer_replicas_will_do_a_job_starts_with_what_the_quota_has_left() -> None:
    lends = shared(4, runs("red", "r", 2), projects=RED)
    found = entries(planned(lends, elastic(1)))["e"]
    assert (found.may_start, found.at_most) == (True, 16)
    assert entries(planned(lends, elastic(3)))["e"].turn is Turn.QUOTA
    assert entries(planned(shared(4, projects=RED), elastic(1)))["e"].at_most is None, "it has all"


def test_it_counts_with_what_it_takes_and_no_more() -> None:
    lends = shared(6, runs("red", "r", 1), projects=(Share(name="red", quota=40, borrow=0),))
    found = entries(planned(lends, elastic(1), change(of("red", "next", 1), submitted_s=5.0)))
    assert (found["e"].at_most, found["next"].turn) == (None, Turn.QUOTA)
    both = entries(planned(lends, change(elastic(1), demand=demand(3)), change(of("red", "next", 1), submitted_s=5.0)))
    assert both["next"].may_start


def test_its_attempt_is_placed_within_that_and_has_places_for_the_rest() -> None:
    place = QueuePlace(place=1, waiting=1, turn=Turn.FIRST, at_most=5)
    decision = only(change(waits(asks(), 4), queue=place), lifecycle.RULE)
    found = action(decision, PlaceAttempt)
    assert (len(found.placements), found.yielded) == (2, 1), "two replicas of two ranks"
    assert "its project's quota has 5 devices for it" in decision.sentence
    whole = action(only(change(waits(asks(), 4), queue=change(place, at_most=None)), lifecycle.RULE), PlaceAttempt)
    assert len(whole.placements) == 3
