"""Marked lines of logs: the first is told at once, what follows once a minute, by job and not by rank."""

import pytest

from controlplane.changes.hearing import hear
from controlplane.changes.kinds import Change, Mark, Publish
from controlplane.changes.marks import EVERY_S, tell_marked
from controlplane.changes.speaker import Speaker
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import LogMarked
from controlplane.protocol.launch import RankRef
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, placed


def prints(
    world: World, replica: int, line: str = "NCCL error", count: int = 1, marker: str = "nccl_error"
) -> list[Publish]:
    body = LogMarked(RankRef(JOB_ID, 1, replica, 1, 0), marker, line, count)
    node = NODES[replica]
    return done(world, hear(world.store, body, Speaker(node, node, world.kernel.now_s)))


def due(world: World) -> list[Publish]:
    return done(world, list(tell_marked(world.store)))


def done(world: World, changes: list[Change]) -> list[Publish]:
    world.store.commit(changes)
    assert all(isinstance(change, Mark | Publish) for change in changes), "nothing is decided by it"
    return [change for change in changes if isinstance(change, Publish)]


def test_the_first_line_of_a_marker_is_told_at_once_with_its_rank_and_node() -> None:
    (said,) = prints(placed(), 1, "x" * 400, 3)
    assert (said.kind, said.beside) == ("rank.log", NODES[1])
    assert said.sentence == f'Rank 0 of replica 1 on {NODES[1]} (NCCL error, 3 such lines): "{"x" * 300}"'
    words = {"marker": "nccl_error", "line": "x" * 300, "count": 3, "reports": 1}
    assert said.data == {**words, "replica": 1, "incarnation": 1, "rank": 0}


def test_what_other_ranks_print_within_the_minute_is_one_event_when_it_is_over() -> None:
    world = placed()
    prints(world, 0, count=2)
    assert [prints(world, replica, count=2) for replica in (1, 2, 1)] == [[], [], []]
    assert due(world) == []
    world.kernel.now_s += EVERY_S
    (said,) = due(world)
    who = f"rank 0 of replica 1 on {NODES[1]}"
    assert said.sentence == f'6 more lines, reported 3 times (NCCL error), the last of {who}: "NCCL error"'
    assert (said.data["count"], said.data["reports"]) == (6, 3)


def test_what_was_told_is_not_told_again() -> None:
    world = placed()
    prints(world, 0)
    prints(world, 1)
    world.kernel.now_s += EVERY_S
    assert len(due(world)) == 1
    world.kernel.now_s += EVERY_S
    assert due(world) == []


def test_a_line_after_a_quiet_minute_is_told_at_once_and_alone() -> None:
    world = placed()
    prints(world, 0, count=5)
    world.kernel.now_s += EVERY_S + 1.0
    (said,) = prints(world, 2)
    assert said.sentence.startswith("Rank 0 of replica 2") and said.data["count"] == 1


def test_one_that_comes_when_the_minute_is_over_tells_what_was_counted_before() -> None:
    world = placed()
    prints(world, 0)
    prints(world, 1, count=4)
    world.kernel.now_s += EVERY_S
    (said,) = prints(world, 2)
    assert (said.data["count"], said.data["reports"]) == (5, 2)
    assert due(world) == []


def test_each_marker_has_a_minute_of_its_own() -> None:
    world = placed()
    prints(world, 0)
    (said,) = prints(world, 0, "CUDA out of memory", marker="out_of_memory")
    assert said.data["marker"] == "out_of_memory"
    prints(world, 1)
    prints(world, 1, "CUDA out of memory", marker="out_of_memory")
    world.kernel.now_s += EVERY_S
    assert sorted(each.data["marker"] for each in due(world)) == ["nccl_error", "out_of_memory"]


def test_no_node_speaks_of_another_ones_log() -> None:
    world = placed()
    body = LogMarked(RankRef(JOB_ID, 1, 0, 1, 0), "nccl_error", "NCCL error", 1)
    with pytest.raises(IdentityMismatch):
        hear(world.store, body, Speaker(NODES[3], NODES[3], 990.0))
