"""Random moments of failure for roll-outs: a job, its fleet, its true times, and what fails of it.

A moment is drawn from a seed. `plan_of` makes the world for it, in which the job starts and trains
for `steps_before` steps, so that the policy knows what a job knows by then: its steps, its first
starts and its checkpoints. Then the faults strike. Times of later starts and transfers are the
moment's true ones, within a fifth of what was measured before; each is the same whatever is
decided. Used by `rollout`; it runs nothing.
"""

import math
import random
from dataclasses import dataclass
from enum import StrEnum

from controlplane.policy.config import PolicyConfig
from controlplane.protocol.spec import (
    Checkpoint,
    Parallelism,
    Resiliency,
    Resources,
    Spares,
    Timeouts,
    Training,
    TrainSpec,
)
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import WorldPlan

REPLICAS = (*[2] * 7, *[3] * 9, *[4] * 9, *[6] * 7, *[8] * 4, 12, 12, 16, 24)
RANKS = (1, 1, 1, 2, 2, 4)
STEPS_S = (1.0, 2.0, 5.0, 10.0, 20.0)
TRAINS_S = 60.0
"""At most so long before the fault, or `MIN_STEPS`."""
MIN_STEPS = 5
HORIZON_S = 600.0
"""Of work; also how long a repair takes in the mean, which the policy is told."""
REBOOT_S = 30.0
"""No repair takes less."""
MEASURED = (0.8, 1.25)
START_FAILS = 0.03
HANG_RETURNS = 0.05
SECOND = 0.25
HANG_TOLD_S = 5.0
"""A rank is late so long after the end of the longest step that could be its own."""
RETURNS_S = (6.0, 66.0)
"""After the hang."""
AT_ONCE_S = (0.0, 0.2)
DURING_S = (0.2, 30.0)
EXCHANGE_S = 0.02


class Kind(StrEnum):
    """What fails: a rank ends, a rank hangs, a node is gone until it is repaired, a node stands still for a while."""

    CRASH = "crash"
    HANG = "hang"
    NODE_LOST = "node_lost"
    SILENT = "silent"


DRAWN = (Kind.CRASH, Kind.HANG, Kind.NODE_LOST)
"""For random moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """Of the replica with this index, `after_s` the first fault."""

    kind: Kind
    replica: int
    after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Seconds, but for `redone` (share of a step at which the fault strikes) and counts. `measured`
    times are what the job's warm-up shows: of a start, and of a transfer (None: there was none)."""

    seed: int
    replicas: int
    ranks: int
    spares: int
    spares_kept: bool
    needed: int
    share: int
    step_s: float
    start_s: float
    load_s: float
    catch_up_s: float
    regroup_s: float
    rejoin_s: float
    repair_s: float
    measured_start_s: float
    measured_catch_up_s: float | None
    interval_steps: int
    steps_before: int
    redone: float
    steps_after: int
    ends: bool
    strikes: tuple[Strike, ...]
    budget_spent: bool
    bad_start: bool
    returns_s: float

    @property
    def micro_batches(self) -> int:
        """Of a step."""
        return self.replicas * self.share

    @property
    def longest_s(self) -> float:
        """Seconds of a step that one replica computes alone."""
        return self.micro_batches * self.micro_batch_s

    @property
    def exchange_s(self) -> float:
        """Seconds of one, in steps of a second or longer `EXCHANGE_S`."""
        return min(EXCHANGE_S, EXCHANGE_S * self.step_s)

    @property
    def micro_batch_s(self) -> float:
        """So that a step of the whole job takes `step_s`; its exchange is in it."""
        return (self.step_s - 3.0 * self.exchange_s) / self.share


