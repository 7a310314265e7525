"""A queue over days, in coarse grain: the product's own plan decides, and a job is an interval of work.

`policy.queue.schedule` plans at each arrival, end and departure, and each `LOOK_S` while somebody waits. A job that may
start takes whole parts of nodes at once; one that yields saves, trains on until that save is durable, and leaves when
what it trained since is saved too. One of several replicas may give some, trains on with the others, and takes them
back by the product's plan for that (`growth`). No rank, network or fault of a process is simulated: that is `world`'s.
Used by benchmarks and by properties of the queue over many seeds.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from controlplane.changes.assembly.queue import HOUR_S, Asks, Held, Piece, Trained, holder_of, stake_of
from controlplane.policy.config import PolicyConfig
from controlplane.policy.queue import until
from controlplane.policy.queue.ends import limited_s, over_s
from controlplane.policy.queue.place import HAS_ROOM
from controlplane.policy.queue.rows import (
    Entry,
    Holder,
    Lender,
    Pending,
    QueueFleet,
    QueuePlan,
    Share,
    config_of,
)
from controlplane.policy.queue.schedule import growth, schedule
from controlplane.policy.reserved import Reservation, is_own, takes
from controlplane.protocol.states import JobState
from controlplane.simulator.courses import Course, Work, demand

LOOK_S = 120.0
MODEL = "H100"


Choice = Callable[["Queue", QueuePlan], Mapping[str, Sequence[int]]]
"""Who yields, and which replicas of it leave; none: all of it."""


def least_lost(queue: "Queue", plan: QueuePlan) -> Mapping[str, Sequence[int]]:
    """The product's: those that the plan names."""
    return {victim.id: [index for index, _ in victim.gives] for victim in plan.victims}


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
        elif any(at_s <= now_s for at_s in course.joining.values()):
            self._joins(course)
        elif any(at_s <= now_s for at_s in course.leaving.values()):
            self._part_leaves(course)
        elif course.placed_s is not None and course.left_s is None and course.ends_s <= now_s + 1e-6:
            self._give_back(course)
            course.ended_s, course.done_s = now_s, course.work.work_s

    def _give_back(self, course: Course) -> None:
        for index in tuple(course.places):
            self._part_back(course, index)
        course.placed_s, course.leaving, course.joining = None, {}, {}

    def _part_back(self, course: Course, index: int) -> None:
        for node in course.places.pop(index):
            self.free[node] += course.work.part[1]

    def _part_leaves(self, course: Course) -> None:
        """Those whose step is done. The others lose nothing."""
        for index in [index for index, at_s in course.leaving.items() if at_s <= self.now_s]:
            del course.leaving[index]
            self._part_back(course, index)
        course.came_back_s = self.now_s
        course.gives_to = course.gives_to if course.leaving else ""

    def _joins(self, course: Course) -> None:
        """The one that was taken back trains with the others."""
        course.trains_with(course.training + len(course.joining), self.now_s)
        course.joining.clear()
        self._at(course.ends_s, course.work.id)

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
        for course in self._arrived:
            self._grow(course)
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

    def _grow(self, course: Course) -> None:
        """It takes one replica back where the product's plan lets it: one at a time, and while nothing else happens."""
        work, (nodes, of_each) = course.work, course.work.part
        whole = len(course.places) == work.replicas or course.placed_s is None
        if whole or course.left_s is not None or course.leaving or course.joining:
            return
        if sum(free >= of_each for free in self.free.values()) < nodes:
            return
        grower = Pending(
            id=work.id,
            name=work.id,
            priority=work.priority,
            submitted_s=work.arrives_s,
            demand=demand(nodes, of_each),
            project=work.project,
            preemptible=work.preemptible,
        )
        plan = growth(list(self._pending()), self.fleet(), self.config, self.now_s, grower)
        entry = next(each for each in plan.entries if each.job.id == work.id)
        if entry.may_start and entry.turn in HAS_ROOM:
            index = min(set(range(work.replicas)) - set(course.places))
            course.places[index] = self._taken(entry, nodes, of_each)
            course.grown_s, course.joining[index] = self.now_s, self.now_s + work.start_s
            course.lost_gpu_s += nodes * of_each * work.start_s
            self._at(course.joining[index], work.id)

    def shares(self) -> tuple[Share, ...]:
        """Each project with what its jobs have now."""
        used = Counter[str]()
        for course in self._arrived:
            used[course.work.project] += course.devices
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
        suffered = self.suffered()
        holders = (self._holder(each, highest, over) for each in self._arrived if each.placed_s is not None)
        return QueueFleet(
            nodes=tuple(part for lender in lenders for part in until.lent(lender, None, self.now_s)),
            holders=tuple(msgspec.structs.replace(each, suffered=suffered[each.project]) for each in holders),
            preempted=sum(suffered.values()),
            projects=projects,
        )

    def suffered(self) -> Counter[str]:
        """How often jobs of each project were asked to yield within an hour."""
        found = Counter[str]()
        for course in self._arrived:
            found[course.work.project] += sum(self.now_s - at_s <= HOUR_S for at_s in course.asked)
        return found

    def _holder(self, course: Course, highest: int, over: Collection[str]) -> Holder:
        work, now_s, placed_s = course.work, self.now_s, course.placed_s
        assert placed_s is not None, "it holds devices"
        step_s = work.step_s * work.replicas / course.training
        stays = course.left_s is None and not course.leaving
        may = work.preemptible and stays and (work.priority < highest or work.project in over)
        trained = Trained(
            attempt=len(course.began),
            begun_s=placed_s,
            first_view_s=course.trains_s if course.trains_s <= now_s else None,
            step=round(course.trained_s(now_s) / work.step_s),
            kept=math.floor(course.kept_s(now_s) / work.step_s),
            recent=(step_s,) * 3,
            saves=course.saves(now_s),
            asks=Asks(
                number=len(course.asked),
                times=sum(now_s - at_s <= HOUR_S for at_s in course.asked),
                done_s=course.came_back_s,
            ),
            grown_s=course.grown_s,
        )
        pieces = tuple(self._pieces(course))
        held = Held(
            id=work.id,
            name=work.id,
            priority=work.priority,
            state=JobState.RUNNING,
            devices=course.by_node(),
            left=math.ceil((course.ends_s - now_s) / step_s) if course.left_s is None else None,
            recent=(step_s,) * 3,
            yields_to=course.urgent if course.left_s is not None else None,
            stake=stake_of(trained, self.policy) if may else None,
            gives=[(index, 1) for index in course.leaving],
            gives_to=course.gives_to,
            pieces=pieces if work.replicas > 1 else (),
            least=work.least,
            project=work.project,
            limit_s=work.limit_s,
            begun_s=course.began[0],
        )
        return holder_of(held, now_s)

    @staticmethod
    def _pieces(course: Course) -> Iterator[Piece]:
        """Its replicas; one that is still to join is none that the others count on."""
        for index, nodes in course.places.items():
            devices = {node: nodes.count(node) * course.work.part[1] for node in nodes}
            yield Piece(index=index, incarnation=1, devices=devices, trains=index not in course.joining)

    def _taken(self, entry: Entry, nodes: int, of_each: int) -> tuple[str, ...]:
        """The fullest nodes that hold it, whole, those first that nobody else could use; it has them now."""
        fit = sorted(
            (not is_own(self.reserved.get(node, ()), entry.job.project, self.now_s), free, node)
            for node, free in self.free.items()
            if free >= of_each and self.takes(node, entry)
        )
        assert len(fit) >= nodes, f"{entry.job.id} was let start without room"
        for _, _, node in fit[:nodes]:
            self.free[node] -= of_each
        return tuple(node for _, _, node in fit[:nodes])

    def _place(self, entry: Entry) -> None:
        """Whole; its replicas are parts of that."""
        course = self.courses[entry.job.id]
        work, (nodes, _) = course.work, course.work.part
        taken = self._taken(entry, work.nodes, work.of_each)
        course.places = {
            index: taken if work.nodes < work.replicas else taken[index * nodes : (index + 1) * nodes]
            for index in range(work.replicas)
        }
        course.begins(self.now_s)
        self._at(course.ends_s, work.id)
        if course.over_s < math.inf:
            self._at(course.over_s, work.id)

    def _make_room(self, plan: QueuePlan) -> None:
        if plan.victims:
            for job, gives in self.choice(self, plan).items():
                self._yield(self.courses[job], plan.head, gives)

    def _yield(self, course: Course, urgent: str, gives: Sequence[int]) -> None:
        """Those replicas leave after this step; without any all of it does."""
        course.asked.append(self.now_s)
        if not gives:
            return self._yield_all(course, urgent)
        leaves_s = self.now_s + course.work.step_s * course.work.replicas / course.training
        course.leaving |= dict.fromkeys(gives, leaves_s)
        course.gives_to = urgent
        course.trains_with(course.training - len(gives), self.now_s)
        self._at(leaves_s, course.work.id)
        self._at(course.ends_s, course.work.id)

    def _yield_all(self, course: Course, urgent: str) -> None:
        """What it has trained is kept, and it leaves; lost is the time in which its devices train nothing."""
        work, now_s = course.work, self.now_s
        newer = self.saves and course.trained_s(now_s) > course.kept_s(now_s)
        stops_s = min(course.ends_s, now_s + (work.save_s if newer else 0.0))
        left_s = min(stops_s + (work.save_s if newer else 0.0), max(stops_s, course.ends_s))
        if course.ends_s <= stops_s:
            return  # It is done before that save is.
        kept_s = course.trained_s(stops_s) if newer else course.kept_s(stops_s)
        behind_s = max(0.0, course.run_s(stops_s) - (kept_s - course.done_s))
        course.lost_gpu_s += work.devices * (behind_s + work.start_s) + course.devices * (left_s - stops_s)
        course.done_s, course.left_s, course.urgent = kept_s, left_s, urgent
        course.trains_s = course.since_s = math.inf
        course.joining = {}
        self._at(left_s, work.id)
