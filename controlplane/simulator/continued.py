"""A recorded decision, continued by two policies from the state in which it was made.

A world is made from the case that its snapshot gives (`policy.continuable`): the job trains at full strength, the same
replicas fail, and it runs to the same decision of the same policy. From there on one copy is decided by that policy and
one by the other, to the end of `moments.HORIZON_S` of work; each costs the GPU-seconds that committed nothing
(`rollout`). Where the world comes to another decision than was recorded there is no figure.

What nobody can know is drawn, alike for both ways, in equal parts over the seeds: how long a silence lasts that has
lasted `silent_s` (longer than t with a chance of silent_s / t; beyond `LOST_S` the node lost power and is repaired
then), the share of the step in hand, the true times of starts and transfers within what was measured, and, where it
was not recorded whether there were places for a start, every second time none. What hangs does not go on by itself.

Used by the command line and by the shadow's task. Deterministic: a case and its seeds give the same figures.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, stdev

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import Plan
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.rest.policy import ReplayCase
from controlplane.simulator.moments import HORIZON_S, MEASURED, MIN_STEPS, Kind, Moment, Strike
from controlplane.simulator.rollout import Luck, Rollout, Unfit
from controlplane.simulator.steering import Fork, Steering

SEEDS = 4
LOST_S = 600.0
RANKS = 2
"""At most so many of a replica are simulated; its devices are counted as they are."""
DECIDES_S = 120.0
"""Beyond the silence and a step: by then the decision has come, or does not."""
LIMIT_S = 4.0 * HORIZON_S
"""After the decision; a way that has not done the work by then has no end."""
KINDS = {"crash": Kind.CRASH, "hang": Kind.HANG, "silent": Kind.SILENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """GPU-seconds that committed nothing from the decision on, for each seed that came to it: by the policy that
    decided (`own_gpu_s`) and by the other. `change_gpu_s` is the mean of the other's less its own, `spread_gpu_s` the
    standard deviation of that; None: one seed alone came to it. `missed` so many seeds came to another decision or to
    no end."""

    own_gpu_s: tuple[float, ...]
    other_gpu_s: tuple[float, ...]
    missed: int = 0

    @property
    def changes_gpu_s(self) -> tuple[float, ...]:
        """Of each seed."""
        return tuple(after - before for before, after in zip(self.own_gpu_s, self.other_gpu_s, strict=True))

    @property
    def change_gpu_s(self) -> float:
        """Below 0: the other policy wastes less."""
        return mean(self.changes_gpu_s)

    @property
    def spread_gpu_s(self) -> float | None:
        """Over the seeds."""
        return stdev(self.changes_gpu_s) if len(self.own_gpu_s) > 1 else None


@dataclass(slots=True, kw_only=True)
class Switch(Steering):
    """Decides by `own` up to the decision of the case, and by `later` from it on; `decided` there, as (rule, choice).
    What the fleet around the job adds to what is decided by (its size, acts within the window) is as recorded."""

    case: ReplayCase
    own: PolicyConfig
    later: PolicyConfig
    decided: frozenset[tuple[str, str]] = frozenset()

    def __call__(self, snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        """The plan that the world carries out."""
        seen = self.in_its_fleet(snapshot)
        if self.fork is not None:
            return decide(seen, self.later)
        plan = decide(seen, self.own)
        found = {(each.rule, each.choice) for each in plan.decisions}
        if not self.armed or (self.case.rule, self.case.choice) not in found:
            return plan
        plan = decide(seen, self.later)
        self.decided = frozenset((each.rule, each.choice) for each in plan.decisions)
        self.fork = Fork(at_s=snapshot.now_s, chosen=self.case.choice, open=(), told=frozenset())
        self.on_fork(self.fork)
        return plan

    def in_its_fleet(self, snapshot: JobSnapshot) -> JobSnapshot:
        """What the world sees of itself, in a fleet as it was recorded; devices at the scale of the world."""
        scale = min(RANKS, self.case.ranks) / self.case.ranks
        return msgspec.structs.replace(
            snapshot,
            fleet_devices=max(snapshot.fleet_devices, int(self.case.fleet_devices * scale)),
            acts_last_window=snapshot.acts_last_window + self.case.acts,
        )


def carried_on(
    case: ReplayCase,
    own: PolicyConfig,
    other: PolicyConfig,
    *,
    seeds: int = SEEDS,
    step: Callable[[], bool] = lambda: True,
) -> Priced | str:
    """What each policy's way costs, or why that cannot be told. `step` is called before each seed; False: no more."""
    before, after, why = list[float](), list[float](), ""
    for number in range(seeds):
        if not step():
            why = why or "there was no time left for it"
            break
        try:
            pair = _pair(case, own, other, part=(number + 0.5) / seeds, seed=number)
        except Unfit as error:
            why = why or str(error)
            continue
        before.append(pair[0])
        after.append(pair[1])
    if not before:
        return why
    return Priced(own_gpu_s=tuple(before), other_gpu_s=tuple(after), missed=seeds - len(before))


