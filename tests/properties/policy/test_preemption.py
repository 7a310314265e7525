"""What preemption promises, over random fleets and queues: nobody of equal or higher priority yields, nobody for
nothing, the set that yields loses the least of all sets, and no job is taken over and over."""

import os
from collections import defaultdict
from itertools import combinations

import msgspec
import pytest

from controlplane.policy.queue.place import Victim
from controlplane.policy.queue.preempt import lost_gpu_s, may_yield, whole_of
from controlplane.policy.queue.room import Room, Types
from controlplane.policy.queue.rows import Holder, Pending, QueueConfig, QueueFleet, QueuePlan, Stake
from controlplane.policy.queue.schedule import schedule
from tests.properties.policy.queue_worlds import NOW_S, QueueWorld

CONFIG = QueueConfig(preempt_patience_s=0.0)
SEEDS = range(3000)
HOURS_OF = 300 if "HOLDFAST_TEST_RELEASE" in os.environ else 100
HOUR_S = 3600.0


class PreemptWorld(QueueWorld):
    """A `QueueWorld` whose running jobs have priorities and something to lose. `now_s` moves where a test moves it."""

    def __init__(self, seed: int) -> None:
        self.now_s, self.began_s = NOW_S, dict[str, float]()
        self.stakes: dict[str, Stake | None] = {}
        self.priorities: dict[str, int] = {}
        self.taken: dict[str, list[float]] = defaultdict(list)
        super().__init__(seed)

    def submit(self, job_id: str) -> None:
        super().submit(job_id)
        self.priorities[job_id] = self.waiting[job_id].priority

    def place(self, job_id: str) -> dict[str, int] | None:
        taken = super().place(job_id)
        if taken is not None:
            self.ends_s[job_id] = None
            self.began_s[job_id] = self.now_s
            self.stakes[job_id] = self._stake() if self.random.random() < 0.85 else None
        return taken

    def _stake(self) -> Stake:
        pick = self.random
        return Stake(
            attempt=1,
            begun_s=NOW_S - pick.choice((10.0, 400.0, 2000.0, 5000.0)),
            at_risk_s=pick.choice((0.0, 5.0, 100.0, 1000.0)),
            save_s=pick.choice((None, 2.0, 40.0)),
            step_s=pick.choice((0.5, 10.0)),
            again_s=pick.choice((5.0, 60.0)),
            came_back=pick.random() < 0.2,
            times=pick.choice((0, 0, 0, 1, 2)),
            kept_s=pick.choice((None, None, NOW_S - 10.0, NOW_S - 500.0)),
        )

    def fleet(self) -> QueueFleet:
        fleet = super().fleet()
        holders = tuple(
            msgspec.structs.replace(holder, priority=self.priorities[holder.id], stake=self.stake_of(holder.id))
            for holder in fleet.holders
        )
        recent = sum(self.now_s - at_s < HOUR_S for times in self.taken.values() for at_s in times)
        return msgspec.structs.replace(fleet, holders=holders, preempted=recent)

    def stake_of(self, job_id: str) -> Stake | None:
        return self.stakes[job_id]

    def plan(self) -> QueuePlan:
        return schedule(self.waiting.values(), self.fleet(), CONFIG, self.now_s)


def room_for(fleet: QueueFleet, head: Pending, without: tuple[Holder, ...] = ()) -> bool:
    """It fits when these have ended, wherever it is placed."""
    room = Room(fleet.nodes, Types(model for node in fleet.nodes for model in node.usable), [head.demand])
    for holder in without:
        room.give_back(whole_of(holder, fleet.reserved).devices)
    return room.fits(head.demand)


def planned(seed: int) -> tuple[PreemptWorld, QueueFleet, Pending | None, tuple[Victim, ...]]:
    """A world, its fleet, the head of its queue and who yields to it."""
    world = PreemptWorld(seed)
    plan = world.plan()
    head = world.waiting.get(plan.head)
    return world, world.fleet(), head, plan.victims


