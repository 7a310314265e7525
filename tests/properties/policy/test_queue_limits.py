"""Who passes a job that waits delays it in nothing: over random fleets and queues, with the product's own placement.

A job that waits for devices (the head) or for its project's quota (the first of its project) has a moment at which it
is expected to start. Whoever is let past it by the plan is placed here, lives as long as its time limit allows, or for
ever, and the one that waits is expected no later than before.
"""

from collections import Counter

import msgspec
import pytest

from controlplane.policy.queue.place import HAS_ROOM, Turn
from controlplane.policy.queue.rows import Entry, QueueFleet, QueuePlan
from controlplane.policy.queue.schedule import schedule
from tests.properties.policy.queue_worlds import NOW_S
from tests.properties.policy.test_queue_shares import CONFIG, SharedWorld


class LimitedWorld(SharedWorld):
    """Some jobs have a time limit. Nobody yields."""

    def __init__(self, seed: int) -> None:
        self.limits: dict[str, float | None] = {}
        super().__init__(seed)

    def submit(self, job_id: str) -> None:
        super().submit(job_id)
        self.limits[job_id] = self.random.choice((None, 5.0, 15.0, 30.0, 60.0))
        self.waiting[job_id] = msgspec.structs.replace(self.waiting[job_id], limit_s=self.limits[job_id])

    def place(self, job_id: str) -> dict[str, int] | None:
        """Of who was there before mostly an end is known; who starts now ends by its limit alone."""
        found, limit_s, pick = super().place(job_id), self.limits[job_id], self.random
        if found is not None:
            known = limit_s if self.begins else pick.choice((None, *(pick.randint(1, 50) for _ in range(4))))
            self.ends_s[job_id] = None if known is None else NOW_S + known
        return found

    begins = False
    """The world is made; whoever is placed from now on is placed by the plan."""

    def fleet(self) -> QueueFleet:
        """With what of spare nodes counts for no quota."""
        fleet = super().fleet()
        ranks = Counter(job_id for used in self.used.values() for job_id in used.values())
        holders = []
        for each in fleet.holders:
            spares = sum(number for _, number in each.devices) - ranks[each.id]
            uncounted = max(0, spares - self.specs[each.id].resources.spares.gpus)
            counts = sum(number for _, number in each.devices) - uncounted
            # What a job that asks for spares has of them counts in full (`SharedWorld.counted`).
            owed = ranks[each.id] + self.specs[each.id].resources.spares.gpus
            assert counts == owed, f"{each.id} counts {counts}, {owed} are asked for"
            holders.append(msgspec.structs.replace(each, uncounted=uncounted, stake=None))
        return msgspec.structs.replace(fleet, holders=tuple(holders))

    def plan(self) -> QueuePlan:
        return schedule(self.waiting.values(), self.fleet(), CONFIG, NOW_S)


def begun(seed: int) -> LimitedWorld:
    """Quotas are mostly in use."""
    world = LimitedWorld(seed)
    world.begins, counted, pick = True, world.counted(), world.random
    world.shares = tuple(
        msgspec.structs.replace(
            share, quota=counted[share.name] + pick.choice((2, 4, 8, 16, 24)), borrow=pick.choice((0, 0, 4))
        )
        for share in world.shares
    )
    for number in range(8):
        world.submit(f"x{number:02}")
    return world


def promised(plan: QueuePlan) -> dict[str, Entry]:
    """Who waits for devices or a quota, and is expected."""
    waits = (Turn.NO_ROOM, Turn.QUOTA)
    return {e.job.id: e for e in plan.entries if e.turn in waits and e.expected_s is not None}


def passed(world: LimitedWorld, plan: QueuePlan) -> Entry | None:
    """One that may start though somebody ahead of it is promised a moment: any of them."""
    first = min((entry.place for entry in promised(plan).values()), default=len(plan.entries))
    able = [e for e in plan.entries[first:] if e.may_start and e.turn in HAS_ROOM]
    return world.random.choice(able) if able else None


def concerns(entry: Entry, other: Entry) -> bool:
    """A job keeps devices from all, and its project's quota from its project."""
    return entry.turn is Turn.NO_ROOM or entry.job.project == other.job.project


@pytest.mark.parametrize("first", range(0, 4000, 2000))
def test_whoever_passes_one_that_waits_does_not_move_its_expected_start(first: int) -> None:
    kinds: Counter[tuple[str, bool]] = Counter()
    for seed in range(first, first + 2000):
        world = begun(seed)
        for _ in range(len(world.waiting)):
            plan = world.plan()
            entry = passed(world, plan)
            if entry is None or world.place(entry.job.id) is None:
                break
            after = {each.job.id: each for each in world.plan().entries}
            for waits in promised(plan).values():
                if waits.place > entry.place or not concerns(waits, entry):
                    continue
                kinds[str(waits.turn), entry.job.limit_s is not None] += 1
                now, was_s = after[waits.job.id], waits.expected_s
                if now.turn is Turn.QUOTA and now.behind:
                    # One ahead of it, which waited for devices, is now the first that waits for the quota.
                    turns = {each.job.id: each.turn for each in plan.entries[: waits.place - 1]}
                    assert turns[now.behind] in (Turn.BEHIND, Turn.NEXT), (
                        f"{seed}: {entry.job.id} {waits.job.id} {now} {turns}"
                    )
                    continue
                assert was_s is not None
                in_time = now.expected_s is not None and now.expected_s <= was_s
                why = f"{seed}: {entry.job.id} of {entry.job.project} passed {waits.job.id} ({waits.turn})"
                assert in_time or now.may_start or now.turn is Turn.NEXT, f"{why}, {was_s} is {now.expected_s}"
    for kind in (("no_room", True), ("no_room", False), ("quota", True), ("quota", False)):
        assert kinds[kind] > 2, f"{kind}: {kinds}"


@pytest.mark.parametrize("first", range(0, 900, 300))
def test_what_a_time_limit_lets_past_the_head_would_have_waited_without_it(first: int) -> None:
    found = 0
    for seed in range(first, first + 300):
        world = begun(seed)
        plan = world.plan()
        for entry in plan.entries:
            if entry.turn is Turn.BACKFILL and entry.may_start and entry.job.limit_s is not None:
                endless = msgspec.structs.replace(entry.job, limit_s=None)
                queue = [endless if job.id == endless.id else job for job in world.waiting.values()]
                same = next(e for e in schedule(queue, world.fleet(), CONFIG, NOW_S).entries if e.job.id == endless.id)
                found += not same.may_start
    assert found > 5
