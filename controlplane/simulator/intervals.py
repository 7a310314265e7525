"""A queue over days, in coarse grain: the product's own plan decides, and a job is an interval of work.

`policy.queue.schedule` plans at each arrival, end and departure, and each `LOOK_S` while somebody waits. A job that may
start takes whole parts of nodes at once; one that yields saves, trains on until that save is durable, and leaves when
what it trained since is saved too. No rank, network or fault of a process is simulated: that is `world`'s. Used by
benchmarks and by properties of the queue over many seeds.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from controlplane.changes.assembly.queue import HOUR_S, Asks, Held, Trained, holder_of, stake_of
from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue import until
from controlplane.policy.queue.ends import limited_s, over_s
from controlplane.policy.queue.place import HAS_ROOM
from controlplane.policy.queue.rows import (
    Demand,
    Entry,
    Holder,
    Lender,
    Pending,
    QueueFleet,
    QueuePlan,
    Share,
    config_of,
)
from controlplane.policy.queue.schedule import schedule
from controlplane.policy.reserved import Reservation, is_own, takes
from controlplane.protocol.states import JobState

LOOK_S = 120.0
MODEL = "H100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job: `of_each` devices on each of `nodes` nodes for `work_s` of training. Saved each `interval_s`, in `save_s`;
    a step takes `step_s`, a start `start_s`. It ends `limit_s` after its first start at the latest (0: no limit)."""

    id: str
    priority: int
    arrives_s: float
    nodes: int
    of_each: int
    work_s: float
    interval_s: float
    save_s: float
    step_s: float
    start_s: float
    preemptible: bool = True
    project: str = ""
    limit_s: float = 0.0

    @property
    def devices(self) -> int:
        """All that it takes."""
        return self.nodes * self.of_each

    @property
    def demand(self) -> Demand:
        """What its start takes."""
        taken = self.devices
        return Demand(devices=taken, most=taken, touches=self.nodes, nodes=self.nodes, of_each=self.of_each)


@dataclass(slots=True)
class Course:
    """What has become of a job. `done_s` of its work is done and kept; it is placed since `placed_s` and trains from
    `trains_s` on. `left_s`: when its devices are free, once it yields, to `urgent`. `asked`: when the queue has asked
    it to, `began`: each start."""

    work: Work
    done_s: float = 0.0
    placed_s: float | None = None
    trains_s: float = 0.0
    left_s: float | None = None
    urgent: str = ""
    places: tuple[str, ...] = ()
    ended_s: float | None = None
    asked: list[float] = field(default_factory=list)
    came_back_s: float | None = None
    began: list[float] = field(default_factory=list)
    lost_gpu_s: float = 0.0

    @property
    def waits(self) -> bool:
        """It has no devices and has not ended."""
        return self.placed_s is None and self.ended_s is None

    @property
    def ends_s(self) -> float:
        """When it has trained everything, or its time is over, if nobody stops it."""
        return min(self.over_s, self.trains_s + self.work.work_s - self.done_s)

    @property
    def over_s(self) -> float:
        """When its time limit ends it, wherever it is."""
        limit_s = self.work.limit_s
        return self.began[0] + limit_s if limit_s and self.began else math.inf

    def trained_s(self, now_s: float) -> float:
        """Of work, with what is in no checkpoint yet; whole steps."""
        more_s = max(0.0, now_s - self.trains_s)
        return self.done_s + math.floor(more_s / self.work.step_s) * self.work.step_s

    def kept_s(self, now_s: float) -> float:
        """Of work that its newest checkpoint holds."""
        more_s = max(0.0, now_s - self.trains_s)
        return self.done_s + math.floor(more_s / self.work.interval_s) * self.work.interval_s

    def saves(self, now_s: float) -> tuple[float, ...]:
        """How long those took that it has made."""
        return (self.work.save_s,) if self.asked or self.kept_s(now_s) > 0.0 else ()


Choice = Callable[["Queue", QueuePlan], Sequence[str]]


def least_lost(queue: "Queue", plan: QueuePlan) -> Sequence[str]:
    """The product's: those that the plan names."""
    return [victim.id for victim in plan.victims]


