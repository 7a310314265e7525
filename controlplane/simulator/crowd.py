"""Worlds of several jobs, from a seed: who they are and when they come, what fails, and what people ask of them.

The fleet has six nodes of two devices. Two to six jobs of one to four replicas come within a minute, with priorities
that make some yield to others; in every other world they are of projects with quotas. Faults and people strike as in
`mixed`, and at the worst moments: within a preemption.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue.rows import Share
from controlplane.protocol.spec import (
    Checkpoint,
    Parallelism,
    Resiliency,
    Resources,
    Scheduling,
    Spares,
    Timeouts,
    Training,
    TrainSpec,
)
from controlplane.protocol.states import RequestKind
from controlplane.simulator.extras import Extras
from controlplane.simulator.faults import QUIET_BEFORE_S, Fault
from controlplane.simulator.job import JobPlan
from controlplane.simulator.mixed import THEMES
from controlplane.simulator.people import People
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import FAULTS_UNTIL_S, Outcome, World, WorldPlan

NODES = {f"node-{index}": 2 for index in range(6)}
MOST = 6
PRIORITIES = (100, 300, 500, 500, 900)
CONFIG = PolicyConfig(
    preempt_min_runtime_s=10.0,
    preempt_again_s=25.0,
    preempt_patience_s=5.0,
    preempt_retry_s=5.0,
)
"""As shipped, but that a job is left alone for seconds where a fleet has minutes: a world lasts four of these."""
STRIKES = (
    Fault.RANK_KILL,
    Fault.RANK_HANG,
    Fault.NODE_LOSS,
    Fault.NODE_REBOOT,
    Fault.NODE_CUT,
    Fault.AGENT_RESTART,
    Fault.BACKEND_PAUSE,
    Fault.DISK_FULL,
)
DEEDS = ("preempt", "resume", "cancel", "withdraw", "save", "evict", "drain")
WITHIN_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a seed's world meets. `strikes`: so many faults lie in wait for a preemption, and so many `deeds` of people
    do; `asks`: so many preemptions by people at any time."""

    plan: WorldPlan
    faults: int
    strikes: int
    deeds: int
    asks: int
    extras: Extras


def drawn(seed: int, jobs: int | None = None) -> Draw:
    """By chances of its own."""
    chance = random.Random(f"crowd {seed}")
    count = jobs or chance.choice((2, 3, 3, 4, 5, 6))
    plans = [JobPlan(name=f"job-{n}", spec=_spec(chance), arrives_s=_arrives_s(chance, n)) for n in range(1, count + 1)]
    grows = random.Random(f"crowd elastic {seed}")
    plans = [replace(plan, spec=_elastic(plan.spec)) if grows.random() < 0.3 else plan for plan in plans]
    plans, shares = _shared(random.Random(f"crowd projects {seed}"), plans)
    theme = chance.choice((*THEMES, "", ""))
    counts = {name: chance.randrange(1, most + 1) for name, most in THEMES.get(theme, {}).items() if name != "requests"}
    timing = Timing(
        micro_batch_s=chance.choice(((0.1, 0.15), (0.2, 0.3))),
        meets=chance.random() < 0.7,
        word_s=chance.choice(((0.0, 0.0), (0.0, 0.05))),
        saves_asked=True,
    )
    return Draw(
        plan=WorldPlan(
            spec=plans[0].spec,
            name="job-1",
            others=tuple(plans[1:]),
            nodes=NODES,
            timing=timing,
            shares=shares,
            project=plans[0].project,
        ),
        faults=chance.choice((0, 0, 1, 2, 4)),
        strikes=chance.choice((0, 1, 2)),
        deeds=chance.choice((0, 1, 3)),
        asks=chance.choice((0, 0, 1, 2)),
        extras=Extras(**counts),
    )


def _shared(chance: random.Random, plans: list[JobPlan]) -> tuple[list[JobPlan], tuple[Share, ...]]:
    """In every other world jobs are of two projects, whose quotas are the fleet together, or of none; and some have a
    time limit."""
    if chance.random() < 0.5:
        return plans, ()
    blue = 2 * chance.randrange(1, len(NODES))
    shares = tuple(
        Share(name=name, quota=quota, borrow=chance.choice((None, None, 0, 2)), lend=chance.choice((None, None, 2)))
        for name, quota in (("blue", blue), ("red", sum(NODES.values()) - blue))
    )
    limits = (0.0, 0.0, 60.0, 120.0)
    found = [
        replace(
            plan, project=chance.choice(("blue", "red", "red", "")), spec=_limited(plan.spec, chance.choice(limits))
        )
        for plan in plans
    ]
    return found, shares


