"""Nodes leave as was said, in worlds: what could be saved by then is, and nothing that trains is on them any more."""

import os

import pytest

from controlplane.protocol.states import JobState
from controlplane.simulator.mixed import drawn
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan, job_spec

FEW = 9 if "HOLDFAST_TEST_RELEASE" in os.environ else 5
NODES = {f"node-{index}": 2 for index in range(5)}


def world(seed: int, *, nodes: int = 5, min_replicas: int = 1) -> World:
    """Three replicas train on as many of these nodes, undisturbed for a minute: everything has been measured."""
    spec = job_spec(steps=100_000, min_replicas=min_replicas, spare_gpus=0)
    plan = WorldPlan(spec=spec, nodes=dict(list(NODES.items())[:nodes]), timing=Timing(saves_asked=True))
    made = World(seed, plan=plan)
    made.start()
    made.faults.schedule(1000.0, 0)
    made.kernel.run(60.0)
    assert made.server.rows.state is JobState.RUNNING
    return made


def choices(made: World) -> list[str]:
    return [entry for entry in made.server.rows.history if entry.startswith("known_end:")]


@pytest.mark.parametrize("seed", range(1, FEW))
def test_with_room_a_replica_is_relieved_before_a_notice_of_60_s_is_over_and_no_step_is_lost(seed: int) -> None:
    made = world(seed)
    rows = made.server.rows
    made.departures.notice(60.0)
    before = rows.committed_step
    made.kernel.run(made.kernel.now_s + 61.0)
    taken = "known_end:relieve:node_leaves" in choices(made)
    left = made.departures.left
    assert made.checkers.violations == [] and rows.committed_step > before and not rows.attempts
    assert not taken or [each.alive for each in left] in ([0], [])
    assert rows.incident_s is None and not rows.charged


@pytest.mark.parametrize("seed", range(1, FEW))
def test_without_room_it_leaves_by_a_view_and_the_others_train_on(seed: int) -> None:
    made = world(seed, nodes=3)
    rows = made.server.rows
    made.departures.notice(30.0)
    made.kernel.run(made.kernel.now_s + 31.0)
    left = made.departures.left
    assert made.checkers.violations == [] and not rows.attempts
    if left:
        assert "known_end:leave:node_leaves" in choices(made) and left[0].alive == 0
        assert rows.state in (JobState.RECOVERING, JobState.RUNNING) and rows.incident_s is None


@pytest.mark.parametrize("seed", range(1, FEW))
def test_where_all_must_train_the_job_saves_and_waits_and_its_steps_are_in_the_checkpoint(seed: int) -> None:
    made = world(seed, nodes=3, min_replicas=3)
    rows = made.server.rows
    made.departures.notice(60.0)
    step, end_s = 0, made.kernel.now_s + 60.0
    while rows.state is JobState.RUNNING and made.kernel.now_s < end_s:
        step = rows.committed_step
        made.kernel.run(made.kernel.now_s + 0.1)
    made.kernel.run(end_s + 1.0)
    assert made.checkers.violations == []
    if made.departures.left:
        saved = max(fact.step for fact in rows.checkpoints if fact.committed_s < end_s)
        assert step - saved <= 1, "but for a step in hand"
        assert made.departures.left[0].alive == 0 and not rows.charged and rows.incident_s is None
        assert any(entry.startswith("known_end:yield") for entry in rows.history)


@pytest.mark.parametrize("seed", range(1, FEW))
def test_a_window_finds_the_node_empty_and_the_node_takes_work_when_it_is_over(seed: int) -> None:
    made = world(seed)
    made.departures.window()
    made.kernel.run(made.kernel.now_s + 240.0)
    assert made.checkers.violations == []
    assert all(each.alive == 0 for each in made.departures.left)
    assert all(node.connected for node in made.server.rows.nodes.values())


def test_mixed_worlds_have_both() -> None:
    found = [drawn(seed).extras for seed in range(60)]
    assert any(each.notices for each in found) and any(each.windows for each in found)
