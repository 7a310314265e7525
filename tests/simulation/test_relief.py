"""A replica that still trains is relieved: its successor is in before it leaves, whatever else happens."""

import os
from collections.abc import Callable

import pytest

from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.states import ReplicaState
from controlplane.simulator.world import World, WorldPlan, job_spec

SLOW = 1
ASK_S, END_S = 20.0, 75.0
SEEDS = (2, 3, 11)
WHOLE = 10 if "HOLDFAST_TEST_RELEASE" in os.environ else 5


def world_of(seed: int, *, min_replicas: int = 3, nodes: int = 5) -> World:
    spec = job_spec(min_replicas=min_replicas, spare_gpus=2 if nodes > 3 else 0)
    world = World(seed, plan=WorldPlan(spec=spec, nodes={f"node-{index}": 2 for index in range(nodes)}))
    world.start()
    return world


def find_slow(world: World, *, late_s: float = 0.1, epoch: int | None = None) -> None:
    """Replica 1 holds each step up, as its ranks' reports would say; of the view of `epoch`, or the newest."""
    rows = world.server.rows
    row = rows.replicas[SLOW]
    place = row.placements[0]
    found = SignalFact(
        id="straggler:1", kind="straggler", seen_s=world.kernel.now_s, replica=SLOW, incarnation=row.incarnation,
        rank=place.rank, node_id=place.node_id, device_index=place.device_index, value=0.4, threshold=0.7,
        evidence={"score": "relative", "cause": "compute", "late_s": late_s, "epoch": epoch or rows.epoch},
    )  # fmt: skip
    world.server.find(found)


def relieved(seed: int, **wishes: int) -> World:
    """A calm world in which replica 1 was found slow at 20 s, and decided about."""
    world = world_of(seed, **wishes)
    world.faults.schedule(END_S, 0)
    world.kernel.run(ASK_S)
    find_slow(world)
    until(world, lambda: "straggler:start_beside:cheaper_to_move" in world.server.rows.history)
    return world


def until(world: World, seen: Callable[[], bool], *, limit_s: float = 40.0) -> None:
    over_s = world.kernel.now_s + limit_s
    while not seen() and world.kernel.now_s < over_s:
        world.kernel.run(world.kernel.now_s + 0.01)
    assert seen(), world.server.rows.history


def kill(world: World, index: int) -> None:
    newest = max((p for p in world.trainer.processes.values() if p.index == index), key=lambda p: p.incarnation)
    world.faults.kill_rank(newest)


def starts(world: World) -> int:
    """Replica starts ordered in all."""
    launches = (row.envelope.body for row in world.server.rows.commands.values())
    return len({(b.launch.replica, b.launch.incarnation) for b in launches if isinstance(b, StartRanks)})


def judged(world: World, *, contributors: tuple[int, ...]) -> None:
    """Nothing was broken, nobody was started again from a checkpoint, and all who should train do."""
    world.kernel.run(END_S)
    before = world.server.rows.committed_step
    world.kernel.run(END_S + 10.0)
    rows = world.server.rows
    assert (rows.state, rows.restarts, world.checkers.violations) == ("running", 0, [])
    assert tuple(index for index, row in sorted(rows.replicas.items()) if row.contributing) == contributors
    assert not any(row.caught_up == "standby" for row in rows.replicas.values() if not row.contributing)
    assert rows.committed_step > before + 5
    assert rows.signals == {}


