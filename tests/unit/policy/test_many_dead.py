"""Dead replicas need not be neighbours: each leaves, and each is started again in its own place."""

import pytest

from controlplane.policy.plan import AnnounceView, StartReplica, StopReplica
from tests.unit.policy.builders import action, actions, decisions, node, signal
from tests.unit.policy.test_one_of_many import fleet

RULE = "replica_failure"


@pytest.mark.parametrize(
    ("replicas", "dead"),
    [(5, (1, 3)), (5, (0, 4)), (5, (0, 2, 3)), (12, (2, 5, 11)), (60, (0, 7, 30, 59))],
)
def test_dead_replicas_that_are_no_neighbours_leave_together_and_each_keeps_its_place(
    replicas: int, dead: tuple[int, ...]
) -> None:
    exits = tuple(
        signal("rank_exit", n + 1, replica=i, incarnation=1, rank=n % 2, value=-9.0) for n, i in enumerate(dead)
    )
    world = fleet(replicas, signals=exits)
    spares = tuple(node(replicas + 1 + n) for n in range(len(dead)))
    told = decisions(fleet(replicas, signals=exits, nodes=(*world.nodes, *spares)), rule=RULE)
    view = action(told[0], AnnounceView).view
    assert [member.replica for member in view.members] == [index for index in range(replicas) if index not in dead]
    assert all(member.incarnation == 1 for member in view.members), "who lives starts nothing anew"
    assert [stop.replica for decision in told for stop in actions(decision, StopReplica)] == list(dead)
    starts = [start for decision in told for start in actions(decision, StartReplica)]
    assert sorted((start.replica, start.incarnation) for start in starts) == [(index, 2) for index in dead]
    devices = [(place.node_id, place.device_index) for start in starts for place in start.placements]
    assert len(devices) == len(set(devices)) == 2 * len(dead)
    assert all([place.rank for place in start.placements] == [0, 1] for start in starts)
