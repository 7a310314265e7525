"""`schedule(queue, fleet, config, now_s) -> plan`: who of the queue may start now, and what each other job waits for.

The queue is sorted by priority, then by what projects have borrowed, then by age (`policy.queue.shares`). A job whose
project may use no more devices is passed over. Each pending job claims what it needs; a job behind it may start only
where every claim still holds wherever the two are placed. So what is first starts first wherever devices are scarce,
and side by side where they are not. The first job that does not fit is the head: its claim is on the moment at which
running jobs that are expected to end have made room for it. What has ended by then, by its own time limit, starts
before it. Where nobody knows that moment, nothing that could use the same devices does. In each project the first job
that waits for its quota keeps that in the same way (`policy.queue.kept`). Where jobs of lower priority allow it and it
is not expected soon, some of them yield to the head, or to whoever waits for its project's quota alone
(`policy.queue.preempt`). A job for whose project nodes are reserved starts there whoever is ahead of it: nobody else
could use them. Pure: equal arguments give equal plans.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from controlplane.policy.asked import Again
from controlplane.policy.queue.ends import Timeline
from controlplane.policy.queue.kept import Claim, Kept
from controlplane.policy.queue.place import HAS_ROOM, Turn, Victim
from controlplane.policy.queue.preempt import for_quota, starts_soon, victims
from controlplane.policy.queue.room import Room, Spare, Types
from controlplane.policy.queue.rows import Demand, Entry, Pending, QueueConfig, QueueFleet, QueuePlan
from controlplane.policy.queue.shares import Shares, in_turn


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
    none = replace(config, max_preemptions=0)
    return _planned(Planning(jobs, fleet, none, now_s), len(ahead) + 1)


def again(queue: Iterable[Pending], fleet: QueueFleet, config: QueueConfig, now_s: float, job: Pending) -> Again:
    """What its project's quota has for a job whose attempt ends and that is placed again in the same breath: as the
    plan has it for the first in line, as what has begun is kept whole before something new begins. `fleet`: without
    what the job has."""
    others = in_turn((each for each in queue if each.id != job.id), fleet.projects)
    none = replace(config, max_preemptions=0)
    (entry,) = _planned(Planning([job, *others], fleet, none, now_s), 1).entries
    return Again(at_most=entry.at_most, why=entry.why if entry.turn is Turn.QUOTA else "")


def called(plan: QueuePlan) -> set[str]:
    """Ids of those for whom there is something to do now: they may start, or others may yield to them."""
    found = {entry.job.id for entry in plan.entries if entry.may_start and entry.turn in HAS_ROOM}
    return found | ({plan.head} if plan.victims else set())


class Planning:
    """One walk through the queue; `entry` is asked for each job, first in line first."""

    def __init__(self, jobs: Sequence[Pending], fleet: QueueFleet, config: QueueConfig, now_s: float) -> None:
        self._fleet, self._config, self._now_s = fleet, config, now_s
        self._owners = owners(fleet, now_s)
        self._jobs = [of_project(job) if job.project in self._owners else job for job in jobs]
        demands = [job.demand for job in self._jobs]
        demands += [_alone(job).demand for job in self._jobs if self._owns(job)]
        self._types = Types(model for node in fleet.nodes for model in node.usable)
        self._now = Room(fleet.nodes, self._types, demands)
        self._all, self._left = self._now.idle(), self._now.copy()
        self._claims: list[Claim] = []
        self._ends = Timeline(self._now, fleet.holders, now_s)
        self._kept: dict[str, Kept] = {}
        self._shares = Shares(fleet.projects)
        for job in self._jobs:
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
        against = self._refused_by(job)
        if self._owns(job) and (against is not None or not self._fits_now(job)):
            alone = _alone(job)
            if self._fits_now(alone) and self._refused_by(alone) is None:
                return replace(self._starts(alone, place, None), job=job)
        may_start, behind = against is None, against.job.id if against is not None else ""
        most = self._quota_for(job)
        at_most = most if most < job.demand.counted else None
        if not self._all.fits(job.demand):
            if at_most is not None and (job.demand.nodes or most <= 0):
                why = self._shares.words(job, in_another_layout=not job.demand.nodes)
                return Entry(job=job, place=place, turn=Turn.QUOTA, may_start=False, why=why)
            too_large = Entry(job=job, place=place, turn=Turn.TOO_LARGE, may_start=may_start, behind=behind)
            return replace(too_large, at_most=at_most)
        if job.demand.least > most:
            return self._beyond_quota(job, place, may_start=may_start)
        if not self._left.fits(job.demand):
            entry = self._without_room(job, place, may_start=may_start, behind=behind)
            return replace(entry, at_most=at_most)
        return self._starts(job, place, against)

    def _starts(self, job: Pending, place: int, against: Claim | None) -> Entry:
        """It has room, and starts now unless it is `against` a claim ahead of it."""
        may_start, most, turn = against is None, self._quota_for(job), self._turn(job, against)
        behind = against.job.id if against is not None else ""
        if self.head and not may_start:
            return Entry(job=job, place=place, turn=turn, may_start=False, behind=behind)
        self._start(job, min(most, job.demand.counted), concurrent=may_start)
        return Entry(
            job=job,
            place=place,
            turn=turn,
            may_start=may_start,
            behind=behind,
            expected_s=self._now_s if may_start else None,
            at_most=most if most < job.demand.counted else None,
            alone=job.demand.alone,
        )

    def _owns(self, job: Pending) -> bool:
        """Nodes are reserved for its project now."""
        return self._owners.get(job.project, False)

    def _fits_now(self, job: Pending) -> bool:
        """There is room for it, and its project may use as much."""
        return self._left.fits(job.demand) and job.demand.least <= self._quota_for(job)

    def _quota_for(self, job: Pending) -> int:
        """So many devices of its project's quota it may have now: beside what is kept for one ahead of it."""
        most, kept = self._shares.leaves(job), self._kept.get(job.project)
        if kept is None:
            return most
        most = min(most, self._shares.own(job))  # What it borrowed would put its project behind others in the line.
        if kept.lets(self._over_s(job)):
            return most
        return min(most, kept.leaves(self._cost(job.demand, kept.job.demand)))

    def _turn(self, job: Pending, against: Claim | None) -> Turn:
        if against is not None:
            return Turn.BEHIND if self.head else Turn.NEXT
        if self.head or job.project in self._kept:
            return Turn.BACKFILL
        rivals = (claim for claim in self._claims if self._meet(claim.job.demand, job.demand))
        return Turn.FIRST if next(rivals, None) is None else Turn.BESIDE

    def _beyond_quota(self, job: Pending, place: int, *, may_start: bool) -> Entry:
        """The first one of its project keeps what that may use. It is the head where others of it yield."""
        ahead = self._kept.get(job.project)
        if ahead is not None:
            why = self._shares.kept_words(job, ahead.job, known=ahead.by_s is not None)
            return Entry(job=job, place=place, turn=Turn.QUOTA, may_start=False, behind=ahead.job.id, why=why)
        why, expected_s = self._shares.words(job), None
        if self._shares.owns(job):
            kept = self._kept[job.project] = self._keeps(job)
            expected_s = kept.expected_s
            if may_start and not self.head and not any(self._meet(d, job.demand) for d in self._starting):
                self._yields_quota(job, expected_s)
        return Entry(job=job, place=place, turn=Turn.QUOTA, may_start=False, why=why, expected_s=expected_s)

    def _keeps(self, job: Pending) -> Kept:
        """The first of the expected ends after which the quota is enough for it and, wherever those ahead of it and
        those that start now are placed, the devices too."""
        head_s = next((claim.by_s for claim in self._claims if claim.job.id == self.head), None)
        ahead = Spare(0, 0)
        others = [each.job for each in self._kept.values()] + [claim.job for claim in self._claims]
        for other in others:
            self._give(ahead, other.demand, job.demand)
        lacks, owes = self._shares.lacks(job), -self._shares.own(job)
        freed, by_s = 0, None
        for end, tally in self._ends:
            freed += end.counted if end.holder.project == job.project else 0
            if freed < lacks:
                continue
            by_s = end.ends_s if by_s is None else by_s
            spare, left = tally.spare(job.demand), max(0, freed - max(lacks, owes))
            spare.give(-ahead.nodes, -ahead.devices)
            if spare.allows(0, 0) and (not self.head or (head_s is not None and end.ends_s >= head_s)):
                return Kept(job, end.ends_s, left, spare)
        return Kept(job, by_s)

    def _yields_quota(self, job: Pending, expected_s: float | None) -> None:
        """Where others of its project may yield, it is the head, and keeps what they give until it is placed."""
        if not any(holder.yields_to == job.id for holder in self._fleet.holders):
            if not starts_soon(expected_s, self._config, self._now_s):
                lacks = self._shares.lacks(job)
                self.victims = for_quota(job, self._left, self._fleet, self._config, self._now_s, lacks=lacks)
            if not self.victims:
                return
        self._heads(job)

    def _heads(self, job: Pending) -> float | None:
        """It is the head of the queue, and keeps what it is expected to get; when that is."""
        self.head = job.id
        self._shares.take(job)
        expected_s, spare = self._expected(job.demand)
        self._claims.append(Claim(job, spare, expected_s))
        return expected_s

    def _without_room(self, job: Pending, place: int, *, may_start: bool, behind: str) -> Entry:
        expected_s = None
        if not self.head:
            expected_s = self._heads(job)
            if (
                may_start
                and not starts_soon(expected_s, self._config, self._now_s)
                and not any(self._meet(d, job.demand) for d in self._starting)
            ):
                self.victims = victims(job, self._left, self._fleet, self._config, self._now_s)
        return Entry(job=job, place=place, turn=Turn.NO_ROOM, may_start=may_start, behind=behind, expected_s=expected_s)

    def _start(self, job: Pending, counted: int, *, concurrent: bool) -> None:
        """It starts now, or as soon as those ahead of it are placed; it claims its room until it is placed itself."""
        self._shares.take(job)
        spare, over_s = self._now.spare(job.demand), self._over_s(job)
        for demand in self._starting:
            self._give(spare, demand, job.demand)
        for claim in self._claims if concurrent else ():
            if claim.binds(over_s):
                self._give(claim.spare, job.demand, claim.job.demand)
        for project, kept in self._kept.items():
            if not kept.lets(over_s):
                kept.give(self._cost(job.demand, kept.job.demand), counted if project == job.project else 0)
        self._claims.append(Claim(job, spare))
        self._starting.append(job.demand)
        self._left.take(job.demand)

    def _over_s(self, job: Pending) -> float | None:
        """When its time limit has ended it, if it starts now."""
        return None if job.limit_s is None else self._now_s + job.limit_s

    def _expected(self, demand: Demand) -> tuple[float | None, Spare]:
        """When the jobs that are expected to end have made room for it, and what is left beside it then; (None, less
        than nothing) where nobody knows."""
        future = self._left.copy()
        for end, tally in self._ends:
            future.give_back(end.devices)
            if not future.fits(demand):
                continue
            spare = tally.spare(demand)
            for each in self._starting:
                self._give(spare, each, demand)
            return end.ends_s, spare
        return None, Spare(-1, -1)

    def _refused_by(self, job: Pending) -> Claim | None:
        """The first claim that might not hold if this started now; None: there is none."""
        over_s = self._over_s(job)
        for claim in self._claims:
            cost = self._cost(job.demand, claim.job.demand)
            if cost is not None and claim.binds(over_s) and not claim.spare.allows(*cost):
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


def owners(fleet: QueueFleet, now_s: float) -> Mapping[str, bool]:
    """Projects that nodes are reserved for; whether some are now."""
    found: dict[str, bool] = {}
    for node in fleet.nodes:
        for each in node.reservations:
            found[each.project] = found.get(each.project, False) or each.runs(now_s)
    return found


def of_project(job: Pending) -> Pending:
    """It may take what is reserved for its project."""
    return replace(job, demand=replace(job.demand, project=job.project))


def _alone(job: Pending) -> Pending:
    """It takes nothing else."""
    return replace(job, demand=replace(job.demand, alone=True))
