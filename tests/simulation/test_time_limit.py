"""A job with a time limit, under faults: what it had committed when its grace began is saved, and at the limit nothing
runs."""

import msgspec
import pytest

from controlplane.protocol.spec import Scheduling
from controlplane.protocol.states import JobState
from controlplane.simulator.faults import Fault
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan, job_spec

LIMIT_S, GRACE_S, WAY_S = 120.0, 20.0, 3.0
"""`WAY_S`: until the last word of a process that was killed has come."""


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_it_saves_before_its_limit_and_has_ended_by_it(seed: int) -> None:
    spec = msgspec.structs.replace(
        job_spec(steps=100_000), scheduling=Scheduling(time_limit_s=LIMIT_S, preempt_grace_s=GRACE_S)
    )
    nodes = {f"node-{index}": 2 for index in range(5)}
    world = World(seed, plan=WorldPlan(spec=spec, nodes=nodes, timing=Timing(saves_asked=True)))
    world.start()
    world.faults.schedule(1000.0, 0)
    for at_s in (40.0, 70.0):
        world.kernel.after(at_s, world.faults.strike, Fault.RANK_KILL)
    rows = world.server.rows
    world.kernel.run(60.0)
    first = rows.attempts[0] if rows.attempts else rows.attempt
    assert first is not None
    end_s = first.started_s + LIMIT_S
    world.kernel.run(end_s - GRACE_S)
    assert rows.state is not JobState.CANCELLED, "not a second too early"
    step = rows.committed_step
    world.kernel.run(end_s + WAY_S)
    assert rows.state is JobState.CANCELLED and world.checkers.violations == []
    assert not any(process.able() for process in world.trainer.processes.values()), "nothing of it runs"
    saved = max(fact.step for fact in rows.checkpoints)
    assert saved >= step and rows.committed_step - saved <= 1, "what it had committed is saved, but for a step in hand"