@pytest.mark.parametrize("min_replicas", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_replica_trains_until_its_successor_takes_its_place_in_one_view(seed: int, min_replicas: int) -> None:
    world = relieved(seed, min_replicas=min_replicas)
    rows = world.server.rows
    # All three train until the view that swaps them is installed, and nothing of the old one ends before.
    while "swap:retire:place_taken" not in rows.history:
        assert not any(rank_gone(world, SLOW))
        world.kernel.run(world.kernel.now_s + 0.001)
        assert rows.install is None or len(rows.install.contributors) == 3
    assert rows.view is not None
    assert rows.install is not None and rows.install.epoch == rows.view.epoch
    assert rows.install.contributors == (0, 2, 3)
    judged(world, contributors=(0, 2, 3))
    assert (starts(world), world.checkers.evictions) == (4, 1)


def rank_gone(world: World, index: int) -> list[bool]:
    return [not rank.alive for p in world.trainer.processes.values() if p.index == index for rank in p.ranks.values()]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_successor_that_dies_in_its_setup_costs_nothing_and_is_started_again(seed: int) -> None:
    world = relieved(seed)
    until(world, lambda: any(p.index == 3 for p in world.trainer.processes.values()))
    kill(world, 3)
    judged(world, contributors=(0, 2, 3))
    assert starts(world) == 5
    assert "replica_failure:hold_and_replace:rank_exit" not in world.server.rows.history


@pytest.mark.parametrize("seed", SEEDS)
def test_a_successor_that_dies_while_it_catches_up_leaves_the_old_one_where_it_is(seed: int) -> None:
    world = relieved(seed)
    rows = world.server.rows
    until(
        world,
        lambda: 3 in rows.replicas and rows.replicas[3].state is ReplicaState.CATCHING_UP and rows.install is not None,
    )
    kill(world, 3)
    until(world, lambda: rows.replicas[3].incarnation == 2)
    assert rows.replicas[SLOW].state == "active"
    judged(world, contributors=(0, 2, 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_successor_that_dies_before_the_view_that_swaps_them_is_installed_gives_the_place_back(seed: int) -> None:
    world = relieved(seed)
    rows = world.server.rows
    until(world, lambda: "swap:swap:successor_caught_up" in rows.history)
    assert rows.install is None
    kill(world, 3)
    world.kernel.run(world.kernel.now_s + 1.5)
    assert rows.replicas[SLOW].incarnation == 1 and not any(rank_gone(world, SLOW))
    judged(world, contributors=(0, 2, 3))


@pytest.mark.parametrize("min_replicas", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_old_one_that_dies_while_the_new_one_starts_is_started_no_second_time(seed: int, min_replicas: int) -> None:
    world = relieved(seed, min_replicas=min_replicas)
    kill(world, SLOW)
    judged(world, contributors=(0, 2, 3))
    assert starts(world) == 4


@pytest.mark.parametrize("min_replicas", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_third_that_dies_meanwhile_is_replaced_and_the_swap_still_comes(seed: int, min_replicas: int) -> None:
    world = relieved(seed, min_replicas=min_replicas)
    kill(world, 2)
    judged(world, contributors=(0, 2, 3))
    assert starts(world) == 5


@pytest.mark.parametrize("after", ["straggler:start_beside:cheaper_to_move", "swap:swap:successor_caught_up"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_is_away_in_between_finishes_what_it_began(seed: int, after: str) -> None:
    world = relieved(seed)
    until(world, lambda: after in world.server.rows.history)
    world.server.pause(9.0)
    judged(world, contributors=(0, 2, 3))


@pytest.mark.parametrize("seed", SEEDS)
def test_its_place_is_taken_also_where_the_exchange_of_the_view_without_it_fails_again(seed: int) -> None:
    world = relieved(seed)
    until(world, lambda: "swap:swap:successor_caught_up" in world.server.rows.history)
    for number in range(20):
        world.kernel.after(0.4 * number, world.faults.blip)
    until(world, lambda: any(entry.startswith("swap:retire") for entry in world.server.rows.history))
    assert world.checkers.violations == []


def test_without_free_devices_it_is_not_started_beside() -> None:
    world = world_of(3, nodes=3)
    world.faults.schedule(END_S, 0)
    world.kernel.run(ASK_S)
    find_slow(world)
    world.kernel.run(ASK_S + 10.0)
    assert not any("start_beside" in entry for entry in world.server.rows.history)
    assert starts(world) == 3


def test_where_the_others_are_better_off_without_it_it_is_ended_first() -> None:
    world = world_of(3, min_replicas=1)
    world.faults.schedule(END_S, 0)
    world.kernel.run(ASK_S)
    find_slow(world, late_s=5.0)
    until(world, lambda: "straggler:move:cheaper_to_move" in world.server.rows.history)


@pytest.mark.parametrize("min_replicas", [1, 3])
def test_no_seed_breaks_an_invariant_while_replicas_are_relieved(min_replicas: int) -> None:
    broken = {}
    for seed in range(WHOLE):
        plan = WorldPlan(spec=job_spec(min_replicas=min_replicas), nodes={f"node-{index}": 2 for index in range(5)})
        world = World(seed, plan=plan)
        for moment_s in (18.0, 45.0, 70.0):
            world.kernel.after(moment_s, ask_again, world)
        world.kernel.after(150.0, world.server.rows.signals.pop, "straggler:1", None)
        # That replica 1 is slow is found here and not so in the world: to end it for that is no violation.
        found = tuple(text for text in world.run().violations if "healthy r1." not in text or "cheaper_to" not in text)
        if found:
            broken[seed] = found
    assert broken == {}


def ask_again(world: World) -> None:
    rows = world.server.rows
    if SLOW in rows.replicas and rows.replicas[SLOW].state == "active" and not world.server.paused:
        find_slow(world)
