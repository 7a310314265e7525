"""How much of the time trains when a large job fails again and again: a run, not a formula.

`python -m controlplane.simulator effective`. Twelve replicas train, a rank is killed every
18 minutes, and the policy decides what is done; the effective training time is what was
committed between the first failure and the last, times the undisturbed time of a step, over
the time that passed. One simulated rank stands for a replica with all its devices: a failure
of any of them costs the replica, and how long a start and a new group take at that size is a
`Timing`, not simulated.

Failures come evenly (intervals drawn from three quarters to five quarters of the mean, so
that none strikes during the recovery from another, as the published formula has it) or
without memory. Without memory some strike during a recovery and cost only its rest, so that
a stall of R at a mean of M leaves exp(-R / M) and not 1 - R / M.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from controlplane.protocol.spec import Budget, Checkpoint, Resiliency, Resources, Timeouts, Training, TrainSpec
from controlplane.simulator.kernel import Kernel
from controlplane.simulator.meter import Meter
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan

REPLICAS = 12
REPLICAS_PER_NODE = 3
MTBF_S = 1080.0
MICRO_BATCHES = 132
"""Shared out evenly among twelve replicas and among eleven."""
MICRO_BATCH_S = (1.8, 2.2)
WARM_UP_S = 900.0
EVEN_SPREAD = 0.25
NEVER = 1_000_000


class Arrivals(StrEnum):
    """How failures follow each other."""

    EVEN = "even"
    MEMORYLESS = "memoryless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One way of living with failures. `stall_s`: of every replica, a failure; `rejoin_s`: of
    every replica when the lost one is back; `start_s`: of what has to start again.
    `whole`: nothing goes on without every replica, so that everything starts again."""

    name: str
    start_s: float
    stall_s: float = 0.0
    rejoin_s: float = 0.0
    whole: bool = False

    def formula(self, mtbf_s: float, arrivals: Arrivals) -> float:
        """What the stalls alone leave of the time, on paper. 0..1."""
        lost_s = self.start_s if self.whole else self.stall_s + self.rejoin_s
        return math.exp(-lost_s / mtbf_s) if arrivals is Arrivals.MEMORYLESS else max(0.0, 1.0 - lost_s / mtbf_s)


RECOVERIES = (
    Recovery(name="everything restarts", start_s=600.0, whole=True),
    Recovery(name="replica fault tolerance", start_s=420.0, stall_s=180.0),
    Recovery(name="the same, stalls at rejoin", start_s=420.0, stall_s=180.0, rejoin_s=100.0),
    Recovery(name="Holdfast's own stalls", start_s=420.0, stall_s=0.6, rejoin_s=0.2),
)
"""Published for 98,304 devices in 12 replicas (arXiv 2602.00277): a whole restart takes 10
minutes; with replica fault tolerance all stall for 3, the lost replica is away for another 7
and its return costs about 100 s more. Holdfast's are those of docs/benchmarks.md (G7, G8),
measured on one small machine, with the start of a replica that the others have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What a run came to. `ratio` 0..1; `lost_s`: seconds of training, a failure."""

    recovery: Recovery
    ratio: float
    formula: float
    lost_s: float
    failures: int
    steps: int
    evictions: int
    restarts: int
    violations: tuple[str, ...]


def measure(
    recovery: Recovery,
    *,
    failures: int,
    seed: int = 7,
    mtbf_s: float = MTBF_S,
    arrivals: Arrivals = Arrivals.EVEN,
) -> Effective:
    """Train, fail `failures` times, and end right before the next failure would come."""
    world = World(seed, plan=plan_for(recovery))
    meter = Meter(world.kernel)
    world.trainer.on_commit = meter.commit
    world.start()
    world.kernel.run(recovery.start_s + WARM_UP_S)
    step_s, start_s, start = meter.step_s(), world.kernel.now_s, meter.newest
    for _ in range(failures):
        _strike(world)
        world.kernel.run(world.kernel.now_s + _interval_s(world.kernel, mtbf_s, arrivals))
    passed_s = world.kernel.now_s - start_s
    trained_s = (meter.newest - start) * step_s
    return Effective(
        recovery=recovery,
        ratio=trained_s / passed_s,
        formula=recovery.formula(mtbf_s, arrivals),
        lost_s=(passed_s - trained_s) / failures,
        failures=failures,
        steps=meter.newest - start,
        evictions=world.checkers.evictions,
        restarts=world.server.rows.restarts,
        violations=tuple(world.checkers.violations),
    )


def plan_for(recovery: Recovery) -> WorldPlan:
    """Twelve replicas on four nodes, without a spare. Every step is saved: what a restart
    redoes is part of the published ten minutes."""
    spec = TrainSpec(
        resources=Resources(
            nodes=REPLICAS // REPLICAS_PER_NODE,
            gpus_per_node=REPLICAS_PER_NODE,
            min_replicas=REPLICAS if recovery.whole else 1,
        ),
        training=Training(
            steps=NEVER,
            global_batch=MICRO_BATCHES,
            micro_batch=1,
            # With a fixed number that computes nobody waits for a replacement: everything restarts.
            batch_mode="spares" if recovery.whole else "redistribute",
        ),
        checkpoint=Checkpoint(interval_steps=1),
        resiliency=Resiliency(
            timeouts=Timeouts(setup_s=10.0 * recovery.start_s, step_s=100.0 * MICRO_BATCH_S[1]),
            budget=Budget(max_restarts=NEVER, restarts_per_window=NEVER, max_no_progress=NEVER),
            allow_relayout=False,
        ),
    )
    timing = Timing(
        micro_batch_s=MICRO_BATCH_S,
        setup_s=(recovery.start_s, recovery.start_s),
        regroup_s=recovery.stall_s,
        rejoin_s=recovery.rejoin_s,
    )
    nodes = {f"node-{index}": REPLICAS_PER_NODE for index in range(spec.resources.nodes)}
    return WorldPlan(spec=spec, nodes=nodes, timing=timing)


def table(runs: list[Effective], *, mtbf_s: float, arrivals: Arrivals) -> str:
    """The runs for people."""
    head = f"{REPLICAS} replicas, a failure every {mtbf_s / 60.0:g} min ({arrivals}), {runs[0].failures} failures each"
    lines = [head, "", f"{'':28}{'effective':>10}{'stalls':>8}{'lost':>8}{'steps':>8}{'evicted':>9}{'restarts':>10}"]
    lines.append(f"{'':28}{'run':>10}{'alone':>8}{'s/fail':>8}")
    lines += [
        f"{run.recovery.name:28}{run.ratio:>10.1%}{run.formula:>8.1%}{run.lost_s:>8.0f}{run.steps:>8}"
        f"{run.evictions:>9}{run.restarts:>10}"
        for run in runs
    ]
    broken = [f"VIOLATION {run.recovery.name}: {text}" for run in runs for text in run.violations]
    return "\n".join([*lines, "", *broken, "PASSED" if not broken else "FAILED"])


def _strike(world: World) -> None:
    """SIGKILL a rank of some replica."""
    alive = [process for process in world.trainer.processes.values() if process.able()]
    if alive:
        world.faults.kill_rank(world.kernel.random.choice(alive))


def _interval_s(kernel: Kernel, mtbf_s: float, arrivals: Arrivals) -> float:
    if arrivals is Arrivals.MEMORYLESS:
        return kernel.random.expovariate(1.0 / mtbf_s)
    return kernel.between((1.0 - EVEN_SPREAD) * mtbf_s, (1.0 + EVEN_SPREAD) * mtbf_s)
