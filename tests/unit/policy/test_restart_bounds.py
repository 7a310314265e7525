"""A restart asks nobody in the queue: what bounds the attempt that it places."""

import pytest

from controlplane.policy.asked import Again, Need
from controlplane.policy.elastic import kept, what_bounds
from controlplane.policy.elsewhere import decide_asking, parted
from controlplane.policy.plan import Decision, EndAttempt, PlaceAttempt, SetJobState
from controlplane.policy.queue.place import QueuePlace, Turn
from controlplane.policy.queue.rows import Demand, Pending, QueueConfig, QueueFleet, Share
from controlplane.policy.queue.schedule import again
from controlplane.policy.rules.restart import RULE
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import JobState

from .builders import CONFIG, NOW_S, action, actions, attempt, change, job, node, only, running, signal, spec
from .test_queue import job as waits
from .test_shares import of, runs, shared

GAVE = attempt(yielded=1)
"""Three replicas of two ranks were asked for: two run."""


def dead(**fields: object) -> JobSnapshot:
    """Every replica has lost a rank; two nodes are free besides."""
    ended = tuple(signal("rank_exit", i + 1, replica=i, incarnation=1, rank=0, value=1.0) for i in range(3))
    return running(signals=ended, **{"spares": 2} | fields)


def within(snapshot: JobSnapshot, quota: Again | None) -> Decision:
    """The restart of a job whose project's quota has so much for it."""
    part, answer = parted(snapshot, lambda: quota)
    _, plan = decide_asking(part, CONFIG, answer)
    (found,) = (decision for decision in plan.decisions if decision.rule == RULE)
    return found


def test_what_a_job_has_yielded_it_does_not_take_back_at_a_restart() -> None:
    decision = only(dead(attempt=GAVE), RULE)
    order = action(decision, PlaceAttempt)
    assert (len(order.placements), order.yielded, order.layout.dp) == (2, 1, 3)
    assert "2 of 3 replicas; it had 4 devices, and takes more by the queue alone" in decision.sentence


def test_what_it_lost_besides_is_taken_back_by_the_queue_too() -> None:
    two_left = tuple(node(index, free=index > 2) for index in range(2))
    lost = dead(attempt=GAVE, nodes=two_left[:1])
    order = action(only(lost, RULE), PlaceAttempt)
    assert (len(order.placements), order.yielded) == (1, 2)


def test_without_a_yield_it_takes_all_that_it_asks_for() -> None:
    order = action(only(dead(), RULE), PlaceAttempt)
    assert (len(order.placements), order.yielded) == (3, 0)


def test_one_that_has_yielded_is_placed_in_another_layout_by_the_queue_alone() -> None:
    """How much it yielded is a number of replicas of its own layout: of another one nobody would know it."""
    one = (node(0, devices=1, free=False),)
    other = action(only(dead(nodes=one), RULE), PlaceAttempt)
    assert (other.layout.pp, len(other.placements)) == (1, 1)
    decision = only(dead(nodes=one, attempt=GAVE), RULE)
    assert action(decision, SetJobState).to is JobState.PENDING
    assert "of the devices that it has not yielded 1 is left, 2 are needed at least" in decision.sentence


@pytest.mark.parametrize(("most", "replicas"), [(None, 3), (5, 2), (4, 2), (2, 1)])
def test_it_takes_what_its_projects_quota_has_for_it_and_has_places_for_the_rest(
    most: int | None, replicas: int
) -> None:
    decision = within(dead(), Again(at_most=most))
    order = action(decision, PlaceAttempt)
    assert (len(order.placements), order.yielded) == (replicas, 3 - replicas)
    assert ("its project's quota has" in decision.sentence) is (most is not None)


def test_where_the_quota_has_too_few_it_ends_and_waits_in_the_queue() -> None:
    decision = within(dead(), Again(why="project red has 4 devices of its own, 4 are in use"))
    assert action(decision, SetJobState).to is JobState.PENDING
    assert actions(decision, EndAttempt) and not actions(decision, PlaceAttempt)
    assert "waits for its project's quota: project red has 4 devices of its own" in decision.sentence
    assert decision.choice == "queue"


