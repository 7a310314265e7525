"""Every way out of one moment of failure, each carried out in a world of its own, to its cost.

A world of a moment (`moments`) runs to the fault. At the first decision of the policy that answers
it, `steering` takes the way that was given in place of the policy's own; before and after, the
policy decides. So all worlds of a moment are one until then, and meet the same times, repairs
and second faults after.

What a way costs is read off its world: GPU-seconds, from that decision until the job is done or has
committed `steps_after` more steps, less those of the same steps undisturbed. Work that was in hand
at the decision and could still be kept counts as done. None of the policy's prices is used. Time in
which steps come evenly (or not at all) and nothing is under way is counted and not simulated: up to
the repair of a node, or to the last step, all of it is alike.

What nobody can know at the decision is not held against it (`lucks_of`): a cost is the mean over
whether a second fault follows, whether what hangs goes on by itself, and over `REPAIRS` equal parts of
how long a repair takes.
"""

import copy
import math
from dataclasses import dataclass, replace
from itertools import pairwise

from controlplane.changes.turn import OVER
from controlplane.policy import ways
from controlplane.policy.budget import Rung
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.protocol.states import JobState
from controlplane.simulator.agent import Agent
from controlplane.simulator.budget import Charge
from controlplane.simulator.judge import ENDED
from controlplane.simulator.meter import Meter
from controlplane.simulator.moments import (
    HANG_RETURNS,
    HORIZON_S,
    REBOOT_S,
    SECOND,
    Kind,
    Moment,
    Strike,
    config_of,
    plan_of,
    timing_of,
)
from controlplane.simulator.process import Process, Rank
from controlplane.simulator.server import Decide
from controlplane.simulator.steering import Fork, Steering
from controlplane.simulator.world import World

SLICE_S = 2.0
LIMIT_S = 20_000.0
EVEN = 0.02
EVEN_STEPS = 3
REPAIRS = 4
SAME_S = 30.0
"""Later than that it is another decision."""


class Unfit(Exception):
    """A world did not come to the moment that was drawn, or to its end."""


class Undecided(Unfit):
    """The job was over before anything had to be decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Luck:
    """What nobody knows at the decision, with how likely it is. `repair_s`: of a lost node, from its
    loss; `returns`: a rank that hangs goes on by itself; `still_s`: so long a node that is silent stands still."""

    weight: float
    repair_s: float
    strikes: tuple[Strike, ...]
    returns: bool = False
    still_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Seconds of the whole job that a way costs; `violations` of the world's invariants."""

    way: str
    cost_s: float
    violations: tuple[str, ...]


