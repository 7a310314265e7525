"""`nodes` and `gpus_per_node` are a shape: the first attempt is placed so, later ones take what is left."""

import pytest

from controlplane.policy.plan import PlaceAttempt, StartReplica
from controlplane.protocol.spec import Parallelism, Resources, TrainSpec
from controlplane.protocol.states import AttemptState, JobState

from .builders import action, attempt, change, job, node, only, pending, shrunk, spec

RULE = "lifecycle"


def shaped(nodes: int, gpus: int, *, ranks: int = 2) -> TrainSpec:
    resources = Resources(nodes=nodes, gpus_per_node=gpus)
    return change(spec(parallelism=Parallelism(pp=ranks)), resources=resources)


def world(wish: TrainSpec, *devices: int, **fields):
    """A job that waits for a place, and free nodes of so many devices."""
    nodes = tuple(node(index, devices=count) for index, count in enumerate(devices))
    return pending(job=job(state=JobState.PENDING, spec=wish, epoch=0, committed_step=0), nodes=nodes, **fields)


def taken(snapshot) -> dict[str, int]:
    """How many devices of each node the placement takes."""
    order = action(only(snapshot, RULE), PlaceAttempt)
    homes = [place.node_id for replica in order.placements for place in replica]
    return {home: homes.count(home) for home in sorted(set(homes))}


@pytest.mark.parametrize(
    ("nodes", "gpus", "ranks"), [(4, 2, 2), (2, 4, 2), (1, 8, 2), (8, 1, 2), (4, 2, 8), (2, 4, 8), (2, 4, 4)]
)
def test_a_job_takes_so_many_devices_of_so_many_nodes(nodes: int, gpus: int, ranks: int) -> None:
    assert list(taken(world(shaped(nodes, gpus, ranks=ranks), *[8] * 8)).values()) == [gpus] * nodes


def test_nodes_with_fewer_free_devices_are_passed_over() -> None:
    assert taken(world(shaped(2, 4), 2, 4, 3, 8)) == {"n1": 4, "n3": 4}


def test_enough_devices_on_too_small_nodes_are_waited_for_and_the_reason_says_so() -> None:
    decision = only(world(shaped(2, 4), 8, 3, 3, 2), RULE)
    assert decision.choice == "wait"
    assert "2 x 4 devices are asked for (nodes x gpus_per_node), 1 node has 4 free" in decision.sentence


def test_too_few_devices_in_all_are_counted_as_such() -> None:
    assert "4 replicas of 2 need 8 devices, 5 are free" in only(world(shaped(2, 4), 3, 2), RULE).sentence


def test_a_later_attempt_takes_what_is_left() -> None:
    ended = attempt(state=AttemptState.ENDED, replicas=4)
    again = world(shaped(2, 4), 3, 2, 2, 2, attempt=ended)
    assert sum(taken(again).values()) == 8


def test_a_replica_that_is_started_again_may_go_to_a_smaller_node() -> None:
    snapshot = shrunk(spares=1)
    wish = change(snapshot.job.spec, resources=Resources(nodes=1, gpus_per_node=6))
    start = action(only(change(snapshot, job=change(snapshot.job, spec=wish)), "replace"), StartReplica)
    assert {place.node_id for place in start.placements} == {"n3"}
