"""An elastic job starts with the replicas that fit, and has places for the others when there is room."""

import pytest

from controlplane.policy.plan import PlaceAttempt
from controlplane.policy.queue.demand import first_demand, later_demand
from controlplane.policy.rules import lifecycle
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.spec import Scheduling, TrainSpec
from controlplane.protocol.states import AttemptState, JobState

from .builders import CONFIG, action, actions, attempt, decisions, job, node, only, pending, spec

ELASTIC = Scheduling(elastic=True)


def asks(**fields: object) -> TrainSpec:
    """Three replicas of two ranks."""
    return spec(**{"scheduling": ELASTIC} | fields)


def waits(wanted: TrainSpec, free: int, **fields: object) -> JobSnapshot:
    """So many nodes of two devices are free."""
    queued = job(state=JobState.PENDING, epoch=0, committed_step=0, spec=wanted)
    nodes = tuple(node(index) for index in range(free))
    return pending(job=queued, nodes=nodes, **fields)


def test_it_starts_with_what_fits_and_has_places_for_the_rest() -> None:
    decision = only(waits(asks(), 2), lifecycle.RULE)
    place = action(decision, PlaceAttempt)
    assert (len(place.placements), place.yielded, place.layout.dp) == (2, 1, 3)
    assert "2 of 3 replicas" in decision.sentence


def test_where_all_fits_it_starts_whole() -> None:
    place = action(only(waits(asks(), 4), lifecycle.RULE), PlaceAttempt)
    assert (len(place.placements), place.yielded) == (3, 0)


@pytest.mark.parametrize(
    ("wanted", "free"),
    [(asks(min_replicas=3), 2), (asks(min_replicas=2), 1), (spec(), 2)],
    ids=["all", "least", "not elastic"],
)
def test_below_its_least_or_without_the_word_it_waits(wanted: TrainSpec, free: int) -> None:
    assert not [act for d in decisions(waits(wanted, free), CONFIG) for act in actions(d, PlaceAttempt)]


def test_it_begins_in_no_other_layout() -> None:
    """One device would hold a replica of one rank."""
    one = waits(asks(), 0)
    small = pending(job=one.job, nodes=(node(0, devices=1),))
    assert not [act for d in decisions(small, CONFIG) for act in actions(d, PlaceAttempt)]


def test_a_later_attempt_of_it_has_places_for_the_rest_too_and_one_of_another_layout_has_none() -> None:
    ended = attempt(state=AttemptState.ENDED)
    place = action(only(waits(asks(), 2, attempt=ended), lifecycle.RULE), PlaceAttempt)
    assert (len(place.placements), place.yielded) == (2, 1)
    small = pending(job=waits(asks(), 0).job, nodes=(node(0, devices=1),), attempt=ended)
    other = action(only(small, lifecycle.RULE), PlaceAttempt)
    assert (len(other.placements), other.yielded, other.layout.pp) == (1, 0, 1)


@pytest.mark.parametrize(("yielded", "later"), [(0, 0), (1, 1)])
def test_a_job_that_gave_a_replica_has_a_place_for_it_in_its_next_attempt_too(yielded: int, later: int) -> None:
    ended = attempt(state=AttemptState.ENDED, yielded=yielded)
    place = action(only(waits(spec(), 2, attempt=ended), lifecycle.RULE), PlaceAttempt)
    assert (len(place.placements), place.yielded, place.layout.dp) == (2, later, 2 + later)


def test_in_the_queue_it_asks_for_its_least() -> None:
    assert first_demand(asks(min_replicas=2)) == later_demand(asks(min_replicas=2))
    assert first_demand(asks(min_replicas=2)).devices == 4
    assert first_demand(spec()).devices == 6
