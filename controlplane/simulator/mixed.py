"""The mixed schedule: of every kind of fault something, a job and a network that make it hard, all from the seed."""

import random
from dataclasses import dataclass

from controlplane.simulator.extras import Extras
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import Outcome, World, WorldPlan, job_spec

NODES = {f"node-{index}": 2 for index in range(5)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a seed's world meets."""

    plan: WorldPlan
    faults: int
    evictions: int
    stills: int
    leaps: int
    extras: Extras


def drawn(seed: int) -> Draw:
    """By chances of its own. Each world has one or two themes, and a little of everything now and then."""
    chance = random.Random(f"mixed {seed}")
    standing_by = chance.choice((0, 0, 0, 1, 2))
    spec = job_spec(
        tp=chance.choice((1, 2)),
        spare_gpus=chance.choice((0, 2)),
        steps=60 if chance.random() < 0.1 else 100_000,
        min_replicas=chance.choice((1, 1, 1, 2, 3)),
        standing_by=standing_by,
    )
    builds_s = chance.choice((0.0, 0.0, 0.3, 1.5))
    timing = Timing(
        micro_batch_s=chance.choice(((0.2, 0.3), (0.4, 0.6))),
        regroup_s=builds_s,
        rejoin_s=builds_s / 2.0,
        meets=chance.random() < 0.7,
        word_s=chance.choice(((0.0, 0.0), (0.0, 0.05), (0.0, 0.4))),
    )
    themes = chance.sample(tuple(THEMES), chance.choice((1, 2, 2, 3)))
    counts = {name: chance.randrange(1, most + 1) for theme in themes for name, most in THEMES[theme].items()}
    return Draw(
        plan=WorldPlan(spec=spec, nodes=NODES, timing=timing),
        faults=chance.choice((0, 1, 2, 4, 8)),
        evictions=chance.choice((0, 0, 0, 2)),
        stills=chance.choice((0, 0, 0, 2)),
        leaps=chance.choice((0, 0, 0, 2)),
        extras=Extras(**counts, **_of_nodes(seed), **_of_ends(seed)),
    )


THEMES: dict[str, dict[str, int]] = {
    "network": {"one_way": 4, "late": 6},
    "server": {"server_restarts": 4},
    "agents": {"record_ends": 6, "full_disks": 3},
    "clock": {"wall_leaps": 1},
    "people": {"requests": 4},
    "volleys": {"volleys": 4},
    "exchanges": {"failing_exchanges": 3, "volleys": 1},
}


def _of_nodes(seed: int) -> dict[str, int]:
    """By other chances, of every fourth world: the rest of a world is what it was."""
    chance = random.Random(f"mixed nodes {seed}")
    most = {"unfit": 3, "host_ends": 3, "refused": 3}
    return {name: chance.randrange(times + 1) for name, times in most.items()} if chance.random() < 0.25 else {}


def _of_ends(seed: int) -> dict[str, int]:
    """By other chances, of every third world: nodes that leave as was said."""
    chance = random.Random(f"mixed ends {seed}")
    return {"notices": chance.randrange(3), "windows": chance.randrange(3)} if chance.random() < 0.33 else {}


def run(seed: int) -> Outcome:
    """One seed of it."""
    found = drawn(seed)
    world = World(seed, plan=found.plan)
    return world.run(found.faults, orders=found.evictions, stills=found.stills, leaps=found.leaps, extras=found.extras)
