"""What the queue promises, watched over days of a small fleet (`intervals`): seeds of it, and what they break.

A gang starts whole (the fleet asserts it). No project exceeds its quota and what others lend it. Nobody yields before
its time or too often. What is first in line starts when it fits. Backfill delays no head: its expected start never
moves back while nobody new is ahead of it, and it keeps it; but while somebody yields, who is counted as gone and
leaves when its save is done, and a head whose project has a quota has no promise. Every job that the fleet and its
project's quota could hold ends. Where nodes are reserved only who may starts there (the fleet asserts it), the first
job of a project starts on its own whoever is ahead, and heads are promised nothing beyond the next begin or end
of a reservation.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from controlplane.changes.assembly.queue import HOUR_S
from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue.place import HAS_ROOM, Turn
from controlplane.policy.queue.rows import Pending, QueuePlan, Share
from controlplane.policy.reserved import Reservation
from controlplane.simulator.courses import Work
from controlplane.simulator.intervals import Queue

NAMES = ("blue", "green", "red")
STEPS_S = (1.0, 5.0, 20.0)
LATE_S = 2.0 * max(STEPS_S)
"""An end is expected in whole steps: so much later than expected is none."""
LIMITS = (0.0, 0.0, 0.5, 1.2, 2.0, 4.0)
"""Of a job's time limit, its work and a start: people give too much, or too little, or none."""
PATIENCE = 20.0
"""All jobs have ended when so many times their work could have been done one after the other."""


@dataclass(frozen=True, slots=True)
class Expected:
    """When this head starts at the latest, and who was ahead of it then."""

    job: str
    at_s: float
    ahead: frozenset[str]


