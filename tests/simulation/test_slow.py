"""A device turns slow while everything else happens: its replica is moved, or the others go on without it."""

from statistics import median

import msgspec
import pytest

from controlplane.policy.rules import straggler
from controlplane.protocol.spec import Budget, Resiliency, Stragglers, Timeouts
from controlplane.simulator.extras import Extras
from controlplane.simulator.world import World, WorldPlan, job_spec

FULL = {f"node-{index}": 2 for index in range(3)}
"""No device is free beside three replicas of two ranks."""
WITHOUT = f"straggler:{straggler.WITHOUT}:cheaper_without"


def world(seed: int, *, nodes: dict[str, int] = FULL, min_replicas: int = 1, restarts: int = 1000) -> World:
    wanted = Resiliency(
        timeouts=Timeouts(setup_s=30.0), stragglers=Stragglers(interval_s=10.0), budget=Budget(max_restarts=restarts)
    )
    spec = msgspec.structs.replace(job_spec(spare_gpus=0, min_replicas=min_replicas), resiliency=wanted)
    return World(seed, plan=WorldPlan(spec=spec, nodes=nodes))


@pytest.mark.parametrize("seed", range(4100, 4104))
def test_where_no_device_is_free_the_others_go_on_without_it_and_its_device_stays_empty(seed: int) -> None:
    made = world(seed)
    outcome = made.run(0, extras=Extras(slow=1))
    assert outcome.violations == ()
    assert outcome.decisions.count(WITHOUT) == 1
    ((node, device),) = made.slowness.late
    assert [(bar.node_id, bar.device_index) for bar in made.server.rows.bars] == [(node, device)]
    used = {(p.node_id, p.device_index) for row in made.server.rows.replicas.values() if row.state == "active"
            for p in row.placements}  # fmt: skip
    assert len(used) == 4 and (node, device) not in used
    assert median(made.server.rows.calm) < 1.0, "as fast as the others are"


def test_a_free_place_is_taken_instead() -> None:
    made = world(4100, nodes=FULL | {"node-3": 2})
    outcome = made.run(0, extras=Extras(slow=1))
    assert outcome.violations == ()
    assert WITHOUT not in outcome.decisions
    assert any(each.startswith("straggler:") and each.endswith("cheaper_to_move") for each in outcome.decisions)
    assert sum(row.state == "active" for row in made.server.rows.replicas.values()) == 3


@pytest.mark.parametrize("limits", [{"min_replicas": 3}, {"restarts": 0}], ids=str)
def test_it_stays_where_all_must_train_or_the_budget_is_spent(limits: dict[str, int]) -> None:
    made = world(4100, **limits)  # type: ignore[arg-type]
    outcome = made.run(0, extras=Extras(slow=1))
    assert outcome.violations == ()
    assert made.slowness.found == 1
    assert not any("cheaper_without" in each for each in outcome.decisions)
    assert outcome.evictions == 0


@pytest.mark.parametrize("seed", range(4200, 4212))
def test_beside_other_faults_nobody_healthy_is_ended_for_it(seed: int) -> None:
    outcome = world(seed, nodes=FULL | {"node-3": 2}).run(3, extras=Extras(slow=2))
    assert outcome.violations == ()
