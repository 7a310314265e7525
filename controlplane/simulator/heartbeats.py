"""G5: nobody is evicted for late or lost heartbeats. Worlds in which nothing is wrong with any rank or node.

`python -m controlplane.simulator heartbeats --heartbeats 1e6`. Each world is a fleet that trains, over a
network that delays, repeats and loses up to a tenth of all messages, under a backend that stops now and
then; ranks stop for a while in such a pause, so long that their agents find them late, and are done with their step
before it ends, so that what was found of them is acted on late, or not at all. Now and then what most replicas share
stands still, a network or the program's own input, so long that all of them are found late, and ends: their failures
are held meanwhile. In every fourth world half of them or fewer share it, a switch or a rack: the others go on without
them, and they come back. The policy, its view of the fleet and the step protocol are the simulator's, and so the real
ones. What is counted: heartbeats sent, evictions (every one is false), leave-outs that were taken back, restarts (each
is false, too), and decisions to hold: nothing was done of a failure that was found, and nobody was ended.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random

from controlplane.protocol.spec import Checkpoint, Parallelism, Resiliency, Resources, Timeouts, Training, TrainSpec
from controlplane.simulator.agent import FRAME_INTERVAL_S
from controlplane.simulator.process import Process
from controlplane.simulator.timing import Timing
from controlplane.simulator.world import World, WorldPlan

NODES = 24
WORLD_S = 600.0
SETTLE_S = 30.0
SLICE_S = 10.0
CALM_S = 40.0
LOSSES = (0.0, 0.001, 0.01, 0.05, 0.10)
DELAYS_S = (0.0, 0.3, 1.5)
STEPS_S, STEP_WEIGHTS = (0.5, 5.0, 25.0), (1, 4, 5)
"""Short steps seldom: a world costs what its steps cost, and what is counted are heartbeats."""
RANKS = (1, 2)
PAUSE_S = (3.0, 15.0)
STOP_S = (6.6, 8.0)
SPARE_S = 6.5
"""What a rank may take beyond its slowest step: less than it stops, so that its agent tells of most of them."""
STALL_S, STALL_RATIO = (10.0, 40.0), 0.1
"""How long what replicas share stands still beyond their step, and how often that comes in place of a pause. Drawn
from chances of their own, so that a world without is the world that it was."""
STALL_FEW_S, LOOSE_S = (10.0, 25.0), 20.0
"""What few share: how long, and so much later it lets the last of them loose at most."""
STALLED, STALLED_FEW = (0.6, 1.0), (0.08, 0.5)
"""The share of replicas that it holds up: more than half; half or fewer, but two at least."""
FEW_RATIO = 0.25
"""Of all worlds, those in which few share it. Their steps may last twice as long: so long they take while half of the
replicas have the work of all."""
MARGIN_S = 1.0
"""So long before the end of the pause it is done with its step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Of one world. `loss`: of all messages, and so many are repeated; `delay_s`: frames are up to so much later;
    `ranks`: of a replica; `few`: half or fewer of them share what stands still."""

    loss: float
    delay_s: float
    step_s: float
    ranks: int
    few: bool = False

    @property
    def spare_s(self) -> float:
        """What a rank may take beyond its slowest step."""
        return SPARE_S + (1.05 * self.step_s if self.few else 0.0)


def drawn(chance: Random) -> Setting:
    """A world's setting, from its seed."""
    return Setting(
        loss=chance.choice(LOSSES),
        delay_s=chance.choice(DELAYS_S),
        step_s=chance.choices(STEPS_S, STEP_WEIGHTS)[0],
        ranks=chance.choice(RANKS),
    )


