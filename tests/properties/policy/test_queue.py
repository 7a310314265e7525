"""The queue's promises over random fleets and queues, with the product's own placement."""

import msgspec
import pytest

from controlplane.policy.queue.place import HAS_ROOM, Turn
from controlplane.policy.queue.room import Room, Types
from controlplane.policy.queue.rows import Entry, Pending
from controlplane.policy.queue.schedule import schedule
from controlplane.protocol.spec import ranks_per_replica, replica_count
from tests.properties.policy.queue_worlds import CONFIG, NOW_S, QueueWorld

SEEDS = range(1500)
PASSED_OVER = frozenset({Turn.HELD, Turn.TOO_LARGE})


def fits(world: QueueWorld, job: Pending) -> bool:
    """On what is free now, wherever it is placed."""
    nodes = world.fleet().nodes
    return Room(nodes, Types(model for node in nodes for model in node.usable), [job.demand]).fits(job.demand)


def placeable(world: QueueWorld) -> list[Entry]:
    """Whoever may start, in any sequence: passes of jobs come as they come."""
    found = [entry for entry in world.plan().entries if entry.may_start]
    world.random.shuffle(found)
    return found


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_a_start_is_whole_and_takes_no_more_than_was_weighed(first: int) -> None:
    for seed in SEEDS[first : first + 100]:
        world = QueueWorld(seed, reserves=True)
        for entry in placeable(world):
            job, spec = entry.job, world.specs[entry.job.id]
            before = world.fleet()
            taken = world.start(entry)
            if taken is None:
                assert world.fleet() == before, "nothing of it was started"
                continue
            ranks = sum(job.id in (holder,) for used in world.used.values() for holder in used.values())
            spares = sum(taken.values()) - ranks
            assert ranks == replica_count(spec) * ranks_per_replica(spec.parallelism)
            assert spares >= spec.resources.spares.gpus
            assert ranks <= job.demand.most
            assert len(taken.keys() - world.whole.keys()) <= job.demand.touches


def after_start(world: QueueWorld, entry: Entry, ahead: list[Entry]) -> None:
    """What was promised to those ahead of a job that has been placed still holds."""
    for other in ahead:
        now = world.entry(other.job.id)
        assert now is not None
        if other.turn in PASSED_OVER:
            continue
        why = f"{entry.job.id} ({entry.turn}) was placed before {other.job.id} ({other.turn})"
        if other.turn in (Turn.FIRST, Turn.BESIDE, Turn.NEXT, Turn.BACKFILL):
            assert fits(world, other.job) or now.turn is not Turn.NO_ROOM, why
        elif other.expected_s is not None:
            in_time = now.expected_s is not None and now.expected_s <= other.expected_s
            assert now.may_start or now.turn is Turn.NEXT or in_time, why


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_nobody_ahead_loses_room_or_an_expected_start_to_a_job_behind(first: int) -> None:
    for seed in SEEDS[first : first + 100]:
        world = QueueWorld(seed, reserves=True)
        for _ in range(len(world.waiting)):
            plan = world.plan()
            free = [entry for entry in plan.entries if entry.may_start]
            world.random.shuffle(free)
            for entry in free:
                ahead = list(plan.entries[: entry.place - 1])
                if world.start(entry) is not None:
                    after_start(world, entry, ahead)
                    break
            else:
                break


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_where_nobody_knows_when_the_head_has_room_nothing_takes_what_it_could_use(first: int) -> None:
    for seed in SEEDS[first : first + 100]:
        world = QueueWorld(seed, reserves=True)
        plan = world.plan()
        head = next((entry for entry in plan.entries if entry.job.id == plan.head), None)
        if head is None or head.expected_s is not None:
            continue
        models = {m for m in world.models.values() if (head.job.demand.gpu_type or "") in m}
        for entry in plan.entries[head.place :]:
            theirs = {m for m in world.models.values() if (entry.job.demand.gpu_type or "") in m}
            open_nodes = {m for node, m in world.models.items() if node not in world.out}
            if not world.reserved:
                assert not entry.may_start or not (models & theirs & open_nodes)
            nodes = world.fleet().nodes
            types = Types(model for node in nodes for model in node.usable)
            assert not entry.may_start or entry.alone or not types.overlap(head.job.demand, entry.job.demand)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_the_first_of_a_project_starts_on_free_nodes_that_are_reserved_for_it_whoever_is_ahead(first: int) -> None:
    alone = 0
    for seed in SEEDS[first : first + 100]:
        world = QueueWorld(seed, reserves=True)
        seen, nodes = set[str](), world.fleet().nodes
        types = Types(model for node in nodes for model in node.usable)
        for entry in world.plan().entries:
            demand = msgspec.structs.replace(entry.job.demand, project=entry.job.project, alone=True)
            fits_alone = entry.job.project and Room(nodes, types, [demand]).fits(demand)
            if entry.turn not in PASSED_OVER and entry.job.project not in seen and fits_alone:
                assert entry.may_start and entry.turn in HAS_ROOM, f"seed {seed}: {entry.job.id} ({entry.turn})"
            seen.add(entry.job.project)
            alone += entry.alone
            if entry.alone:
                assert world.start(entry) is not None, f"seed {seed}: its own nodes do not hold {entry.job.id}"
                break
    assert alone


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_the_first_that_nothing_else_holds_may_always_start_and_the_rest_wait_for_one_ahead(first: int) -> None:
    for seed in SEEDS[first : first + 100]:
        entries = QueueWorld(seed, reserves=True).plan().entries
        lined = [entry for entry in entries if entry.turn not in PASSED_OVER]
        assert not lined or lined[0].may_start
        for entry in entries:
            ahead = {other.job.id for other in entries[: entry.place - 1] if other.turn not in PASSED_OVER}
            assert entry.may_start or entry.turn is Turn.HELD or entry.behind in ahead


@pytest.mark.parametrize("first", range(0, len(SEEDS), 100))
def test_every_job_that_the_fleet_can_hold_starts_as_others_end(first: int) -> None:
    for seed in SEEDS[first : first + 100]:
        world = QueueWorld(seed, reserves=True)
        while True:
            started = next((e for e in placeable(world) if world.start(e) is not None), None)
            if started is None and not world.ends_s:
                break
            if started is None or world.random.random() < 0.3:
                world.end(world.random.choice(sorted(world.ends_s)))
        for entry in world.plan().entries:
            assert entry.turn in PASSED_OVER, f"seed {seed}: {entry.job.id} waits on an idle fleet"


@pytest.mark.parametrize("first", range(0, len(SEEDS), 500))
def test_equal_queues_give_equal_plans_in_whatever_sequence_rows_come(first: int) -> None:
    for seed in SEEDS[first : first + 500]:
        world = QueueWorld(seed, reserves=True)
        plan, fleet, queue = world.plan(), world.fleet(), list(world.waiting.values())
        world.random.shuffle(queue)
        assert schedule(queue, fleet, CONFIG, NOW_S) == plan