def _limited(spec: TrainSpec, limit_s: float) -> TrainSpec:
    """With that time limit."""
    return msgspec.structs.replace(spec, scheduling=msgspec.structs.replace(spec.scheduling, time_limit_s=limit_s))


def _arrives_s(chance: random.Random, number: int) -> float:
    return 0.0 if number == 1 else chance.choice((0.0, chance.uniform(0.0, 20.0), chance.uniform(20.0, 70.0)))


def _spec(chance: random.Random) -> TrainSpec:
    """One to four replicas of two ranks."""
    replicas = chance.choice((1, 2, 2, 3, 4))
    return TrainSpec(
        resources=Resources(
            nodes=replicas,
            gpus_per_node=2,
            min_replicas=chance.choice((1, replicas)),
            spares=Spares(gpus=chance.choice((0, 0, 0, 2))),
        ),
        parallelism=_layout(chance),
        training=Training(steps=chance.choice((40, 120, 100_000)), global_batch=12, micro_batch=1),
        checkpoint=Checkpoint(interval_steps=chance.choice((5, 20, 50))),
        resiliency=Resiliency(timeouts=Timeouts(setup_s=30.0)),
        scheduling=Scheduling(
            priority=chance.choice(PRIORITIES),
            preemptible=chance.random() < 0.8,
            preempt_grace_s=chance.choice((3.0, 10.0, 20.0)),
        ),
    )


def _elastic(spec: TrainSpec) -> TrainSpec:
    """It may start with fewer replicas than it asks for."""
    return msgspec.structs.replace(spec, scheduling=msgspec.structs.replace(spec.scheduling, elastic=True))


def _layout(chance: random.Random) -> Parallelism:
    tp = chance.choice((1, 2))
    return Parallelism(tp=tp, pp=2 // tp)


class Crowd:
    """People and faults of one world of several jobs, which lie in wait for preemptions."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._seed = world, seed
        self._chance = random.Random(f"crowd deeds {seed}")
        self._strikes = self._deeds = 0
        self._people: dict[str, People] = {}

    def schedule(self, draw: Draw) -> None:
        """When the world has scheduled its own."""
        self._strikes, self._deeds = draw.strikes, draw.deeds
        for _ in range(draw.asks):
            at_s = self._chance.uniform(QUIET_BEFORE_S, FAULTS_UNTIL_S)
            self._world.kernel.after(at_s, self._ask, "preempt")
        decided = self._world.server.on_decision

        def also(choice: str) -> None:
            decided(choice)
            self._decided(choice)

        self._world.server.on_decision = also

    def _decided(self, choice: str) -> None:
        kernel = self._world.kernel
        if choice not in ("preempt", "taken") or kernel.now_s > FAULTS_UNTIL_S:
            return
        if self._strikes and self._chance.random() < 0.6:
            self._strikes -= 1
            kernel.after(self._chance.uniform(0.0, WITHIN_S), self._world.faults.strike, self._chance.choice(STRIKES))
        if self._deeds and self._chance.random() < 0.6:
            self._deeds -= 1
            kernel.after(self._chance.uniform(0.0, WITHIN_S), self._ask, self._chance.choice(DEEDS))

    def _ask(self, what: str) -> None:
        here = [run for run in self._world.runs.values() if run.is_here]
        if self._world.server.paused:
            return
        run = self._chance.choice(here)
        people = self._people.get(run.id)
        if people is None:
            people = self._people[run.id] = People(self._world.kernel, self._world.server, self._seed, run.control)
        deeds: dict[str, Callable[[], None]] = {
            "resume": people.resume,
            "cancel": people.cancel,
            "save": people.save,
            "evict": people.order_out,
            "drain": people.drain,
            "withdraw": lambda: self._withdraw(people),
            "preempt": lambda: people.preempt(self._chance.uniform(1.0, 30.0)),
        }
        deeds[what]()

    def _withdraw(self, people: People) -> None:
        """Somebody takes a person's preemption back."""
        for run in self._world.runs.values():
            for request in list(run.rows.requests.values()) if run.is_here else ():
                if request.kind is RequestKind.PREEMPT and not request.urgent:
                    people.withdraw(request.id)


def run(seed: int, jobs: int | None = None) -> Outcome:
    """One seed of it."""
    draw = drawn(seed, jobs)
    world = World(seed, plan=draw.plan, config=CONFIG)
    crowd = Crowd(world, seed)
    world.on_scheduled = lambda: crowd.schedule(draw)
    return world.run(draw.faults, extras=draw.extras)