@dataclass(slots=True, kw_only=True)
class Count:
    """Of some worlds. `told`: what was evicted, and why. `stalls`: of what several replicas share. `holds`: decisions
    to wait with failures that were found."""

    worlds: int = 0
    heartbeats: int = 0
    pauses: int = 0
    stops: int = 0
    stalls: int = 0
    left_out: int = 0
    evictions: int = 0
    restarts: int = 0
    steps: int = 0
    holds: int = 0
    told: tuple[str, ...] = ()

    def add(self, other: "Count") -> None:
        """Both together."""
        for name in (field.name for field in fields(Count) if field.name != "told"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.told = (*self.told, *other.told)


def measure(heartbeats: int, *, seed: int = 1, nodes: int = NODES) -> Count:
    """As many worlds as send so many heartbeats, their seeds counted from `seed`."""
    total = Count()
    while total.heartbeats < heartbeats:
        total.add(one(seed + total.worlds, nodes=nodes))
    return total


def one(
    seed: int,
    *,
    nodes: int = NODES,
    world_s: float = WORLD_S,
    draw: Callable[[Random], Setting] = drawn,
    stall_ratio: float = STALL_RATIO,
) -> Count:
    """One world: how bad its network is, how long its steps and pauses are, is drawn from the seed."""
    chance, stalls = Random(seed), Random(f"stalls {seed}")
    setting = draw(chance)
    if stall_ratio and Random(f"few {seed}").random() < FEW_RATIO:
        setting = replace(setting, few=True)
    world = World(seed, plan=_plan(nodes, setting))
    world.start()
    world.faults.schedule(world_s, 0)
    world.kernel.run(SETTLE_S)
    world.network.loss = world.network.repeat = setting.loss
    world.network.extra_delay_s = setting.delay_s
    count = Count(worlds=1)
    while world.kernel.now_s < world_s - CALM_S:
        world.kernel.run(world.kernel.now_s + chance.uniform(SLICE_S, 6 * SLICE_S))
        if stalls.random() < stall_ratio:
            count.stalls += _stall(world, stalls, setting)
        else:
            _trouble(world, chance, count, more_s=setting.spare_s - SPARE_S)
    world.network.loss = world.network.repeat = world.network.extra_delay_s = 0.0
    world.kernel.run(world_s)
    count.heartbeats = heartbeats_of_a_world(nodes, world_s)
    count.left_out, count.evictions = world.checkers.left_out, world.checkers.evictions
    count.restarts, count.steps = world.server.rows.restarts, world.server.rows.committed_step
    count.holds = sum("/hold" in line for line in world.kernel.tape)
    told = [line for line in world.kernel.tape if "replica_failure/evict" in line or "VIOLATION" in line]
    count.told = tuple(f"seed {seed}: {line.strip()}" for line in told)
    return count


def heartbeats_of_a_world(nodes: int, world_s: float = WORLD_S) -> int:
    """How many its agents send."""
    return int(nodes * world_s / FRAME_INTERVAL_S)


def _trouble(world: World, chance: Random, count: Count, *, more_s: float) -> None:
    """The backend stops; in every other pause that is long enough a rank stops too, and has done its step before the
    pause ends. `more_s`: so much longer than usual it stops, as its step may last so much longer."""
    pause_s = chance.uniform(*PAUSE_S)
    world.server.pause(pause_s)
    count.pauses += 1
    able = [p for p in world.trainer.processes.values() if p.able() and _work_s(world, p) + more_s < pause_s]
    if able and chance.random() < 0.5:
        _stop(world, chance.choice(able), chance.uniform(*STOP_S) + more_s)
        count.stops += 1
    world.kernel.run(world.kernel.now_s + pause_s)


def _stall(world: World, chance: Random, setting: Setting) -> bool:
    """Who begins a micro-batch while it lasts begins it once it is over. Ranks speak meanwhile, and stand in their
    step. It begins between two steps, so that it holds up as many as it is to; False: of few it would have held one
    alone, who has more micro-batches than the others, while some catch up."""
    step_s, able = world.trainer.timing.micro_batch_s[1], [p for p in world.trainer.processes.values() if p.able()]
    latest_s = world.kernel.now_s + 2.0 * step_s
    while sum(process.computes() for process in able) > len(able) // 8 and world.kernel.now_s < latest_s:
        world.kernel.run(world.kernel.now_s + step_s / 50.0)
    whole = all(len(process.standing.contributors) == len(able) for process in able)
    if setting.few and not (whole and world.kernel.now_s < latest_s):
        return False
    stall_s = chance.uniform(*(STALL_FEW_S if setting.few else STALL_S))
    until_s = world.kernel.now_s + step_s + setting.spare_s - SPARE_S + stall_s
    indexes = sorted(process.index for process in able)
    share = chance.uniform(*(STALLED_FEW if setting.few else STALLED))
    count = max(2, int(share * len(indexes))) if setting.few else math.ceil(share * len(indexes))
    held = dict.fromkeys(chance.sample(indexes, count), until_s)
    if setting.few:
        held = {index: until_s + chance.uniform(0.0, LOOSE_S) for index in held}
    world.trainer.late_s = lambda process: max(0.0, held.get(process.index, 0.0) - world.kernel.now_s)
    world.kernel.run(max(held.values()) + step_s)
    world.trainer.late_s = lambda process: 0.0
    return True


def _work_s(world: World, process: Process) -> float:
    """How long it is until it is done with its step, if it is stopped now for the longest."""
    left_s = process.due_s - world.kernel.now_s if process.computes() else 0.0
    return STOP_S[1] + left_s + MARGIN_S


def _stop(world: World, process: Process, seconds: float) -> None:
    rank = process.ranks[0]
    rank.hung, rank.hung_since_s = True, world.kernel.now_s
    world.kernel.after(seconds, world.trainer.wake, rank)


def _plan(nodes: int, setting: Setting) -> WorldPlan:
    """A replica on each node, of one micro-batch a step; two nodes stay free."""
    step_s, ranks = setting.step_s, setting.ranks
    spec = TrainSpec(
        resources=Resources(nodes=nodes, gpus_per_node=ranks),
        parallelism=Parallelism(tp=ranks),
        training=Training(steps=10**6, global_batch=nodes, micro_batch=1),
        checkpoint=Checkpoint(interval_steps=20),
        resiliency=Resiliency(timeouts=Timeouts(setup_s=30.0, step_s=setting.spare_s + 1.05 * step_s)),
    )
    names = {f"node-{index:03d}": ranks for index in range(nodes + 2)}
    return WorldPlan(spec=spec, nodes=names, timing=Timing(micro_batch_s=(step_s * 0.95, step_s * 1.05)))


def table(count: Count) -> str:
    """For people; its last line is the verdict."""
    lines = [
        f"{count.heartbeats} heartbeats of {count.worlds} worlds:"
        f" loss up to {max(LOSSES):.0%}, frames up to {max(DELAYS_S):g} s late,"
        f" {count.pauses} pauses of the backend, {count.stops} ranks that stopped in one and went on,"
        f" {count.stalls} stalls of what several replicas share",
        f"{count.steps} steps committed, {count.left_out} replicas left out and taken back,"
        f" {count.holds} decisions to hold, {count.restarts} restarts, {count.evictions} false evictions",
        *count.told,
    ]
    return "\n".join([*lines, "PASSED" if is_clean(count) else "FAILED"])


def is_clean(count: Count) -> bool:
    """Nobody was evicted, nothing was restarted, no invariant was broken: nothing was wrong in these worlds."""
    return not (count.told or count.evictions or count.restarts)
