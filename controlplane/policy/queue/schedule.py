"""`schedule(queue, fleet, config, now_s) -> plan`: who of the queue may start now, and what each other job waits for.

The queue is sorted by priority, then by what projects have borrowed, then by age (`policy.queue.shares`). A job whose
project may use no more devices is passed over. Each pending job claims what it needs; a job behind it may start only
where every claim still holds wherever the two are placed. So what is first starts first wherever devices are scarce,
and side by side where they are not. The first job that does not fit is the head: its claim is on the moment at which
running jobs that are expected to end have made room for it. Where nobody knows that moment, nothing that could use
the same devices starts before it. Where jobs of lower priority allow it and it is not expected soon, some of them yield
to the head (`policy.queue.preempt`). Pure: equal arguments give equal plans.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from controlplane.policy.queue.place import HAS_ROOM, Turn, Victim
from controlplane.policy.queue.preempt import starts_soon, victims
from controlplane.policy.queue.room import Room, Spare, Types
from controlplane.policy.queue.rows import Demand, Entry, Holder, Pending, QueueConfig, QueueFleet, QueuePlan
from controlplane.policy.queue.shares import Shares, in_turn


class Claim:
    """What a job ahead keeps for itself: nothing may start that leaves it less than it needs."""

    def __init__(self, job: Pending, spare: Spare) -> None:
        self.job, self.spare = job, spare


def schedule(queue: Iterable[Pending], fleet: QueueFleet, config: QueueConfig, now_s: float) -> QueuePlan:
    """The plan for every pending job. `now_s`: server seconds."""
    jobs = in_turn(queue, fleet.projects)
    return _planned(Planning(jobs, fleet, config, now_s), len(jobs))


def _planned(walk: "Planning", count: int) -> QueuePlan:
    """Of the first `count` jobs."""
    entries = tuple(map(walk.entry, range(count)))
    return QueuePlan(entries=entries, head=walk.head, victims=walk.victims)


def growth(
    queue: Iterable[Pending], fleet: QueueFleet, config: QueueConfig, now_s: float, grower: Pending
) -> QueuePlan:
    """The plan for a job that trains and could take one replica more: behind all that wait with its priority or a
    higher one, whatever their projects have borrowed, and nobody yields for it. It borrows nothing for which a job of
    lower priority waits either."""
    others = in_turn((job for job in queue if job.id != grower.id), fleet.projects)
    ahead = [job for job in others if job.priority >= grower.priority]
    jobs = [*ahead, grower, *others[len(ahead) :]]
    none = msgspec.structs.replace(config, max_preemptions=0)
    return _planned(Planning(jobs, fleet, none, now_s), len(ahead) + 1)


def called(plan: QueuePlan) -> set[str]:
    """Ids of those for whom there is something to do now: they may start, or others may yield to them."""
    found = {entry.job.id for entry in plan.entries if entry.may_start and entry.turn in HAS_ROOM}
    return found | ({plan.head} if plan.victims else set())


class Planning:
    """One walk through the queue; `entry` is asked for each job, first in line first."""

    def __init__(self, jobs: Sequence[Pending], fleet: QueueFleet, config: QueueConfig, now_s: float) -> None:
        self._jobs, self._fleet, self._config, self._now_s = jobs, fleet, config, now_s
        demands = [job.demand for job in jobs]
        self._types = Types(model for node in fleet.nodes for model in node.usable)
        self._now = Room(fleet.nodes, self._types, demands)
        self._all, self._left = self._now.idle(), self._now.copy()
        self._claims: list[Claim] = []
        self._shares = Shares(fleet.projects)
        for job in jobs:
            if not job.held and self._all.fits(job.demand):
                self._shares.waits(job)
        self._starting: list[Demand] = []
        self.head = ""
        self.victims: tuple[Victim, ...] = ()

    def entry(self, number: int) -> Entry:
        """The plan for the job of this number, when those before it have theirs."""
        job, place = self._jobs[number], number + 1
        if job.held:
            return Entry(job=job, place=place, turn=Turn.HELD, may_start=False)
        if len(self._claims) > self._config.at_once:
            last = self._claims[-1].job.id
            return Entry(job=job, place=place, turn=Turn.NEXT, may_start=False, behind=last)
        against = self._refused_by(job.demand)
        may_start, behind = against is None, against.job.id if against is not None else ""
        if not self._all.fits(job.demand):
            return Entry(job=job, place=place, turn=Turn.TOO_LARGE, may_start=may_start, behind=behind)
        why, first = self._shares.refuses(job)
        if why:
            return Entry(job=job, place=place, turn=Turn.QUOTA, may_start=False, behind=first, why=why)
        if not self._left.fits(job.demand):
            return self._without_room(job, place, may_start=may_start, behind=behind)
        turn = self._turn(job, against)
        if self.head and not may_start:
            return Entry(job=job, place=place, turn=turn, may_start=False, behind=behind)
        self._start(job, concurrent=may_start)
        expected_s = self._now_s if may_start else None
        return Entry(job=job, place=place, turn=turn, may_start=may_start, behind=behind, expected_s=expected_s)

    def _turn(self, job: Pending, against: Claim | None) -> Turn:
        if against is not None:
            return Turn.BEHIND if self.head else Turn.NEXT
        if self.head:
            return Turn.BACKFILL
        rivals = (claim for claim in self._claims if self._meet(claim.job.demand, job.demand))
        return Turn.FIRST if next(rivals, None) is None else Turn.BESIDE

    def _without_room(self, job: Pending, place: int, *, may_start: bool, behind: str) -> Entry:
        """The first one is the head of the queue, and keeps what it is expected to get."""
        expected_s = None
        if not self.head:
            self.head = job.id
            self._shares.take(job)
            expected_s, spare = self._expected(job.demand)
            self._claims.append(Claim(job, spare))
            if (
                may_start
                and not starts_soon(expected_s, self._config, self._now_s)
                and not any(self._meet(d, job.demand) for d in self._starting)
            ):
                self.victims = victims(job, self._left, self._fleet, self._config, self._now_s)
        return Entry(job=job, place=place, turn=Turn.NO_ROOM, may_start=may_start, behind=behind, expected_s=expected_s)

    def _start(self, job: Pending, *, concurrent: bool) -> None:
        """It starts now, or as soon as those ahead of it are placed; it claims its room until it is placed itself."""
        self._shares.take(job)
        spare = self._now.spare(job.demand)
        for demand in self._starting:
            self._give(spare, demand, job.demand)
        if concurrent:
            for claim in self._claims:
                self._give(claim.spare, job.demand, claim.job.demand)
        self._claims.append(Claim(job, spare))
        self._starting.append(job.demand)
        self._left.take(job.demand)

    def _expected(self, demand: Demand) -> tuple[float | None, Spare]:
        """When the jobs that are expected to end have made room for it, and what is left beside it then; (None, less
        than nothing) where nobody knows."""
        future, most = self._left.copy(), self._now.copy()
        for ends_s, _, devices in ending(self._fleet.holders, self._now_s):
            future.give_back(devices)
            most.give_back(devices)
            if not future.fits(demand):
                continue
            spare = most.spare(demand)
            for each in self._starting:
                self._give(spare, each, demand)
            return ends_s, spare
        return None, Spare(-1, -1)

    def _refused_by(self, demand: Demand) -> Claim | None:
        """The first claim that might not hold if this started now; None: there is none."""
        for claim in self._claims:
            cost = self._cost(demand, claim.job.demand)
            if cost is not None and not claim.spare.allows(*cost):
                return claim
        return None

    def _give(self, spare: Spare, demand: Demand, of: Demand) -> None:
        """What is left beside a claim when a demand has started."""
        cost = self._cost(demand, of)
        if cost is not None:
            spare.give(*cost)

    def _cost(self, demand: Demand, of: Demand) -> tuple[int, int] | None:
        """(nodes, devices) that the start of one demand takes at most of what another could use; None: nothing."""
        if not self._meet(demand, of):
            return None
        whole = demand.spares + self._now.largest(demand) if demand.spares else 0
        spare_nodes = -(-demand.spares // max(1, of.of_each))
        return demand.touches + spare_nodes, demand.most + whole

    def _meet(self, one: Demand, other: Demand) -> bool:
        return self._types.overlap(one, other)


class Ending(NamedTuple):
    """At `ends_s` (server seconds) so many devices of the job on each node are expected to be free."""

    ends_s: float
    holder: Holder
    devices: tuple[tuple[str, int], ...]


def ending(holders: Iterable[Holder], now_s: float) -> list[Ending]:
    """Those whose end is expected, and when, the soonest first. What is late is expected now, and so are the devices of
    replicas that leave."""
    found = [Ending(now_s, each, each.gives) for each in holders if each.gives]
    for each in holders:
        if each.leaves:
            found.append(Ending(now_s, each, each.devices))
        elif each.ends_s is not None:
            found.append(Ending(max(now_s, each.ends_s), each, each.devices))
    return sorted(found, key=lambda end: (end.ends_s, end.holder.id))
