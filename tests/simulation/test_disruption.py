"""I7 in simulated worlds: no cap is exceeded between two words of people, what is proved goes on, and work goes on once
a person has closed the breaker."""

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption_counts import ActKind
from controlplane.simulator.faults import Fault
from controlplane.simulator.world import World, WorldPlan, job_spec

NODES = {f"node-{index}": 2 for index in range(6)}
RACKS = {name: f"rack-{number // 2}" for number, name in enumerate(NODES)}
CAPS = PolicyConfig(max_evictions=3, max_evictions_of_segment=2, bar_s=0.0)


def hanging(seed: int, config: PolicyConfig, every_s: float = 15.0, until_s: float = 300.0) -> World:
    """A rank hangs again and again."""
    world = World(seed, config=config, plan=WorldPlan(spec=job_spec(steps=100_000), nodes=NODES, racks=RACKS))
    world.start()
    world.faults.schedule(1000.0, 0)
    at_s = 20.0
    while at_s < until_s:
        world.kernel.after(at_s, world.faults.strike, Fault.RANK_HANG)
        at_s += every_s
    # The last two may hang at once, which is held as one cause for so long.
    world.kernel.run(until_s + config.common_limit_s + 60.0)
    return world


def worst(world: World, segment: str) -> int:
    """The most evictions without proof, in the fleet or a segment, with no word of a person in between."""
    budget, most = world.server.rows.budget, 0
    ends = sorted(budget.closings.get(segment, []) + budget.closings.get("", []))
    for first in (0.0, *ends):
        last = min((end for end in ends if end > first), default=float("inf"))
        acts = [act for at_s, act in budget.acts if first <= at_s < last and not act.proved]
        mine = [act for act in acts if act.kind is ActKind.EVICT]
        most = max(most, sum(not segment or segment in act.segments for act in mine))
    return most


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_cap_is_exceeded_and_a_person_lets_work_go_on(seed: int) -> None:
    world = hanging(seed, CAPS)
    budget = world.server.rows.budget
    assert world.checkers.violations == []
    assert worst(world, "") <= CAPS.max_evictions
    assert all(worst(world, name) <= CAPS.max_evictions_of_segment for name in set(RACKS.values()))
    assert sum(budget.opened.values()) > 0, "the breaker opened"
    closed_s = min(ends[0] for ends in budget.closings.values())
    acts = [act.kind for at_s, act in budget.acts if at_s > closed_s]
    assert {ActKind.EVICT, ActKind.RESTART} & {*acts}, "and work went on when it was closed"


def test_by_default_the_same_world_meets_no_cap() -> None:
    world = hanging(1, PolicyConfig(bar_s=0.0))
    assert world.checkers.violations == []
    assert not world.server.rows.budget.opened