def test_its_spares_count_for_the_quota_too() -> None:
    asks = job(spec=spec(nodes=1, spares=2))
    assert action(within(dead(job=asks), Again(at_most=4)), PlaceAttempt).spare_nodes
    assert action(within(dead(job=asks), Again(at_most=3)), PlaceAttempt).spare_nodes == ()


def test_the_smaller_of_both_bounds_it() -> None:
    yields = dead(attempt=GAVE)
    assert len(action(within(yields, Again(at_most=6)), PlaceAttempt).placements) == 2
    assert len(action(within(yields, Again(at_most=2)), PlaceAttempt).placements) == 1
    assert (what_bounds(2, 4), what_bounds(6, 4), what_bounds(None, None)) == (
        "; its project's quota has 2 devices for it",
        "; it had 4 devices, and takes more by the queue alone",
        "",
    )


def test_its_place_in_the_queue_is_that_of_one_replica_more_and_bounds_no_restart() -> None:
    growing = QueuePlace(place=1, waiting=1, turn=Turn.FIRST, at_most=2)
    order = action(within(dead(queue=growing), Again()), PlaceAttempt)
    assert (len(order.placements), order.yielded) == (3, 0)


def test_the_quota_is_asked_for_by_a_restart_alone() -> None:
    asked = list[str]()

    def quota() -> Again:
        asked.append("quota")
        return Again()

    for snapshot in (running(), dead()):
        part, answer = parted(snapshot, quota)
        full, _ = decide_asking(part, CONFIG, answer)
        assert full.elsewhere is not None
        assert any(need.again for need in full.elsewhere.needs) is (snapshot.signals != ())
        assert asked == (["quota"] if snapshot.signals else []), "once, whatever else is asked"


def test_an_answer_to_another_question_says_nothing_of_the_quota() -> None:
    assert Need(again=True).covers(Need()) and Need(again=True).covers(Need(again=True))
    assert not Need().covers(Need(again=True)) and not Need(replicas=3, ranks=2).covers(Need(again=True))


def test_kept_is_what_runs_of_an_attempt_that_has_yielded() -> None:
    assert (kept(attempt()), kept(GAVE)) == (None, 4)


# --- what the quota has: the plan of the queue, for the first in line -------------------------------------------------


def plan(fleet: QueueFleet, *queue: Pending, preemptible: bool = True) -> Again:
    """Of a job of red that asks for three nodes of eight, and trains with one."""
    needs = Demand(devices=8, most=24, touches=24)
    mine = change(waits("mine", needs), project="red", preemptible=preemptible)
    return again(queue, fleet, QueueConfig(), NOW_S, mine)


def quotas(red: int, blue: int, **fields: object) -> tuple[Share, ...]:
    return (Share(name="red", quota=red, **fields), Share(name="blue", quota=blue))


def test_within_its_quota_a_job_is_placed_again_whole() -> None:
    assert plan(shared(4, projects=quotas(24, 8))) == Again()


def test_what_others_of_its_project_use_it_has_not() -> None:
    assert plan(shared(3, runs("red", "r", 1), projects=quotas(24, 0))).at_most == 16
    full = plan(shared(2, runs("red", "r", 2), projects=quotas(16, 0)))
    assert "project red has 16 devices of its own, 16 are in use" in full.why and full.at_most is None


def test_on_what_others_lend_it_is_placed_again_unless_they_wait_for_it_or_it_is_not_preemptible() -> None:
    lent = shared(4, projects=quotas(16, 8))
    assert plan(lent) == Again()
    assert plan(lent, of("blue", "waits", 1)).at_most == 16
    assert plan(lent, preemptible=False).at_most == 16


def test_who_waits_ahead_keeps_none_of_its_projects_quota_from_it() -> None:
    """What has begun is kept whole before something new begins."""
    urgent = of("red", "urgent", 1, priority=900)
    assert plan(shared(4, projects=quotas(24, 0)), urgent) == Again()