def _pair(case: ReplayCase, own: PolicyConfig, other: PolicyConfig, *, part: float, seed: int) -> tuple[float, float]:
    """GPU-seconds of both. Raises Unfit."""
    moment = moment_of(case, part=part, seed=seed)
    silence_s = case.silent_s / (1.0 - part) if case.silent_s else 0.0
    switch = Switch("", case=case, own=own, later=own)
    base = Rollout(moment, config=own, steering=switch, limit_s=LIMIT_S)
    repair_s = silence_s if silence_s > LOST_S else math.inf
    base.luck = Luck(weight=1.0, repair_s=repair_s, strikes=moment.strikes, still_s=silence_s)
    base.warm_up()
    by_s = base.world.kernel.now_s + moment.longest_s + DECIDES_S + case.silent_s
    costs = []
    for later in (own, other):
        switch.later = later
        run = base.copied("")
        run.to_fork(by_s=by_s)
        if later is other:
            assert isinstance(run.steering, Switch), "a copy of it"
            _check(case, run.steering.decided)
        costs.append(run.to_end().cost_s * case.replicas * case.ranks)
    return costs[0], costs[1]


def _check(case: ReplayCase, decided: frozenset[tuple[str, str]]) -> None:
    """The other policy decides there what it makes of the record. Raises Unfit."""
    then, recorded = (case.then_rule, case.then_choice), (case.rule, case.choice)
    if recorded in decided if not case.then_rule else then not in decided:
        raise Unfit("the other policy decides otherwise in the simulated state than by the record")


def moment_of(case: ReplayCase, *, part: float, seed: int) -> Moment:
    """The moment of a seed; `part` of what is drawn in equal parts, above 0 and below 1."""
    chance = random.Random(seed)
    places = case.places if case.places is not None else (len(case.failed) if seed % 2 else 0)
    interval = case.interval_steps if case.gap_steps < case.interval_steps <= 200 else case.gap_steps + MIN_STEPS
    near = [chance.uniform(*MEASURED) for _ in range(2)]
    after = max(1, math.ceil(HORIZON_S / case.step_s))
    strikes = tuple(Strike(kind=KINDS[kind], replica=int(index)) for index, kind in sorted(case.failed.items()))
    return Moment(
        seed=seed,
        replicas=case.replicas,
        ranks=min(RANKS, case.ranks),
        spares=places,
        spares_kept=case.spares_kept,
        needed=case.needed,
        share=min(case.share, 4),
        step_s=case.step_s,
        start_s=case.start_s * near[0],
        load_s=case.catch_up_s * near[1],
        catch_up_s=case.catch_up_s * near[1],
        regroup_s=0.2,
        rejoin_s=0.1,
        repair_s=LOST_S,
        measured_start_s=case.start_s,
        measured_catch_up_s=case.catch_up_s,
        interval_steps=interval,
        steps_before=max(MIN_STEPS, interval + case.gap_steps),
        redone=part,
        steps_after=min(after, max(1, case.steps_left)),
        ends=case.steps_left <= after,
        strikes=strikes,
        budget_spent=case.budget_spent,
        bad_start=False,
        returns_s=0.0,
    )
