"""Quotas of projects: what each may start, what it borrows and gives back, who is first, and the words for it."""

import pytest

from controlplane.policy.queue.explain import explain
from controlplane.policy.queue.place import Turn
from controlplane.policy.queue.rows import Holder, Pending, QueueFleet, QueuePlan, Share, config_of
from controlplane.policy.queue.schedule import growth, schedule
from controlplane.policy.queue.shares import in_turn

from .builders import CONFIG, change
from .test_make_room import stake
from .test_queue import NOW_S, demand, fleet, holder
from .test_queue import job as waits

QUEUE = config_of(CONFIG)


def of(project: str, name: str, nodes: int = 1, **fields: object) -> Pending:
    """A job of this project that waits; nodes have eight devices."""
    priority = fields.pop("priority", 500)
    return change(waits(name, demand(nodes), priority=priority), project=project, **fields)  # type: ignore[arg-type]


def runs(project: str, name: str, nodes: int = 1, priority: int = 500) -> Holder:
    return change(holder(name, nodes, priority=priority), project=project, stake=stake())


def shared(free: int, *holders: Holder, projects: tuple[Share, ...]) -> QueueFleet:
    """With what each project's jobs have."""
    used = {each.name: sum(n for h in holders if h.project == each.name for _, n in h.devices) for each in projects}
    return change(fleet(free, *holders), projects=tuple(change(each, used=used[each.name]) for each in projects))


def two(**fields: object) -> tuple[Share, ...]:
    """Red and blue have two nodes each; `fields` of red."""
    return (Share(name="blue", quota=16), change(Share(name="red", quota=16), **fields))


def turns(plan: QueuePlan) -> dict[str, tuple[Turn, bool]]:
    return {entry.job.id: (entry.turn, entry.may_start) for entry in plan.entries}


def starts(plan: QueuePlan) -> list[str]:
    return [entry.job.id for entry in plan.entries if entry.may_start and entry.turn is not Turn.NO_ROOM]


def planned(lends: QueueFleet, *queue: Pending) -> QueuePlan:
    return schedule(queue, lends, QUEUE, NOW_S)


def test_without_quotas_projects_change_nothing() -> None:
    queue = [of("red", "a", 2), of("blue", "b", 1), of("", "c", 1)]
    plain = [change(each, project="") for each in queue]
    free = change(fleet(3), projects=(Share(name="red"), Share(name="blue", weight=9)))
    same = planned(fleet(3), *plain)
    assert [(e.job.id, e.turn, e.may_start) for e in planned(free, *queue).entries] == [
        (e.job.id, e.turn, e.may_start) for e in same.entries
    ]


def test_a_project_starts_on_its_own_and_on_what_another_lends() -> None:
    lends = shared(4, projects=two())
    assert starts(planned(lends, of("red", "a", 2), of("red", "b", 1))) == ["a", "b"], "blue uses none of its own"
    assert starts(planned(lends, of("red", "a", 4), of("red", "b", 1))) == ["a"], "all there is"


def test_no_more_is_borrowed_than_its_limit_nor_than_the_other_lends() -> None:
    few = shared(4, projects=two(borrow=8))
    plan = planned(few, of("red", "a", 2), of("red", "b", 1), of("red", "c", 1))
    assert starts(plan) == ["a", "b"]
    assert turns(plan)["c"] == (Turn.QUOTA, False)
    blue, red = two()
    stingy = shared(4, projects=(change(blue, lend=8), red))
    assert starts(planned(stingy, of("red", "a", 2), of("red", "b", 1), of("red", "c", 1))) == ["a", "b"]


def test_what_a_project_waits_for_itself_is_lent_to_nobody() -> None:
    plan = planned(shared(4, projects=two()), of("red", "a", 3, priority=900), of("blue", "b", 2))
    assert starts(plan) == ["b"]
    assert turns(plan)["a"] == (Turn.QUOTA, False)


def test_a_job_that_no_one_may_preempt_borrows_nothing() -> None:
    plan = planned(shared(4, projects=two()), of("red", "a", 3, preemptible=False))
    assert turns(plan)["a"] == (Turn.QUOTA, False)
    assert "borrows none" in plan.entries[0].why
    assert starts(planned(shared(4, projects=two()), of("red", "a", 2, preemptible=False))) == ["a"]


def test_what_is_over_a_quota_keeps_nothing_from_other_projects() -> None:
    lends = shared(2, runs("red", "r", 2, priority=900), projects=two(borrow=0))
    plan = planned(lends, of("red", "a", 1, priority=900), of("blue", "b", 2))
    assert (starts(plan), turns(plan)["a"]) == (["b"], (Turn.QUOTA, False))


def test_in_its_project_the_first_that_waits_for_the_quota_is_not_passed() -> None:
    lends = shared(4, runs("red", "r", 1), projects=two(borrow=0))
    plan = planned(lends, of("red", "large", 2, submitted_s=1.0), of("red", "small", 1, submitted_s=2.0))
    assert starts(plan) == [], "or small ones kept it waiting for ever"
    assert plan.entries[1].behind == "large"
    never = planned(lends, of("red", "huge", 3, submitted_s=1.0), of("red", "small", 1, submitted_s=2.0))
    assert starts(never) == ["small"], "what needs more than the quota keeps nothing"
    assert "never fits" in never.entries[0].why


def test_of_equal_priority_who_has_borrowed_least_for_its_weight_is_first() -> None:
    projects = (
        Share(name="blue", quota=8, used=16),
        Share(name="red", quota=8, used=24, weight=4),
        Share(name="own", quota=8),
    )
    queue = [of("blue", "b", submitted_s=1.0), of("red", "r", submitted_s=2.0), of("own", "o", submitted_s=3.0)]
    assert [job.id for job in in_turn(queue, projects)] == ["o", "r", "b"]
    urgent = [*queue, of("blue", "u", submitted_s=9.0, priority=900)]
    assert in_turn(urgent, projects)[0].id == "u", "priority comes first"