def draw(seed: int) -> Moment:
    """The moment of a seed."""
    chance = random.Random(seed)
    replicas, step_s = chance.choice(REPLICAS), chance.choice(STEPS_S)
    start_s, catch_up_s = chance.uniform(5.0, 60.0), chance.uniform(2.0, 30.0)
    near = [chance.uniform(*MEASURED) for _ in range(2)]
    most = max(MIN_STEPS + 1, int(TRAINS_S / step_s))
    horizon, ends = math.ceil(HORIZON_S / step_s), chance.random() < 0.25
    return Moment(
        seed=seed,
        replicas=replicas,
        ranks=chance.choice(RANKS),
        spares=chance.choice((0, 0, 1, 2)),
        spares_kept=chance.random() < 0.3,
        needed=chance.choice((1, 1, max(1, replicas - 1), replicas)),
        share=chance.choice((1, 2, 4) if replicas < 12 else (1, 2)),
        step_s=step_s,
        start_s=start_s,
        load_s=catch_up_s * chance.uniform(0.8, 3.0),
        catch_up_s=catch_up_s,
        regroup_s=math.exp(chance.uniform(math.log(0.05), math.log(5.0))),
        rejoin_s=math.exp(chance.uniform(math.log(0.02), math.log(1.0))),
        repair_s=REBOOT_S + chance.expovariate(1.0 / (HORIZON_S - REBOOT_S)),
        measured_start_s=start_s * near[0],
        measured_catch_up_s=catch_up_s * near[1] if chance.random() < 0.5 else None,
        interval_steps=chance.choice((3, 10, 30, 100)),
        steps_before=chance.randint(MIN_STEPS, most),
        redone=chance.random(),
        steps_after=min(horizon, chance.randint(2, 40)) if ends else horizon,
        ends=ends,
        strikes=_strikes(chance, replicas),
        budget_spent=chance.random() < 0.1,
        bad_start=chance.random() < START_FAILS,
        returns_s=chance.uniform(*RETURNS_S),
    )


def _strikes(chance: random.Random, replicas: int) -> tuple[Strike, ...]:
    """One fault, or with one time in four a second: at once, or while the job recovers from the
    first. Two hangs at once would be a common cause, and two nodes a correlated failure: neither is one of
    these moments, as both are for a person."""
    first = Strike(kind=chance.choice((Kind.CRASH, Kind.CRASH, Kind.HANG, Kind.NODE_LOST)), replica=0)
    victims = chance.sample(range(replicas), 2)
    first = Strike(kind=first.kind, replica=victims[0])
    kinds = [kind for kind in DRAWN if kind is Kind.CRASH or kind is not first.kind]
    second = Strike(
        kind=chance.choice(kinds),
        replica=victims[1],
        after_s=chance.uniform(*chance.choice((AT_ONCE_S, DURING_S))),
    )
    return (first, second) if chance.random() < SECOND else (first,)


def config_of() -> PolicyConfig:
    """As shipped, but that a repair takes `HORIZON_S` in the mean."""
    return PolicyConfig(repair_horizon_s=HORIZON_S)


def plan_of(moment: Moment) -> WorldPlan:
    """A node a replica and the free ones. Nothing varies that the moment does not say."""
    spec = TrainSpec(
        resources=Resources(
            nodes=moment.replicas,
            gpus_per_node=moment.ranks,
            min_replicas=moment.needed,
            spares=Spares(gpus=moment.ranks if moment.spares_kept and moment.spares else 0),
        ),
        parallelism=Parallelism(tp=min(moment.ranks, 4), pp=max(1, moment.ranks // 4)),
        training=Training(
            steps=moment.steps_before + moment.steps_after if moment.ends else 10**6,
            global_batch=moment.micro_batches,
            micro_batch=1,
        ),
        checkpoint=Checkpoint(interval_steps=moment.interval_steps),
        resiliency=Resiliency(
            timeouts=Timeouts(setup_s=300.0, step_s=moment.longest_s + HANG_TOLD_S), allow_relayout=False
        ),
    )
    nodes = {f"node-{index:03d}": moment.ranks for index in range(moment.replicas + moment.spares)}
    return WorldPlan(spec=spec, nodes=nodes, timing=timing_of(moment, start_s=moment.measured_start_s))


def timing_of(moment: Moment, *, start_s: float) -> Timing:
    """Each span is one number."""
    return Timing(
        micro_batch_s=(moment.micro_batch_s, moment.micro_batch_s),
        exchange_s=(moment.exchange_s, moment.exchange_s),
        fetch_s=(moment.catch_up_s, moment.catch_up_s),
        save_s=(0.5, 0.5),
        setup_s=(start_s, start_s),
        load_s=(moment.load_s, moment.load_s),
        peer_notice_s=(0.05, 0.05),
        regroup_s=moment.regroup_s,
        rejoin_s=moment.rejoin_s,
    )
