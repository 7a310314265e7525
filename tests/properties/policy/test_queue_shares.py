"""What quotas promise, over random fleets, projects and queues, with the code that places jobs: no quota is exceeded,
nothing that is free for a project is kept from it, what was lent comes back, and nobody waits for ever."""

from collections import Counter

import msgspec
import pytest

from controlplane.policy.errors import PolicyError
from controlplane.policy.layout import plan_layout
from controlplane.policy.placement import is_type
from controlplane.policy.queue.demand import later_demand
from controlplane.policy.queue.place import HAS_ROOM, Turn
from controlplane.policy.queue.rows import Entry, Lender, Pending, QueueConfig, QueueFleet, QueuePlan, Share
from controlplane.policy.queue.schedule import schedule
from controlplane.protocol.spec import TrainSpec, ranks_per_replica, replica_count
from tests.properties.policy.queue_worlds import NOW_S, QueueWorld
from tests.properties.policy.test_preemption import PreemptWorld

CONFIG = QueueConfig(preempt_patience_s=0.0)
NAMES = ("blue", "green", "red", "free")
"""The last has no quota."""


class SharedWorld(PreemptWorld):
    """Jobs of four projects, three of them with a quota."""

    def __init__(self, seed: int) -> None:
        self.projects: dict[str, str] = {}
        self.shares: tuple[Share, ...] = ()
        super().__init__(seed)

    def submit(self, job_id: str) -> None:
        if not self.shares:
            self._quotas()
        QueueWorld.submit(self, job_id)
        self.projects[job_id] = self.random.choice(NAMES)
        alone = self.random.random() < 0.2
        self.waiting[job_id] = msgspec.structs.replace(
            self.waiting[job_id], project=self.projects[job_id], preemptible=not alone
        )
        self.priorities[job_id] = self.waiting[job_id].priority

    def _quotas(self) -> None:
        pick, devices = self.random, sum(self.sizes.values())
        self.shares = tuple(
            Share(
                name=name,
                quota=pick.randint(0, devices),
                borrow=pick.choice((None, None, 0, 4)),
                lend=pick.choice((None, None, 0, 4)),
                weight=pick.choice((1, 1, 3)),
            )
            for name in NAMES[:-1]
        )

    def counted(self) -> Counter[str]:
        """Devices that count for each project, added up from the jobs that run."""
        holders = Counter(job_id for used in self.used.values() for job_id in used.values())
        found = Counter[str]()
        for job_id in self.ends_s:
            found[self.projects[job_id]] += holders[job_id] + self.specs[job_id].resources.spares.gpus
        return found

    def fleet(self) -> QueueFleet:
        fleet, used = super().fleet(), self.counted()
        holders = tuple(msgspec.structs.replace(each, project=self.projects[each.id]) for each in fleet.holders)
        projects = tuple(msgspec.structs.replace(share, used=used[share.name]) for share in self.shares)
        return msgspec.structs.replace(fleet, holders=holders, projects=projects)

    def plan(self) -> QueuePlan:
        return schedule(self.waiting.values(), self.fleet(), CONFIG, self.now_s)


