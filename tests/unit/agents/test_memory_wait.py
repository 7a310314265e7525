"""Ranks do not start on a device whose last rank's memory is not free yet, but not for ever."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agents.config import load
from agents.core import events as ev
from agents.core.effects import Fork, ReadMemory
from agents.core.limits import EMPTY_DEVICE_BYTES, MEMORY_ANSWER_S, MEMORY_POLL_S, MEMORY_WAIT_S
from agents.core.step import next_deadline_s, step
from agents.errors import ConfigError
from agents.probes.simulated import SimulatedProbe
from controlplane.protocol.commands import StartRanks
from tests.properties.agents.world import World, launch, order

FULL = {0: 40 << 30, 1: 300 << 20}


def node_after_a_rank() -> World:
    """Replica 0 ran on devices 0 and 1 and both of its ranks are gone."""
    world = World()
    world.connect()
    start(world, 1)
    for ref in tuple(world.alive):
        world.kill_rank(ref)
    run(world)
    assert not world.alive and not world.state.ranks
    return world


def start(world: World, incarnation: int) -> None:
    envelope = order(incarnation, StartRanks(launch(incarnation=incarnation)), 1, 1)
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
    run(world)


def run(world: World) -> None:
    while world.pending:
        world.deliver(0)


def pass_time(world: World, seconds: float, used_bytes: Mapping[int, int | None] | None = None) -> int:
    """Every deadline within `seconds`; how often the memory was asked for. None: no answer."""
    end_s, asked = world.now_s + seconds, 0
    while (due_s := next_deadline_s(world.state)) is not None and due_s <= end_s:
        world.now_s = max(due_s, world.now_s)
        world.state, effects = step(world.state, ev.Tick(now_s=world.now_s))
        if any(isinstance(effect, ReadMemory) for effect in effects):
            asked += 1
            effects = tuple(effect for effect in effects if not isinstance(effect, ReadMemory))
            world._carry_out(effects)
            if used_bytes is not None:
                world.feed(ev.MemoryRead(now_s=world.now_s, used_bytes=used_bytes))
        else:
            world._carry_out(effects)
        run(world)
        if not world.state.launches:
            return asked
    world.now_s = end_s
    return asked


def detail(world: World) -> str:
    return world.state.commands["cmd_2"].detail


def test_a_first_start_and_one_on_an_empty_device_wait_for_nothing() -> None:
    world = World()
    world.used_bytes = dict(FULL)
    world.connect()
    start(world, 1)
    assert len(world.alive) == 2, "no rank was here before: whoever holds that memory is none of ours"
    for used in ({0: EMPTY_DEVICE_BYTES, 1: 0}, {0: None, 1: None}, {}):
        world = node_after_a_rank()
        world.used_bytes = dict(used)
        start(world, 2)
        assert len(world.alive) == 2 and world.now_s == 100.0
        assert detail(world).startswith("pids ") and "empty" not in detail(world)


def test_a_start_waits_until_the_memory_is_free_and_says_nothing_of_it() -> None:
    world = node_after_a_rank()
    world.used_bytes = dict(FULL)
    start(world, 2)
    assert not world.alive
    asked = pass_time(world, 3.0, FULL)
    assert not world.alive and asked == pytest.approx(3.0 / MEMORY_POLL_S, abs=1)
    pass_time(world, 1.0, {0: 10 << 20, 1: None})
    assert len(world.alive) == 2 and world.now_s < 104.0
    assert "empty" not in detail(world)


def test_when_the_time_is_up_ranks_start_all_the_same_and_the_answer_says_so() -> None:
    world = node_after_a_rank()
    world.used_bytes = dict(FULL)
    start(world, 2)
    pass_time(world, MEMORY_WAIT_S - 0.1, FULL)
    assert not world.alive
    pass_time(world, 0.2, FULL)
    assert len(world.alive) == 2
    assert detail(world).endswith("; not empty after 50 s: device 0 (40960 MiB used)")


def test_a_driver_that_hangs_or_comes_to_hang_holds_no_start_up_for_longer_than_that() -> None:
    world = node_after_a_rank()
    world.driver_hangs = True
    start(world, 2)
    pass_time(world, MEMORY_ANSWER_S)
    assert len(world.alive) == 2, "no reading, no wait"
    world = node_after_a_rank()
    world.used_bytes = dict(FULL)
    start(world, 2)
    pass_time(world, MEMORY_WAIT_S - 0.1)
    assert not world.alive, "the last thing heard is that it is full"
    pass_time(world, 0.2)
    assert len(world.alive) == 2


def test_a_device_under_another_living_rank_is_not_waited_for() -> None:
    world = node_after_a_rank()
    other = order(3, StartRanks(launch(replica=1)), 1, 1)
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(other,)))
    run(world)
    world.used_bytes = dict(FULL)
    start(world, 2)
    assert len(world.alive) == 4


def test_zero_seconds_ask_for_nothing() -> None:
    world = node_after_a_rank()
    world.state = replace(world.state, memory_wait_s=0.0)
    envelope = order(2, StartRanks(launch(incarnation=2)), 1, 1)
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
    effects: list[object] = []
    while world.pending:
        event = world.pending.pop(0)()
        assert event is not None
        world.state, done = step(world.state, event)
        effects += done
        world._carry_out(done)
    assert any(isinstance(effect, Fork) for effect in effects)
    assert not any(isinstance(effect, ReadMemory) for effect in effects)


def test_a_simulated_device_is_empty_the_moment_its_rank_has_ended() -> None:
    probe = SimulatedProbe(count=1, node_name="n1")
    for second in range(10):
        busy = probe.sample(float(second), frozenset({0}))[0]
    after = probe.sample(10.0, frozenset())[0]
    assert busy.memory_used_bytes > 10 << 30 > EMPTY_DEVICE_BYTES > after.memory_used_bytes


def test_settings_of_the_wait_are_read_and_wrong_ones_refused() -> None:
    config = load(["--memory-wait-s", "0"], {"HOLDFAST_AGENT_EMPTY_DEVICE_MIB": "1024"})
    assert (config.memory_wait_s, config.empty_device_mib) == (0.0, 1024)
    assert load([], {}).memory_wait_s == MEMORY_WAIT_S
    assert load([], {}).empty_device_mib << 20 == EMPTY_DEVICE_BYTES
    for wrong in (["--memory-wait-s", "-1"], ["--memory-wait-s", "500"], ["--empty-device-mib", "-1"]):
        with pytest.raises(ConfigError):
            load(wrong, {})