class Queue:
    """A fleet and its jobs. `choice`: who yields, of those that may; `on_pass`: a plan was made, nobody has
    moved yet. `saves`: who yields saves first; else it leaves at once, and loses what no checkpoint holds. `projects`:
    their quotas; `reserved`: nodes that are reserved for projects, by name."""

    def __init__(
        self,
        works: Iterable[Work],
        nodes: int,
        of_each: int,
        *,
        policy: PolicyConfig | None = None,
        choice: Choice = least_lost,
        saves: bool = True,
        projects: Sequence[Share] = (),
        reserved: Mapping[str, tuple[Reservation, ...]] | None = None,
    ) -> None:
        self.policy = policy or PolicyConfig()
        self.config, self.choice, self.saves = config_of(self.policy), choice, saves
        self.courses = {work.id: Course(work) for work in works}
        self.projects = tuple(projects)
        self.size, self.free = of_each, {f"node-{number:03d}": of_each for number in range(nodes)}
        self.now_s, self.passes = 0.0, 0
        self.reserved = dict(reserved or {})
        self.on_pass: Callable[[QueuePlan], None] = lambda plan: None
        self._events: list[tuple[float, int, str]] = []
        self._order = self._looks_s = 0
        self._arrived: list[Course] = []
        for course in self.courses.values():
            self._at(course.work.arrives_s, course.work.id)
        for moment_s in self.borders_s():
            self._at(moment_s, "")

    def run(self, until_s: float = math.inf) -> None:
        """Until every job has ended, or that time."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s = self._events[0][0]
            while self._events and self._events[0][0] == self.now_s:
                self._happen(heapq.heappop(self._events)[2])
            self._plan()

    def _at(self, at_s: float, job: str) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, job))

    def _happen(self, job: str) -> None:
        """It arrives, ends or has left; "": time has passed."""
        if not job:
            return
        course, now_s = self.courses[job], self.now_s
        if course.work.arrives_s == now_s and course not in self._arrived:
            self._arrived.append(course)
        elif course.ended_s is None and course.over_s <= now_s + 1e-6:
            self._give_back(course)
            course.ended_s, course.left_s, course.urgent = now_s, None, ""
        elif course.left_s is not None and course.left_s <= now_s:
            self._give_back(course)
            course.came_back_s, course.left_s, course.urgent = now_s, None, ""
        elif course.placed_s is not None and course.left_s is None and course.ends_s <= now_s + 1e-6:
            self._give_back(course)
            course.ended_s, course.done_s = now_s, course.work.work_s

    def _give_back(self, course: Course) -> None:
        for node in course.places:
            self.free[node] += course.work.of_each
        course.places, course.placed_s = (), None

    # --- the plan -----------------------------------------------------------------------------------

    def _plan(self) -> None:
        """One job is placed after the other, each on a plan of its own, as in the product."""
        while any(course.waits for course in self._arrived):
            plan = schedule(list(self._pending()), self.fleet(), self.config, self.now_s)
            self.passes += 1
            self.on_pass(plan)
            entry = next((each for each in plan.entries if each.may_start and each.turn in HAS_ROOM), None)
            if entry is None:
                self._make_room(plan)
                break
            self._place(entry)
        yields = self.config.max_preemptions > 0
        if yields and self._looks_s <= self.now_s and any(course.waits for course in self._arrived):
            self._looks_s = int(self.now_s + LOOK_S)
            self._at(float(self._looks_s), "")

    def borders_s(self) -> list[float]:
        """When reservations begin and end, the first first."""
        return sorted({at_s for its in self.reserved.values() for each in its for at_s in (each.from_s, each.until_s)})

    def takes(self, node: str, entry: Entry) -> bool:
        """It may be placed there."""
        kept, project = self.reserved.get(node, ()), entry.job.project
        if entry.alone and not is_own(kept, project, self.now_s):
            return False
        return takes(kept, project, entry.job.demand.over_s, self.now_s)

    def _over_s(self, course: Course) -> float | None:
        begun_s = course.began[0] if course.began else None
        return over_s(self.now_s, limit_s=course.work.limit_s, begun_s=begun_s, left=None, recent=())

    def _pending(self) -> Iterator[Pending]:
        for course in self._arrived:
            work = course.work
            if course.waits:
                yield Pending(
                    id=work.id,
                    name=work.id,
                    priority=work.priority,
                    submitted_s=work.arrives_s,
                    demand=msgspec.structs.replace(work.demand, over_s=self._over_s(course)),
                    project=work.project,
                    preemptible=work.preemptible,
                    limit_s=limited_s(work.limit_s, course.began[0] if course.began else None, self.now_s),
                )

    def shares(self) -> tuple[Share, ...]:
        """Each project with what its jobs have now."""
        used = Counter[str]()
        for course in self._arrived:
            used[course.work.project] += course.work.devices if course.placed_s is not None else 0
        return tuple(msgspec.structs.replace(share, used=used[share.name]) for share in self.projects)

    def fleet(self) -> QueueFleet:
        """As the plan is given it."""
        lenders = [
            Lender(id=node, usable={MODEL: self.size}, free={MODEL: free}, reservations=self.reserved.get(node, ()))
            for node, free in self.free.items()
        ]
        highest = max((course.work.priority for course in self._arrived if course.waits), default=0)
        projects = self.shares()
        over = {share.name for share in projects if share.quota is not None and share.used > share.quota}
        asked = (at_s for course in self._arrived for at_s in course.asked)
        return QueueFleet(
            nodes=tuple(part for lender in lenders for part in until.lent(lender, None, self.now_s)),
            holders=tuple(self._holder(each, highest, over) for each in self._arrived if each.placed_s is not None),
            preempted=sum(self.now_s - at_s <= HOUR_S for at_s in asked),
            projects=projects,
        )

    def _holder(self, course: Course, highest: int, over: Collection[str]) -> Holder:
        work, now_s, placed_s = course.work, self.now_s, course.placed_s
        assert placed_s is not None, "it holds devices"
        may = work.preemptible and course.left_s is None and (work.priority < highest or work.project in over)
        trained = Trained(
            attempt=len(course.began),
            begun_s=placed_s,
            first_view_s=course.trains_s if course.trains_s <= now_s else None,
            step=round(course.trained_s(now_s) / work.step_s),
            kept=math.floor(course.kept_s(now_s) / work.step_s),
            recent=(work.step_s,) * 3,
            saves=course.saves(now_s),
            asks=Asks(
                number=len(course.asked),
                times=sum(now_s - at_s <= HOUR_S for at_s in course.asked),
                done_s=course.came_back_s,
            ),
        )
        held = Held(
            id=work.id,
            name=work.id,
            priority=work.priority,
            state=JobState.RUNNING,
            devices=Counter(dict.fromkeys(course.places, work.of_each)),
            left=math.ceil((course.ends_s - now_s) / work.step_s) if course.left_s is None else None,
            recent=(work.step_s,) * 3,
            yields_to=course.urgent if course.left_s is not None else None,
            stake=stake_of(trained, self.policy) if may else None,
            project=work.project,
            limit_s=work.limit_s,
            begun_s=course.began[0],
        )
        return holder_of(held, now_s)

    def _place(self, entry: Entry) -> None:
        """On the fullest nodes that hold it, whole; on those first that nobody else could use."""
        course = self.courses[entry.job.id]
        work = course.work
        fit = sorted(
            (not is_own(self.reserved.get(node, ()), work.project, self.now_s), free, node)
            for node, free in self.free.items()
            if free >= work.of_each and self.takes(node, entry)
        )
        assert len(fit) >= work.nodes, f"{work.id} was let start without room"
        course.places = tuple(node for _, _, node in fit[: work.nodes])
        for node in course.places:
            self.free[node] -= work.of_each
        course.placed_s, course.trains_s = self.now_s, self.now_s + work.start_s
        course.began.append(self.now_s)
        self._at(course.ends_s, work.id)
        if course.over_s < math.inf:
            self._at(course.over_s, work.id)

    def _make_room(self, plan: QueuePlan) -> None:
        if plan.victims:
            for job in self.choice(self, plan):
                self._yield(self.courses[job], plan.head)

    def _yield(self, course: Course, urgent: str) -> None:
        """What it has trained is kept, and it leaves; lost is the time in which its devices train nothing."""
        work, now_s = course.work, self.now_s
        newer = self.saves and course.trained_s(now_s) > course.kept_s(now_s)
        stops_s = min(course.ends_s, now_s + (work.save_s if newer else 0.0))
        left_s = min(stops_s + (work.save_s if newer else 0.0), max(stops_s, course.ends_s))
        course.asked.append(now_s)
        if course.ends_s <= stops_s:
            return  # It is done before that save is.
        kept_s = course.trained_s(stops_s) if newer else course.kept_s(stops_s)
        idle_s = stops_s - course.trains_s - (kept_s - course.done_s) if stops_s > course.trains_s else 0.0
        course.lost_gpu_s += work.devices * (max(0.0, idle_s) + left_s - stops_s + work.start_s)
        course.done_s, course.left_s, course.urgent = kept_s, left_s, urgent
        course.trains_s = math.inf
        self._at(left_s, work.id)