def owing(seed: int) -> SharedWorld:
    """Some projects have twice their quota or more, and the others have hardly used theirs."""
    world = SharedWorld(seed)
    counted, devices = world.counted(), sum(world.sizes.values())
    quotas = {name: counted[name] // 2 if world.random.random() < 0.5 else devices for name in NAMES}
    world.shares = tuple(msgspec.structs.replace(share, quota=quotas[share.name]) for share in world.shares)
    return world


def lendable(world: SharedWorld, to: str) -> int:
    """What the other projects lend and do not use, less what they have borrowed themselves, written down anew."""
    used, found = world.counted(), 0
    for share in world.shares:
        if share.name != to and share.quota is not None:
            unused = max(0, share.quota - used[share.name])
            found += unused if share.lend is None else min(unused, share.lend)
            found -= max(0, used[share.name] - share.quota)
    return max(0, found)


def needs(world: SharedWorld, job_id: str) -> int:
    """Of the quota of its project: its ranks and the spares that it asks for."""
    asked = world.specs[job_id].resources
    ranks = world.specs[job_id].parallelism.pp
    return asked.nodes * asked.gpus_per_node // ranks * ranks + asked.spares.gpus


def in_some_layout(world: SharedWorld, entry: Entry) -> int:
    """Devices of the attempt that the product would place now; 0: none."""
    spec = world.specs[entry.job.id]
    free = sum(lender.free.get(model, 0) for lender in world.fleet().nodes for model in suiting(lender, spec))
    try:
        layout = plan_layout(spec, free if entry.at_most is None else min(free, entry.at_most))
    except PolicyError:
        return 0
    return layout.replicas * ranks_per_replica(layout.parallelism)


def suiting(lender: Lender, spec: TrainSpec) -> list[str]:
    """Models of the node that are of the type."""
    wanted = spec.resources.gpu_type
    return [model for model in lender.free if wanted is None or is_type(model, wanted)]


def allowed(world: SharedWorld, job: Pending) -> bool:
    """Its project may use so many more, if nobody else waited."""
    return within(world, job, needs(world, job.id))


def within(world: SharedWorld, job: Pending, takes: int) -> bool:
    """As `allowed`, of so many devices."""
    share = next((each for each in world.shares if each.name == job.project), None)
    if share is None or share.quota is None:
        return True
    over = world.counted()[share.name] + takes - share.quota
    limit = lendable(world, share.name) if share.borrow is None else min(share.borrow, lendable(world, share.name))
    return over <= 0 or (job.preemptible and over <= limit)


def ready(plan: QueuePlan) -> list[Entry]:
    """Who may start, and has room."""
    return [entry for entry in plan.entries if entry.may_start and entry.turn in HAS_ROOM]


@pytest.mark.parametrize("first", range(0, 1200, 300))
def test_whoever_starts_is_within_its_quota_and_what_others_lend(first: int) -> None:
    started = borrowed = 0
    for seed in range(first, first + 300):
        world = SharedWorld(seed)
        for _ in range(12):
            able = ready(world.plan())
            if not able:
                break
            job = world.random.choice(able).job
            assert allowed(world, job), f"{seed}: {job.id} of {job.project} exceeds what its project may use"
            share = next((each for each in world.shares if each.name == job.project), None)
            borrowed += share is not None and world.counted()[job.project] + needs(world, job.id) > (share.quota or 0)
            started += world.place(job.id) is not None
    assert started > 200 and borrowed > 10, f"{started} start, {borrowed} of them borrow"


@pytest.mark.parametrize("first", range(0, 900, 300))
def test_all_that_may_start_by_one_plan_may_start_side_by_side(first: int) -> None:
    for seed in range(first, first + 300):
        world = SharedWorld(seed)
        able = ready(world.plan())
        world.random.shuffle(able)
        for entry in able:
            assert allowed(world, entry.job), f"{seed}: {entry.job.id} exceeds its quota behind others of its plan"
            world.place(entry.job.id)


@pytest.mark.parametrize("first", range(0, 900, 300))
def test_who_has_trained_starts_within_its_quota_in_every_layout(first: int) -> None:
    """It may be placed in another layout wherever the plan does not keep it from that, whatever its turn."""
    bounded = others = 0
    for seed in range(first, first + 300):
        world = SharedWorld(seed)
        for job_id in sorted(world.waiting):
            least = world.random.randint(1, replica_count(world.specs[job_id]))
            again = msgspec.structs.replace(world.specs[job_id].resources, min_replicas=least)
            spec = world.specs[job_id] = msgspec.structs.replace(world.specs[job_id], resources=again)
            world.waiting[job_id] = msgspec.structs.replace(world.waiting[job_id], demand=later_demand(spec))
        for entry in world.plan().entries:
            takes = in_some_layout(world, entry) if entry.may_start else 0
            others += takes > 0 and entry.turn is Turn.TOO_LARGE
            bounded += takes > 0 and entry.at_most is not None
            assert not takes or within(world, entry.job, takes), f"{seed}: {entry.job.id} ({entry.turn}) takes {takes}"
    assert bounded > 20 and others > 5, f"{bounded} are bounded, {others} start in another layout"


@pytest.mark.parametrize("first", range(0, 900, 300))
def test_a_quota_keeps_waiting_only_who_exceeds_it_or_is_behind_one_that_does(first: int) -> None:
    found = 0
    for seed in range(first, first + 300):
        world = SharedWorld(seed)
        plan = world.plan()
        quotas = {share.name: share.quota or 0 for share in world.shares}
        for entry in plan.entries:
            if entry.turn is not Turn.QUOTA:
                continue
            found += 1
            ahead = [e.job for e in plan.entries[: entry.place - 1] if e.turn is not Turn.HELD]
            waits = sum(needs(world, job.id) for job in world.waiting.values() if job.id != entry.job.id)
            keeps = [j for j in ahead if j.project == entry.job.project]
            free = quotas[entry.job.project] - world.counted()[entry.job.project] - needs(world, entry.job.id)
            reason = not allowed(world, entry.job) or keeps or (free < 0 and waits)
            assert reason, f"{seed}: {entry.job.id} waits for a quota that it would not exceed"
    assert found > 50


@pytest.mark.parametrize("first", range(0, 2400, 800))
def test_what_is_taken_back_was_borrowed_and_only_by_who_is_within_its_quota(first: int) -> None:
    found = 0
    for seed in range(first, first + 800):
        world = owing(seed)
        plan, counted = world.plan(), world.counted()
        head = world.waiting.get(plan.head)
        if head is None:
            continue
        quotas = {share.name: share.quota or 0 for share in world.shares}
        back = [victim for victim in plan.victims if victim.borrows]
        found += len(back)
        for victim in plan.victims:
            project = world.projects[victim.id]
            over = counted[project] - quotas.get(project, counted[project])
            if victim.borrows:
                assert project == victim.borrows != head.project and over > 0
                assert counted[head.project] + needs(world, head.id) <= quotas[head.project]
            else:
                assert victim.priority < head.priority
                owns = project in quotas and project != head.project and over <= 0
                assert not owns, f"{seed}: {victim.id} runs on what is its project's own"
        for project in {victim.borrows for victim in back}:
            sizes = sorted(victim.devices for victim in back if victim.borrows == project)
            owed = counted[project] - quotas[project]
            assert sum(sizes) - sizes[-1] < owed, f"{seed}: {project} gives back {sizes} and owes {owed}"
    assert found > 5, "something is taken back in these worlds"


@pytest.mark.parametrize("seed", range(40))
def test_nobody_within_its_quota_waits_for_ever(seed: int) -> None:
    world = SharedWorld(seed)
    for number in range(10):
        world.submit(f"x{number:02}")
    quotas = {share.name: share.quota or 0 for share in world.shares}
    for _ in range(200):
        for entry in ready(world.plan()):
            if entry.job.id in world.waiting:
                world.place(entry.job.id)
        if world.ends_s:
            world.end(min(world.ends_s, key=lambda job_id: world.begun.index(job_id)))
    for entry in world.plan().entries:
        within = needs(world, entry.job.id) <= quotas.get(entry.job.project, 1 << 30)
        over = entry.turn in (Turn.HELD, Turn.TOO_LARGE) or not within
        assert over, f"{seed}: {entry.job.id} of {entry.job.project} waits: {entry.turn} {entry.why}"


def test_without_a_quota_projects_and_weights_change_no_plan() -> None:
    for seed in range(300):
        world = SharedWorld(seed)
        queue, fleet = list(world.waiting.values()), world.fleet()
        loose = tuple(msgspec.structs.replace(share, quota=None) for share in fleet.projects)
        plain = [msgspec.structs.replace(job, project="", preemptible=True) for job in queue]
        named = schedule(queue, msgspec.structs.replace(fleet, projects=loose), CONFIG, NOW_S)
        alone = schedule(plain, msgspec.structs.replace(fleet, projects=()), CONFIG, NOW_S)
        assert [(e.job.id, e.turn, e.may_start, e.behind) for e in named.entries] == [
            (e.job.id, e.turn, e.may_start, e.behind) for e in alone.entries
        ]
        assert [victim.id for victim in named.victims] == [victim.id for victim in alone.victims]
