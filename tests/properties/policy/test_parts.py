"""What replicas that leave for an urgent job promise, over random fleets: they go before whole jobs, never more of a
job than may leave, and of all sets the one that loses the least."""

from itertools import chain, combinations, product

import msgspec
import pytest

from controlplane.policy.queue.place import Victim
from controlplane.policy.queue.preempt import lost_gpu_s, may_yield, part_gpu_s, parts_of, whole_of
from controlplane.policy.queue.room import Room, Types
from controlplane.policy.queue.rows import Holder, Part, Pending, QueueConfig, QueueFleet, QueuePlan
from controlplane.policy.queue.schedule import schedule
from controlplane.policy.queue.search import Offer
from tests.properties.policy.queue_worlds import NOW_S
from tests.properties.policy.test_preemption import PreemptWorld

CONFIG = QueueConfig(preempt_patience_s=0.0, weighed=100_000)
MOST_SETS = 20_000
Sets = list[tuple[Offer, ...]]


class PartWorld(PreemptWorld):
    """A `PreemptWorld` whose jobs can train without some of their replicas: each replica is what a job has on a node,
    or half of that."""

    def __init__(self, seed: int) -> None:
        self.spares: dict[str, int] = {}
        self.halves: dict[str, bool] = {}
        super().__init__(seed)

    def submit(self, job_id: str) -> None:
        super().submit(job_id)
        self.spares[job_id] = self.random.choice((0, 1, 1, 2, 3))
        self.halves[job_id] = self.random.random() < 0.4

    def fleet(self) -> QueueFleet:
        fleet = super().fleet()
        return msgspec.structs.replace(fleet, holders=tuple(map(self._parted, fleet.holders)))

    def _parted(self, holder: Holder) -> Holder:
        sizes = [
            (node, size)
            for node, number in holder.devices
            for size in ((number // 2, number - number // 2) if self.halves[holder.id] and number > 1 else (number,))
        ]
        parts = tuple(Part(index=n, incarnation=1, devices=(each,)) for n, each in enumerate(sizes))
        return msgspec.structs.replace(holder, parts=parts, spares=min(self.spares[holder.id], len(parts) - 1))

    def plan(self) -> QueuePlan:
        return schedule(self.waiting.values(), self.fleet(), CONFIG, self.now_s)


def fits(fleet: QueueFleet, head: Pending, offers: tuple[Offer, ...]) -> bool:
    """It fits without them, wherever it is placed."""
    room = Room(fleet.nodes, Types(model for node in fleet.nodes for model in node.usable), [head.demand])
    for offer in offers:
        room.give_back(offer.devices)
    return room.fits(head.demand)


def sets_of(fleet: QueueFleet, able: list[Holder], *, whole: bool) -> Sets | None:
    """Every set of what these jobs may yield, written down the long way; None: too many for a test."""
    choices: list[Sets] = []
    size = 1
    for holder in able:
        parts = parts_of(holder, fleet.reserved)
        some: Sets = [set_ for number in range(holder.spares + 1) for set_ in combinations(parts, number)]
        choices.append(some + ([(whole_of(holder, fleet.reserved),)] if whole else []))
        size *= len(choices[-1])
    return None if size > MOST_SETS else [tuple(chain.from_iterable(each)) for each in product(*choices)]


def cheapest(fleet: QueueFleet, head: Pending, sets: Sets) -> float | None:
    """GPU-seconds of the set that loses least of those that make room; None: none does."""
    costs = sorted((sum(offer.price for offer in each), n) for n, each in enumerate(sets) if each)
    return next((cost for cost, n in costs if fits(fleet, head, sets[n])), None)


def check(fleet: QueueFleet, head: Pending, named: tuple[Victim, ...], seed: int) -> bool | None:
    """Whether replicas alone make room; None: not compared."""
    able = [holder for holder in fleet.holders if may_yield(holder, head, CONFIG, NOW_S)]
    few, all_ = sets_of(fleet, able, whole=False), sets_of(fleet, able, whole=True)
    if few is None or all_ is None:
        return None
    parts, any_ = cheapest(fleet, head, few), cheapest(fleet, head, all_)
    least = parts if parts is not None else any_
    if least is None:
        assert not named, f"{seed}: nothing makes room"
        return None
    assert sum(victim.lost_gpu_s for victim in named) == pytest.approx(least), f"{seed}: another set loses less"
    return parts is not None


def check_each(fleet: QueueFleet, named: tuple[Victim, ...], seed: int) -> None:
    """What is asked of each job is its to give, at its price."""
    holders = {holder.id: holder for holder in fleet.holders}
    for victim in named:
        holder = holders[victim.id]
        parts = [part for part in holder.parts if (part.index, part.incarnation) in victim.gives]
        assert len(parts) == len(victim.gives) <= holder.spares, f"{seed}: {victim.id} is stranded"
        price = sum(part_gpu_s(holder, part) for part in parts) if parts else lost_gpu_s(holder)
        assert victim.lost_gpu_s == pytest.approx(price)


@pytest.mark.parametrize("first", range(0, 1500, 500))
def test_replicas_leave_before_whole_jobs_do_and_the_set_that_yields_loses_the_least(first: int) -> None:
    found = {True: 0, False: 0}
    for seed in range(first, first + 500):
        world = PartWorld(seed)
        plan, fleet = world.plan(), world.fleet()
        head = world.waiting.get(plan.head)
        if not plan.victims or head is None:
            continue
        check_each(fleet, plan.victims, seed)
        alone = check(fleet, head, plan.victims, seed)
        if alone is not None:
            found[alone] += 1
            assert alone == all(victim.gives for victim in plan.victims), f"{seed}: a whole job yields for nothing"
    assert found[True] > 3 and found[False] > 1, f"worlds of both sorts: {found}"


@pytest.mark.parametrize("first", range(0, 900, 300))
def test_where_nobody_gives_anything_no_set_would_have_made_room(first: int) -> None:
    for seed in range(first, first + 300):
        world = PartWorld(seed)
        plan, fleet = world.plan(), world.fleet()
        entry = plan.entries[0] if plan.entries else None
        if plan.victims or entry is None or plan.head != entry.job.id or not entry.may_start:
            continue
        check(fleet, entry.job, (), seed)