def test_jobs_of_two_projects_take_turns_as_their_share_grows() -> None:
    projects = (Share(name="blue", quota=0), Share(name="red", quota=0, weight=2))
    queue = [of(name, f"{name}{n}", submitted_s=float(n)) for n in range(3) for name in ("blue", "red")]
    assert [job.id for job in in_turn(queue, projects)] == ["blue0", "red0", "red1", "blue1", "red2", "blue2"]


def test_within_its_quota_a_project_takes_back_what_others_borrow_whatever_their_priority() -> None:
    lends = shared(0, runs("red", "r1", 2, priority=900), runs("red", "r2", 2, priority=900), projects=two())
    plan = planned(lends, of("blue", "b", 2, priority=100))
    assert (plan.head, len(plan.victims)) == ("b", 1)
    assert plan.victims[0].borrows == "red"


def test_no_more_is_taken_back_than_was_borrowed() -> None:
    lends = shared(0, runs("red", "r1", 2), runs("red", "r2", 1), runs("", "x", 1, priority=900), projects=two())
    plan = planned(lends, of("blue", "b", 2))
    assert [victim.id for victim in plan.victims] == ["r1"], "r2 alone gives too little, and both are more than it owes"
    more = planned(lends, of("blue", "b", 3))
    assert more.victims == ()


@pytest.mark.parametrize(("project", "priority"), [("red", 900), ("", 900)], ids=["quota", "no quota"])
def test_what_a_project_has_of_its_own_no_other_takes_by_priority(project: str, priority: int) -> None:
    lends = shared(0, runs("blue", "b1"), runs("blue", "b2"), projects=two())
    plan = planned(lends, of(project, "u", priority=priority))
    assert plan.victims == ()
    same = planned(lends, of("blue", "u", priority=900))
    assert [victim.id for victim in planned(change(lends, projects=()), of(project, "u", priority=900)).victims]
    assert [(victim.id, victim.borrows) for victim in same.victims] == [("b1", "")], "its own project's, by priority"


def test_the_explanation_says_who_is_left_alone_for_its_own_projects_quota() -> None:
    lends = shared(0, runs("blue", "own", 1, priority=100), projects=two())
    found = explain([of("red", "urgent", priority=900)], lends, QUEUE, NOW_S, "urgent")
    assert found is not None and [each.id for each in found.outranks] == ["own"]
    assert found.no_preemption == "all of lower priority are left alone", "nobody may be asked"
    assert [(each.id, each.why, each.until_s) for each in found.spared] == [
        ("own", "runs within the quota of its project, which no other project's job takes by priority", None)
    ]


def test_the_words_name_the_quota_the_borrowers_and_what_frees_it() -> None:
    lends = shared(1, runs("red", "r", 2), runs("green", "g", 3), projects=(*two(), Share(name="green", quota=8)))
    found = explain([of("red", "a")], lends, QUEUE, NOW_S, "a")
    assert found is not None
    for words in (
        "project red has 16 devices of its own",
        "16 are in use",
        "others lend it 0 more",
        "borrowed by green",
    ):
        assert words in found.sentence
    assert "waits until jobs of its project end, or others lend more" in found.sentence


def test_a_replica_more_waits_for_all_of_its_priority_whatever_their_projects_have_borrowed() -> None:
    owes = shared(1, runs("red", "lent", 3), runs("blue", "elastic"), projects=two())
    waits_too, more = of("red", "more"), of("", "elastic")
    assert turns(growth([waits_too], owes, QUEUE, NOW_S, more))["elastic"] == (Turn.FIRST, True), "red may borrow none"
    rich = change(owes, projects=(*owes.projects, Share(name="green", quota=8)))
    assert turns(growth([waits_too], rich, QUEUE, NOW_S, more))["elastic"][1] is False, "the other is first"


def test_a_replica_more_borrows_nothing_for_which_another_project_waits() -> None:
    lends = shared(1, runs("red", "elastic", 2), projects=two())
    more = of("red", "elastic")
    assert turns(growth([], lends, QUEUE, NOW_S, more))["elastic"] == (Turn.FIRST, True)
    low = of("blue", "low", 2, priority=100)
    assert turns(growth([low], lends, QUEUE, NOW_S, more))["elastic"] == (Turn.QUOTA, False)


@pytest.mark.parametrize(("leaves", "asked"), [(False, ["kept", "left"]), (True, [])])
def test_what_a_borrower_is_leaving_already_is_not_taken_from_it_again(leaves: bool, asked: list[str]) -> None:
    left, kept = change(runs("red", "left", 2), leaves=leaves), runs("red", "kept", 2)
    projects = (Share(name="blue", quota=24), Share(name="red", quota=16 if leaves else 0))
    plan = planned(shared(0, left, kept, projects=projects), of("blue", "a", 3))
    assert [victim.id for victim in plan.victims] == asked, "what stays is no more than its own"


def test_who_runs_within_its_own_projects_quota_is_named_as_left_alone() -> None:
    lends = shared(0, runs("blue", "b1"), runs("blue", "b2"), projects=two())
    found = explain([of("red", "u", priority=900)], lends, QUEUE, NOW_S, "u")
    assert found is not None and found.no_preemption == "all of lower priority are left alone"
    assert {each.id: "within the quota of its project" in each.why for each in found.spared} == {"b1": True, "b2": True}
