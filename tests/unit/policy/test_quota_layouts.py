"""A quota holds in every layout: also of a job that the nodes could hold in another one alone."""

import pytest

from controlplane.policy.plan import PlaceAttempt
from controlplane.policy.queue.demand import later_demand
from controlplane.policy.queue.place import QueuePlace, Turn
from controlplane.policy.queue.rows import Pending, QueueFleet, Share
from controlplane.policy.queue.words import place_of
from controlplane.policy.rules import lifecycle
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.spec import Parallelism, Resources, TrainSpec
from controlplane.protocol.states import AttemptState, JobState

from .builders import CONFIG, action, actions, attempt, change, decisions, job, only, pending
from .builders import node as holds
from .builders import spec as asks
from .test_elastic_start import asks as asks_elastic
from .test_elastic_start import waits
from .test_queue import demand
from .test_queue import job as wants
from .test_quota_kept import entries
from .test_shares import of, planned, runs, shared


def larger(name: str = "huge") -> Pending:
    """It has trained: at least three replicas of a node each."""
    spec = TrainSpec(resources=Resources(nodes=4, gpus_per_node=8, min_replicas=3), parallelism=Parallelism(tp=8))
    return change(wants(name, later_demand(spec)), project="red")


def two_nodes(quota: int, used: bool = False) -> QueueFleet:
    """Both are free, or red has one of them."""
    project = (Share(name="red", quota=quota, borrow=0),)
    return shared(1, runs("red", "r", 1), projects=project) if used else shared(2, projects=project)


def test_in_another_layout_it_takes_what_its_quota_has_left_at_most() -> None:
    plan = planned(two_nodes(12, used=True), larger())
    assert (plan.entries[0].turn, plan.entries[0].may_start, plan.entries[0].at_most) == (Turn.TOO_LARGE, True, 4)
    place = place_of(plan, "huge")
    assert place is not None and place.at_most == 4
    assert planned(two_nodes(64), larger()).entries[0].at_most is None, "its quota has all that it could take"


def test_where_its_quota_has_nothing_left_it_waits_for_that_and_keeps_nothing() -> None:
    plan = planned(two_nodes(8, used=True), larger(), of("blue", "next", 1, submitted_s=2000.0))
    found = entries(plan)
    assert (found["huge"].turn, found["huge"].may_start, plan.head) == (Turn.QUOTA, False, "")
    assert found["huge"].why == (
        "project red has 8 devices of its own, 8 are in use or planned for, none is left for the job in another layout,"
        " and the nodes that take work hold no other"
    )
    assert found["next"].may_start


def test_one_that_must_start_whole_waits_for_its_quota_too() -> None:
    """Placement may know a place for it and its spares where the count of the queue, by the worst one, knows none."""
    whole = change(wants("huge", demand(2, spares=8)), project="red")
    found = planned(two_nodes(12), whole).entries[0]
    assert (found.turn, found.may_start) == (Turn.QUOTA, False)
    assert "which needs 24, never fits" in found.why
    assert planned(two_nodes(64), whole).entries[0].turn is Turn.TOO_LARGE


def later(free: int, at_most: int | None) -> JobSnapshot:
    """Two replicas of two ranks must train; so many single devices are free."""
    spec = asks(min_replicas=2, parallelism=Parallelism(tp=2))
    turn = QueuePlace(place=1, waiting=1, turn=Turn.TOO_LARGE, at_most=at_most)
    queued = job(state=JobState.PENDING, epoch=0, committed_step=0, spec=spec)
    nodes = tuple(holds(index, devices=1) for index in range(free))
    return pending(job=queued, nodes=nodes, attempt=attempt(state=AttemptState.ENDED), queue=turn)


def test_an_attempt_in_another_layout_is_placed_within_that() -> None:
    free = action(only(later(3, None), lifecycle.RULE), PlaceAttempt)
    assert (sum(map(len, free.placements)), free.layout.tp) == (3, 1)
    decision = only(later(3, 2), lifecycle.RULE)
    assert sum(map(len, action(decision, PlaceAttempt).placements)) == 2
    assert "its project's quota has 2 devices for it" in decision.sentence


def test_where_that_is_too_little_its_words_say_that_the_quota_bounds_it() -> None:
    decision = only(later(3, 1), lifecycle.RULE)
    assert decision.sentence.startswith("Waits for devices: its project's quota has 1 device for it: no TP x PP fits")
    assert "quota" not in only(later(1, 1), lifecycle.RULE).sentence, "there is no more anyway"


@pytest.mark.parametrize("at_most", [1, 3])
def test_a_first_attempt_has_no_other_layout_within_a_quota_either(at_most: int) -> None:
    turn = QueuePlace(place=1, waiting=1, turn=Turn.TOO_LARGE, at_most=at_most)
    found = decisions(change(waits(asks_elastic(min_replicas=2), 4), queue=turn), CONFIG)
    assert not [act for each in found for act in actions(each, PlaceAttempt)]
    assert any(f"have {at_most} device" in each.sentence for each in found)