class Rollout:
    """One world of a moment; copies of it take different ways and meet different luck."""

    def __init__(
        self,
        moment: Moment,
        *,
        policy: Decide = decide,
        config: PolicyConfig | None = None,
        steering: Steering | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.moment, self._limit_s = moment, limit_s
        self.luck = Luck(weight=1.0, repair_s=moment.repair_s, strikes=moment.strikes)
        self.world = World(moment.seed, config=config or config_of(), plan=plan_of(moment))
        self.meter = Meter(self.world.kernel)
        self.world.trainer.on_commit = self.meter.commit
        self.steering = steering or Steering("", policy)
        self.steering.on_fork = self._parted
        self.world.server.decide = self.steering
        self.goal = 0
        self.lost: dict[str, float] = {}
        self._to_strike = 0
        self._strength: tuple[int, ...] = ()
        self._same_since_s = 0.0
        self._skipped_s, self._skipped_steps = 0.0, 0.0

    def copied(self, way: str, luck: "Luck | None" = None) -> "Rollout":
        """The same world once more, to take `way`."""
        other = copy.deepcopy(self)
        other.steering.way, other.luck = way, luck or self.luck
        return other

    def warm_up(self) -> None:
        """Full strength, and the steps before the fault. Raises Unfit where they are not made."""
        self.world.start()
        while self.meter.newest < self.moment.steps_before:
            if self.world.kernel.now_s > LIMIT_S:
                raise Unfit(f"seed {self.moment.seed}: it stands at step {self.meter.newest}")
            self._run(min(SLICE_S, self.moment.step_s / 4.0))
        rows, moment = self.world.server.rows, self.moment
        if moment.measured_catch_up_s is not None:
            rows.catch_ups.append(moment.measured_catch_up_s)
        if moment.budget_spent:
            spent = Charge(self.world.kernel.now_s, 0, Rung.VIEW_CHANGE, program=False)
            rows.charged = [spent] * rows.spec.resiliency.budget.max_restarts
        self.world.trainer.timing = timing_of(moment, start_s=moment.start_s)
        self.world.trainer.crash_starts = int(moment.bad_start)

    def to_fork(self, *, by_s: float = LIMIT_S) -> Fork:
        """The faults strike; up to the decision. Raises Undecided where the job is over before one,
        and Unfit where none comes."""
        kernel, moment = self.world.kernel, self.moment
        at_s = moment.redone * moment.step_s
        for strike in self.luck.strikes:
            kernel.after(at_s + strike.after_s, self._strike, strike)
        self._to_strike = len(self.luck.strikes)
        while self.steering.fork is None:
            if self.world.server.rows.state in ENDED:
                raise Undecided(f"seed {moment.seed}: the job was over before anything was decided")
            if kernel.now_s > by_s:
                raise Unfit(f"seed {moment.seed}: nothing was decided by {by_s:.0f} s")
            self._run(SLICE_S)
        return self.steering.fork

    def to_end(self) -> Result:
        """From the fork on, to what the way costs. Raises Unfit where the steps are never made."""
        fork = self.steering.fork
        assert fork is not None, "called after to_fork"
        limit_s = fork.at_s + self._limit_s
        while (done_s := self._done_s()) is None:
            if self.world.kernel.now_s > limit_s:
                raise Unfit(f"seed {self.moment.seed}: {self.steering.way or fork.chosen} never trains on")
            self._run(SLICE_S)
        steps = self.goal - fork.newest - fork.kept_steps
        cost_s = done_s - fork.at_s - steps * self.moment.step_s
        return Result(
            way=self.steering.way or fork.chosen, cost_s=cost_s, violations=tuple(self.world.checkers.violations)
        )

    # --- faults ----------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        self.steering.armed = True
        self._to_strike -= 1
        process = self._newest(strike.replica)
        if process is None or not process.able():
            return
        rank = process.ranks[0]
        agent = self.world.agents[rank.node]
        match strike.kind:
            case Kind.CRASH:
                agent.end(rank)
            case Kind.HANG:
                rank.hung, rank.hung_since_s = True, self.world.kernel.now_s
                if self.luck.returns:
                    self.world.kernel.after(self.moment.returns_s, self._returns, process)
            case Kind.SILENT if self.luck.still_s < self.luck.repair_s:
                self._stand_still(agent)
            case Kind.NODE_LOST | Kind.SILENT:
                agent.crash()
                self.lost[agent.node] = self.world.kernel.now_s
                self.world.kernel.after(self.luck.repair_s, self._repair, agent.node)

    def _stand_still(self, agent: Agent) -> None:
        """The machine with all its processes, as a virtual one that is moved; then it goes on where it was."""
        agent.stand_still(self.luck.still_s)
        for child in tuple(agent.machine.children.values()):
            if child.rank.alive and not child.rank.hung:
                process = self.world.trainer.process_of(child.rank)
                child.rank.stop(self.world.kernel.now_s, process.phase_since_s)
                self.world.kernel.after(self.luck.still_s, self._goes_on, child.rank)

    def _goes_on(self, rank: Rank) -> None:
        if rank.alive:
            self.world.trainer.wake(rank)

    def _returns(self, process: Process) -> None:
        if process.ranks[0].alive:
            self.world.trainer.wake(process.ranks[0])

    def _repair(self, node: str) -> None:
        if self.lost.pop(node, None) is not None:
            self.world.agents[node].reboot()

    def _newest(self, replica: int) -> Process | None:
        lives = [p for p in self.world.trainer.processes.values() if p.index == replica]
        return max(lives, key=lambda process: (process.attempt, process.incarnation), default=None)

    # --- what was kept -----------------------------------------------------------------------

    def _parted(self, fork: Fork) -> None:
        fork.newest = self.meter.newest
        fork.kept_steps = self._kept_steps(fork.newest)
        self.goal = fork.newest + self.moment.steps_after
        if self.moment.ends:
            self.goal = self.world.spec.training.steps

    def _kept_steps(self, newest: int) -> float:
        """Of the step in hand, what those who can go on have computed, to the second."""
        now_s, micro_batch_s, kept = self.world.kernel.now_s, self.moment.micro_batch_s, 0.0
        for process in self.world.trainer.processes.values():
            if process.able() and process.epoch and process.committed == newest:
                kept += len(process.done)
                if process.computes():
                    kept += max(0.0, 1.0 - (process.due_s - now_s) / micro_batch_s)
        return kept / self.moment.micro_batches

    # --- to the end --------------------------------------------------------------------------

    def _done_s(self) -> float | None:
        """When the steps of the moment are or will be committed; None: that cannot be told yet."""
        goal = self.goal - self._skipped_steps
        if self.world.server.rows.state is JobState.FAILED:
            # For as long as the steps that are left would have taken its devices commit nothing, and
            # `to_end` takes those steps' own time off again.
            return self._skipped_s + self.world.kernel.now_s + 2.0 * (goal - self.meter.newest) * self.moment.step_s
        reached_s = self.meter.reached_s(math.ceil(goal))
        if reached_s is not None:
            return reached_s + self._skipped_s - (math.ceil(goal) - goal) * self.moment.step_s
        self._note_strength()
        pace_s = self._even_pace_s()
        if pace_s is None or self._to_strike or self._under_way():
            return None
        last_s, newest = self.meter.moments[-1]
        done_s = last_s + (goal - newest) * pace_s
        repaired = {lost_s + self.luck.repair_s: node for node, lost_s in self.lost.items()}
        if not repaired or done_s <= min(repaired):
            return done_s + self._skipped_s
        at_s = min(repaired)
        self._skipped_s += at_s - self.world.kernel.now_s
        self._skipped_steps += (at_s - self.world.kernel.now_s) / pace_s
        self._repair(repaired[at_s])
        return None

    def _even_pace_s(self) -> float | None:
        """Of the last steps, if they came evenly and with the same members; infinity where nobody is
        left to make any."""
        fork = self.steering.fork
        assert fork is not None, "asked after the fork"
        if self.world.server.rows.state is JobState.PENDING and not self._alive():
            return math.inf
        recent = [at_s for at_s, _ in self.meter.moments[-EVEN_STEPS - 1 :]]
        if len(recent) <= EVEN_STEPS or recent[0] < max(fork.at_s, self._same_since_s):
            return None
        gaps = [after_s - before_s for before_s, after_s in pairwise(recent)]
        if self.world.kernel.now_s - recent[-1] > gaps[-1] + SLICE_S:
            return None
        return gaps[-1] if max(gaps) <= (1.0 + EVEN) * min(gaps) else None

    def _note_strength(self) -> None:
        rows = self.world.server.rows
        strength = (rows.epoch, *sorted(row.index for row in rows.replicas.values() if row.contributing))
        if strength != self._strength:
            self._strength, self._same_since_s = strength, self.world.kernel.now_s

    def _alive(self) -> bool:
        return any(rank.alive for p in self.world.trainer.processes.values() for rank in p.ranks.values())

    def _under_way(self) -> bool:
        """Somebody is on the way back, or has somewhere to start."""
        rows, moment = self.world.server.rows, self.moment
        live = [row for row in rows.replicas.values() if row.state not in OVER]
        contributing = sum(row.contributing for row in live)
        if contributing < len(live):
            return True
        whole = rows.state is not JobState.PENDING and contributing == len(rows.replicas)
        if whole or self.steering.keeps_empty or moment.budget_spent:
            return False
        return self._free_nodes() >= (moment.needed if rows.state is JobState.PENDING else 1)

    def _free_nodes(self) -> int:
        held = {rank.node for p in self.world.trainer.processes.values() for rank in p.ranks.values() if rank.alive}
        return sum(name not in held and not agent.dead for name, agent in self.world.agents.items())

    def _run(self, seconds: float) -> None:
        self.world.kernel.run(self.world.kernel.now_s + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A moment with the mean cost, seconds of the whole job, of each way that was open. `costs`
    empty: fewer than two were. `chosen` "": the job was over before anything was decided. `at_s`: when it was
    decided, by the world's clock."""

    seed: int
    at_s: float
    chosen: str
    costs: dict[str, float]
    violations: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The cheapest; the chosen one where it is among the cheapest."""
        return min(self.costs, key=lambda way: (self.costs[way], way != self.chosen, way), default=self.chosen)

    @property
    def regret(self) -> float:
        """What the chosen way costs over the best, less one."""
        return self.costs[self.chosen] / self.costs[self.best] - 1.0 if self.costs else 0.0


def judge(moment: Moment, *, policy: Decide = decide) -> Judged:
    """The policy's way against every other that was open. Raises Unfit, see there."""
    world = Rollout(moment, policy=policy)
    world.warm_up()
    first = world.copied("")
    try:
        fork = first.to_fork()
    except Undecided:
        return Judged(seed=moment.seed, at_s=first.world.kernel.now_s, chosen="", costs={})
    if len(fork.open) < 2:
        return Judged(seed=moment.seed, at_s=fork.at_s, chosen=fork.chosen, costs={})
    known: dict[tuple[str, Luck], Result | None] = {}
    costs, weight = dict.fromkeys(fork.open, 0.0), 0.0
    for luck in lucks_of(moment, fork, first.lost):
        found = []
        for way in fork.open:
            key = (way, replace(luck, weight=1.0, returns=luck.returns and way == ways.WAIT))
            if key not in known:
                known[key] = _one(world, *key, fork=fork)
            found.append(known[key])
        results = [result for result in found if result is not None]
        if len(results) == len(fork.open):
            weight += luck.weight
            for result in results:
                costs[result.way] += luck.weight * result.cost_s
    if not weight:
        raise Unfit(f"seed {moment.seed}: with none of what may follow the policy decides the same")
    mean_s = {way: cost_s / weight for way, cost_s in costs.items()}
    broken = tuple(text for result in known.values() if result is not None for text in result.violations)
    return Judged(seed=moment.seed, at_s=fork.at_s, chosen=fork.chosen, costs=mean_s, violations=broken)


def _one(world: Rollout, way: str, luck: Luck, *, fork: Fork) -> Result | None:
    """None: with this luck the policy does not stand before that decision, so it may not follow."""
    run = world.copied(way, luck)
    try:
        other = run.to_fork(by_s=fork.at_s + SAME_S)
    except Unfit:
        return None
    alike = (other.chosen, other.open, other.told) == (fork.chosen, fork.open, fork.told)
    return run.to_end() if alike else None


def lucks_of(moment: Moment, fork: Fork, lost: dict[str, float]) -> tuple[Luck, ...]:
    """All that may follow. A strike of which nothing is told at the fork may not come at all."""
    lucks = [Luck(weight=1.0, repair_s=moment.repair_s, strikes=moment.strikes)]
    told = tuple(strike for strike in moment.strikes if strike.replica in fork.told)
    if told and len(told) < len(moment.strikes):
        spared = replace(lucks[0], weight=1.0 - SECOND, strikes=told)
        lucks = [replace(lucks[0], weight=SECOND), spared]
    if ways.WAIT not in fork.open:
        return tuple(lucks)
    if any(strike.kind is Kind.HANG for strike in moment.strikes):
        lucks = [
            replace(luck, weight=luck.weight * chance, returns=returns)
            for luck in lucks
            for chance, returns in ((1.0 - HANG_RETURNS, False), (HANG_RETURNS, True))
        ]
    if lost and not {ways.REPLACE, ways.HOLD} & set(fork.open):
        passed_s = max(fork.at_s - lost_s for lost_s in lost.values())
        parts = [(index + moment.redone) / REPAIRS for index in range(REPAIRS)]
        times_s = [passed_s - (HORIZON_S - REBOOT_S) * math.log(1.0 - part) for part in parts]
        lucks = [
            replace(luck, weight=luck.weight / REPAIRS, repair_s=repair_s) for luck in lucks for repair_s in times_s
        ]
    return tuple(lucks)
