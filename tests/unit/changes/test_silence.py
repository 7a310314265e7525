"""When a node under a job counts as silent, and when not any more."""

import pytest

from controlplane.changes.kinds import Change, Raise, Settle, Wake
from controlplane.changes.silence import HEARD_AGAIN, MISSED_FRAMES, Silence, fell_silent, is_heard, silence_of
from controlplane.policy.signals.nodes import NodeSilent
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, placed

NODE = NODES[1]
SILENT = Silence(node_id=NODE, job_id=JOB_ID, silent_s=7.5, limit_s=2.0)


def falls_silent(world: World, found: Silence = SILENT) -> list[Change]:
    changes = list(fell_silent(world.store, found))
    world.store.commit(changes, seen_s=found.began_s(1000.0))
    return changes


def heard(world: World, node: str = NODE) -> list[Change]:
    changes = list(is_heard(world.store, node))
    world.store.commit(changes)
    return changes


@pytest.mark.parametrize(
    ("silent_s", "allowed_s", "interval_s", "limit_s"),
    [(1.9, 2.0, 1.0, None), (2.0, 2.0, 1.0, 2.0), (3.9, 2.0, 2.0, None), (4.0, 2.0, 2.0, 4.0), (9.0, 9.5, 1.0, None)],
)
def test_a_job_allows_a_while_and_never_less_than_two_frames(
    silent_s: float, allowed_s: float, interval_s: float, limit_s: float | None
) -> None:
    found = silence_of(NODE, JOB_ID, silent_s=silent_s, allowed_s=allowed_s, frame_interval_s=interval_s)
    assert (found.limit_s if found is not None else None) == limit_s
    assert limit_s is None or limit_s >= MISSED_FRAMES * interval_s


def test_silence_begins_when_its_limit_is_over_and_not_when_it_is_found() -> None:
    world = placed()
    raised, woken = falls_silent(world)
    assert isinstance(raised, Raise) and isinstance(raised.found, NodeSilent) and woken == Wake()
    (signal,) = world.rows.signals.values()
    assert (signal.kind, signal.node_id, signal.seen_s) == ("node_silent", NODE, 994.5)
    assert (signal.value, signal.threshold) == (7.5, 2.0)


def test_a_silence_that_lasts_is_found_once_and_wakes_once() -> None:
    world = placed()
    falls_silent(world)
    assert falls_silent(world, Silence(node_id=NODE, job_id=JOB_ID, silent_s=9.5, limit_s=2.0)) == []
    assert len(world.rows.signals) == 1


def test_each_node_is_silent_for_itself() -> None:
    world = placed()
    falls_silent(world)
    falls_silent(world, Silence(node_id=NODES[2], job_id=JOB_ID, silent_s=3.0, limit_s=2.0))
    heard(world)
    assert [signal.node_id for signal in world.rows.signals.values()] == [NODES[2]]


def test_a_node_that_is_heard_again_is_silent_no_more_and_its_job_is_looked_at() -> None:
    world = placed()
    falls_silent(world)
    settled, woken = heard(world)
    assert isinstance(settled, Settle) and settled.why == HEARD_AGAIN and woken == Wake()
    assert world.rows.signals == {}


def test_a_node_that_was_never_silent_changes_nothing_by_its_word() -> None:
    assert heard(placed()) == []


def test_a_node_falls_silent_again_as_something_new() -> None:
    world = placed()
    falls_silent(world)
    first = set(world.rows.signals)
    heard(world)
    falls_silent(world)
    assert len(world.rows.signals) == 1 and not first & set(world.rows.signals)