class Watch:
    """Of one queue; `violations` of what it promises. How often somebody yields (`preemptions`; `within`: to a job of
    its project that waits for the quota alone), starts on what others lend (`borrows`), passes one that waits and has a
    time limit (`limited`), or starts where nobody else could (`alone`)."""

    def __init__(self, queue: Queue) -> None:
        self.violations: list[str] = []
        self.preemptions, self.borrows, self.limited, self.within, self.alone, self.queue = 0, 0, 0, 0, 0, queue
        self._head: Expected | None = None
        self._choice = queue.choice
        queue.on_pass, queue.choice = self.planned, self.chosen

    def planned(self, plan: QueuePlan) -> None:
        """A plan was made, nobody has moved yet."""
        starts = any(entry.may_start and entry.turn in HAS_ROOM for entry in plan.entries)
        first = plan.entries[0]
        if first.turn in HAS_ROOM and not first.may_start:
            self._say(f"work: {first.job.id} is first in line, fits and may not start")
        self._owns(plan)
        self._expects(plan)
        entry = next((each for each in plan.entries if each.may_start and each.turn in HAS_ROOM), None)
        self._within(entry.job if entry is not None else None)
        self.alone += entry is not None and entry.alone
        self.limited += entry is not None and entry.turn is Turn.BACKFILL and entry.job.limit_s is not None
        if not starts and first.turn not in (Turn.NO_ROOM, Turn.TOO_LARGE, Turn.HELD, Turn.QUOTA):
            self._say(f"work: {first.job.id} is first in line ({first.turn}), and nothing starts")

    def _owns(self, plan: QueuePlan) -> None:
        """The first job of each project starts where the project's own nodes hold it."""
        queue, seen = self.queue, set[str]()
        for entry in plan.entries:
            if entry.job.project in seen or entry.turn in (Turn.HELD, Turn.QUOTA):
                seen.add(entry.job.project)
                continue
            seen.add(entry.job.project)
            own, demand = msgspec.structs.replace(entry, alone=True), entry.job.demand
            free = sum(free >= demand.of_each and queue.takes(node, own) for node, free in queue.free.items())
            if free >= demand.nodes and not (entry.may_start and entry.turn in HAS_ROOM):
                self._say(f"own: {entry.job.id} ({entry.turn}) waits, and {free} nodes of {entry.job.project} are free")

    def _stands_until_s(self, head: Pending) -> float:
        """Until then reservations change nothing for it; one with a time limit counts on those that have not begun."""
        borders = [at_s for at_s in self.queue.borders_s() if at_s > self.queue.now_s]
        if borders and head.limit_s is not None:
            return -math.inf
        return min(borders, default=math.inf)

    def _within(self, starts: Pending | None) -> None:
        """It takes no more than its project has and what others lend and do not use."""
        shares = {share.name: share for share in self.queue.shares() if share.quota is not None}
        share = shares.pop(starts.project, None) if starts is not None else None
        if starts is None or share is None or share.quota is None:
            return
        over = share.used + self.queue.courses[starts.id].work.devices - share.quota
        lent = 0
        for other in shares.values():
            unused = (other.quota or 0) - other.used
            lent += unused if other.lend is None or unused < 0 else min(unused, other.lend)
        most = max(0, lent if share.borrow is None else min(lent, share.borrow))
        self.borrows += over > 0
        if over > (most if starts.preemptible else 0):
            self._say(f"quota: {starts.id} of {starts.project} takes {over} beyond its quota, {most} are lent")

    def _owes(self, job: str, head: Pending) -> bool:
        """Its project has more than its quota, and the head no more than its own."""
        shares = {share.name: share for share in self.queue.shares() if share.quota is not None}
        mine, its = shares.get(head.project), shares.get(self.queue.courses[job].work.project)
        if mine is None or its is None or mine is its:
            return False
        need = self.queue.courses[head.id].work.devices
        return its.used > (its.quota or 0) and mine.used + need <= (mine.quota or 0)

    def _expects(self, plan: QueuePlan) -> None:
        now_s, known = self.queue.now_s, self._head
        entry = next((each for each in plan.entries if each.job.id == plan.head), None)
        if known is not None and self.queue.courses[known.job].waits:
            here = next(each for each in plan.entries if each.job.id == known.job)
            before = _ahead(plan, here.place)
            if before <= known.ahead and now_s > known.at_s + LATE_S:
                self._say(f"head: {known.job} was to start by {known.at_s:.0f} s, and waits")
                self._head = None
        yields = any(course.left_s is not None for course in self.queue.courses.values())
        # Whose project has a quota may be kept waiting by what others need of theirs.
        borrows = entry is not None and any(entry.job.project == share.name for share in self.queue.projects)
        beyond = entry is not None and (entry.expected_s or 0.0) >= self._stands_until_s(entry.job)
        if entry is None or entry.expected_s is None or yields or borrows or beyond:
            self._head = None
            return
        ahead = _ahead(plan, entry.place)
        stands = known is not None and known.job == plan.head and ahead <= known.ahead
        if stands and known is not None and entry.expected_s > known.at_s + LATE_S:
            self._say(f"head: {known.job} is expected at {entry.expected_s:.0f} s, {known.at_s:.0f} s were promised")
        soonest_s = min(entry.expected_s, known.at_s) if stands and known is not None else entry.expected_s
        self._head = Expected(plan.head, soonest_s, ahead)

    def chosen(self, queue: Queue, plan: QueuePlan) -> Mapping[str, Sequence[int]]:
        """Who yields."""
        found, policy = self._choice(queue, plan), queue.policy
        head, turn = next((entry.job, entry.turn) for entry in plan.entries if entry.job.id == plan.head)
        for job in found:
            course, now_s = queue.courses[job], queue.now_s
            self.preemptions += 1
            self.within += turn is Turn.QUOTA
            again = course.came_back_s is not None
            least_s = policy.preempt_again_s if again else policy.preempt_min_runtime_s
            ran_s = now_s - (course.placed_s if course.placed_s is not None else now_s)
            lately = sum(now_s - at_s <= HOUR_S for at_s in course.asked) + 1
            if ran_s < least_s:
                self._say(f"thrash: {job} yields {ran_s:.0f} s after it began")
            if lately > policy.max_preemptions_of_job:
                self._say(f"thrash: {job} yields {lately} times within an hour")
            outranked = course.work.priority < head.priority or self._owes(job, head)
            if turn is Turn.QUOTA and course.work.project != head.project:
                self._say(f"thrash: {job} yields to {head.id}, which lacks a quota of another project")
            if not outranked or not course.work.preemptible:
                self._say(f"thrash: {job} yields to {head.id}, and need not")
        fleet = sum(queue.now_s - at_s <= HOUR_S for each in queue.courses.values() for at_s in each.asked)
        suffered = queue.suffered()
        suffered.update(queue.courses[job].work.project for job in found)
        if any(suffered[queue.courses[job].work.project] > policy.max_preemptions_of_project for job in found):
            self._say(f"thrash: {suffered} by project yield within an hour")
        if fleet + len(found) > policy.max_preemptions:
            self._say(f"thrash: {fleet + len(found)} jobs yield within an hour")
        return found

    def ended(self) -> None:
        """When the queue has run out: nobody is left behind."""
        sizes = (self.queue.size, len(self.queue.free))
        for course in self.queue.courses.values():
            fits = course.work.of_each <= sizes[0] and course.work.nodes <= sizes[1]
            quotas = (share.quota for share in self.queue.projects if share.name == course.work.project)
            fits = fits and all(quota is None or course.work.devices <= quota for quota in quotas)
            if course.ended_s is None and fits:
                self._say(f"starve: {course.work.id} has not ended, and began {len(course.began)} times")

    def _say(self, text: str) -> None:
        self.violations.append(f"{self.queue.now_s:.0f} {text}")