@pytest.mark.parametrize("first", range(0, len(SEEDS), 500))
def test_only_jobs_of_lower_priority_yield_only_to_a_head_that_fits_then_and_least_of_all_sets(first: int) -> None:
    found = 0
    for seed in SEEDS[first : first + 500]:
        world, fleet, head, named = planned(seed)
        if not named:
            continue
        assert head is not None
        found += 1
        holders = {holder.id: holder for holder in fleet.holders}
        victims = tuple(holders[victim.id] for victim in named)
        assert all(holder.priority < head.priority and may_yield(holder, head, CONFIG, NOW_S) for holder in victims)
        assert not room_for(fleet, head), f"{seed}: nobody had to yield"
        assert room_for(fleet, head, victims), f"{seed}: the head does not fit"
        able = [holder for holder in fleet.holders if may_yield(holder, head, CONFIG, NOW_S)]
        least = min(
            sum(map(lost_gpu_s, some))
            for number in range(1, len(able) + 1)
            for some in combinations(able, number)
            if room_for(fleet, head, some)
        )
        assert sum(map(lost_gpu_s, victims)) == pytest.approx(least), f"{seed}: another set loses less"
        for victim in named:
            world.end(victim.id)
        assert world.place(head.id) is not None, f"{seed}: what was freed does not hold the head"
    assert found > 15, "worlds in which somebody yields"


@pytest.mark.parametrize("first", range(0, len(SEEDS), 500))
def test_where_nobody_yields_no_set_of_jobs_would_have_made_room(first: int) -> None:
    for seed in SEEDS[first : first + 500]:
        world, fleet, head, named = planned(seed)
        entry = world.entry(head.id) if head is not None else None
        if named or head is None or entry is None or not entry.may_start or entry.place > 1:
            continue
        able = tuple(holder for holder in fleet.holders if may_yield(holder, head, CONFIG, NOW_S))
        assert not room_for(fleet, head, able), f"{seed}: {head.id} waits though jobs may yield"


class Course(PreemptWorld):
    """Jobs come, run, yield and resume for hours, as rows would say of each what it was asked before."""

    def stake_of(self, job_id: str) -> Stake | None:
        stake, times = self.stakes[job_id], self.taken[job_id]
        if stake is None:
            return None
        recent = sum(self.now_s - at_s < HOUR_S for at_s in times)
        return msgspec.structs.replace(
            stake, begun_s=self.began_s[job_id], came_back=bool(times), times=recent, kept_s=None
        )


@pytest.mark.parametrize("first", range(0, HOURS_OF, 50))
def test_over_hours_no_job_is_taken_more_often_than_the_cap_nor_soon_after_it_came_back(first: int) -> None:
    preemptions = 0
    for seed in range(first, first + 50):
        world, pairs = Course(seed), set[tuple[str, str]]()
        for number in range(90):
            world.now_s += 120.0
            if number % 4 == 0:
                world.submit(f"x{number:03}")
            plan = world.plan()
            for victim in plan.victims:
                ran_s = world.now_s - world.began_s[victim.id]
                least_s = CONFIG.preempt_again_s if world.taken[victim.id] else CONFIG.preempt_min_runtime_s
                assert ran_s >= least_s, f"{seed}: {victim.id} was taken after {ran_s:.0f} s"
                pairs.add((plan.head, victim.id))
                preempt(world, victim.id)
                preemptions += 1
            for entry in world.plan().entries:
                if entry.may_start:
                    world.place(entry.job.id)
            for job_id in [job for job in world.ends_s if world.random.random() < 0.03]:
                world.end(job_id)
        assert not any((victim, head) in pairs for head, victim in pairs), f"{seed}: a pair takes from each other"
        check_caps(world, seed)
    assert preemptions > 50, "somebody yields in these worlds"


def preempt(world: Course, job_id: str) -> None:
    """It waits again, in its old place."""
    spec = world.specs[job_id]
    world.end(job_id)
    world.submit(job_id)
    world.specs[job_id] = spec
    world.taken[job_id].append(world.now_s)


def check_caps(world: Course, seed: int) -> None:
    """In any hour."""
    everyone = sorted(at_s for times in world.taken.values() for at_s in times)
    for times, most in [(everyone, CONFIG.max_preemptions), *((t, 2) for t in world.taken.values())]:
        for at_s in times:
            within = sum(at_s <= other < at_s + HOUR_S for other in times)
            assert within <= most, f"{seed}: {within} preemptions within an hour"