def _ahead(plan: QueuePlan, place: int) -> frozenset[str]:
    """Ids of those before it; whoever waits for its project's quota alone is not, until it may start."""
    return frozenset(each.job.id for each in plan.entries[: place - 1] if each.turn is not Turn.QUOTA)


def drawn(seed: int) -> Queue:
    """A small fleet and its jobs, all from the seed."""
    draw = random.Random(f"queue {seed}")
    nodes, of_each = draw.randrange(2, 9), draw.choice((1, 2, 4, 8))
    policy = PolicyConfig(
        preempt_min_runtime_s=draw.choice((30.0, 300.0)),
        preempt_again_s=draw.choice((300.0, 1800.0)),
        max_preemptions=draw.choice((2, 5, 20)),
        max_preemptions_of_job=draw.choice((1, 2)),
        max_preemptions_of_project=random.Random(f"queue suffers {seed}").choice((1, 2, 20)),
    )
    works = [_work(draw, number, nodes, of_each) for number in range(draw.randrange(5, 30))]
    share = random.Random(f"queue projects {seed}")
    projects = _projects(share, nodes * of_each) if share.random() < 0.5 else ()
    limit = random.Random(f"queue limits {seed}")
    if limit.random() < 0.5:
        works = [replace(work, limit_s=limit.choice(LIMITS) * (work.work_s + work.start_s)) for work in works]
    if projects:
        works = [replace(work, project=share.choice((*(each.name for each in projects), ""))) for work in works]
    reserve = random.Random(f"queue reserved {seed}")
    reserved = _reserved(reserve, nodes, projects) if reserve.random() < 0.35 else {}
    if reserved and not projects:
        works = [replace(work, project=reserve.choice((*NAMES, ""))) for work in works]
    return Queue(works, nodes, of_each, policy=policy, projects=projects, reserved=reserved)


def _reserved(draw: random.Random, nodes: int, projects: Sequence[Share]) -> Mapping[str, tuple[Reservation, ...]]:
    """Some nodes, each once or twice, one time after the other."""
    names, found = [each.name for each in projects] or list(NAMES), {}
    for number in draw.sample(range(nodes), draw.randint(1, nodes)):
        at_s, its = 0.0, list[Reservation]()
        for place in range(draw.choice((1, 1, 2))):
            from_s = at_s + draw.choice((0.0, draw.uniform(0.0, 2 * HOUR_S)))
            at_s = from_s + draw.uniform(0.1, 3.0) * HOUR_S
            its.append(Reservation(id=f"r{number}{place}", project=draw.choice(names), from_s=from_s, until_s=at_s))
        found[f"node-{number:03d}"] = tuple(its)
    return found


def _projects(draw: random.Random, devices: int) -> tuple[Share, ...]:
    """Two or three, whose quotas are the fleet together, or nearly."""
    names, left, found = NAMES[: draw.choice((2, 3))], devices, list[Share]()
    for name in names:
        quota = left if name == names[-1] else draw.randint(0, left)
        left -= quota
        found.append(
            Share(
                name=name,
                quota=quota,
                borrow=draw.choice((None, None, 0, 4)),
                lend=draw.choice((None, None, 0, 4)),
                weight=draw.choice((1, 1, 2)),
            )
        )
    return tuple(found)


def _work(draw: random.Random, number: int, nodes: int, of_each: int) -> Work:
    return Work(
        id=f"job-{number:02d}",
        priority=draw.choice((100, 300, 500, 500, 900)),
        arrives_s=draw.choice((0.0, draw.uniform(0.0, 4 * HOUR_S))),
        nodes=draw.randrange(1, nodes + 1 + (draw.random() < 0.05)),
        of_each=draw.randrange(1, of_each + 1),
        work_s=draw.choice((60.0, 600.0, 3600.0)) * draw.uniform(0.5, 2.0),
        interval_s=draw.choice((300.0, 1800.0)),
        save_s=draw.uniform(1.0, 60.0),
        step_s=draw.choice(STEPS_S),
        start_s=draw.uniform(5.0, 120.0),
        preemptible=draw.random() < 0.8,
    )


def watched(seed: int) -> Watch:
    """A seed, to its end."""
    queue = drawn(seed)
    watch = Watch(queue)
    works = [course.work for course in queue.courses.values()]
    one_by_one_s = sum(work.work_s + 2.0 * work.save_s + work.start_s for work in works)
    queue.run(max(work.arrives_s for work in works) + PATIENCE * one_by_one_s)
    watch.ended()
    return watch
