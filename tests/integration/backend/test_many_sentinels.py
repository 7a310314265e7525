"""Three real sentinels on four shards, killed, stopped, paused and started at random, while devices break.

Each broken device is found once, nothing else is, and how long a shard had no living leader is printed. Long:
`make test-release` runs it; HOLDFAST_SOAK_S says for how long, HOLDFAST_SOAK_SEED in which way.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from pytest_django.fixtures import Settings

from tests.integration.backend.conftest import eventually, submit
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import Process, RedisServer, Stack
from tests.integration.backend.test_two_sentinels import QUIET_S, Two, break_device, findings, of_devices

LONG_S = float(os.environ.get("HOLDFAST_SOAK_S", "120"))
SEED = int(os.environ.get("HOLDFAST_SOAK_SEED", "1"))
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(LONG_S + 240.0),
    pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="long: `make test-release` runs it"),
]
SHARDS, NODES, DEVICES = 4, 8, 4
WARM_S = 12.0
NEW_S = 6.0


class Storm:
    """What happens to the sentinels. One that has just begun is left alone, and one at least lives."""

    def __init__(self, processes: list[Process], seed: int) -> None:
        self.processes, self.random, self.faults = processes, random.Random(seed), 0
        self.since = {process.name: 0.0 for process in processes}
        self.back: dict[str, tuple[float, bool]] = {}
        self.next_s = 0.0

    def up(self) -> list[Process]:
        """Those that run."""
        return [process for process in self.processes if process.name not in self.back]

    async def turn(self, now_s: float) -> None:
        """Whoever is due comes back; now and then one more goes."""
        for process in self.processes:
            at_s, paused = self.back.get(process.name, (now_s + 1.0, False))
            if now_s >= at_s:
                await self.bring_back(process, paused)
        old = [process for process in self.up() if now_s - self.since[process.name] > NEW_S]
        if now_s < self.next_s or len(old) < 2:
            return
        self.next_s, self.faults = now_s + self.random.uniform(2.0, 9.0), self.faults + 1
        process = self.random.choice(old)
        act = self.random.choice([process.kill, process.stop, process.pause])
        # SQLite has one writer: one that stands still while it writes holds everybody up.
        act = process.kill if act == process.pause and connection.vendor == "sqlite" else act
        await asyncio.to_thread(act)
        self.back[process.name] = now_s + self.random.uniform(1.0, 12.0), act == process.pause

    async def bring_back(self, process: Process, paused: bool) -> None:
        """It continues, or starts again."""
        await asyncio.to_thread(process.resume if paused else process.start)
        self.since[process.name] = time.monotonic()
        del self.back[process.name]


@pytest.fixture
async def fleet(
    transactional_db: None, tmp_path: Path, redis_server: RedisServer, settings: Settings
) -> AsyncIterator[tuple[Two, Storm, World]]:
    """Three sentinels, and eight nodes on which a job trains."""
    settings.SENTINEL_SHARDS, settings.REDIS_URL = SHARDS, redis_server.url
    stack = Stack(tmp_path, redis_server.url)
    stack.env["HOLDFAST_SENTINEL_SHARDS"] = str(SHARDS)
    argv = [sys.executable, "manage.py", "sentinel"]
    more = [Process(f"sentinel-{number}", argv, stack.env, tmp_path, kind="backend") for number in (2, 3)]
    await asyncio.to_thread(stack.start)
    for process in more:
        process.start()
    token, agents = await sync_to_async(join_token)(uses=NODES), []
    for name in (f"node-{number}" for number in range(NODES)):
        agents.append(
            FakeAgent(stack.url, name, await asyncio.to_thread(enroll, stack.url, name, token), devices=DEVICES)
        )
    world = World(agents)
    world.start()
    for agent in agents:
        await asyncio.wait_for(agent.welcomed.wait(), 40.0)
    await submit()
    await asyncio.sleep(WARM_S)
    yield Two(stack, SHARDS), Storm([stack.sentinel, *more], SEED), world
    await world.stop()
    for process in more:
        await asyncio.to_thread(process.stop)
    await asyncio.to_thread(stack.stop)


async def test_whatever_happens_to_sentinels_each_broken_device_is_found_once_and_nothing_else(
    fleet: tuple[Two, Storm, World],
) -> None:
    two, storm, world = fleet
    broken: set[tuple[str, int]] = set()
    led_s, worst_s, next_s = dict.fromkeys(range(SHARDS), time.monotonic()), 0.0, 0.0
    end_s = time.monotonic() + LONG_S
    while time.monotonic() < end_s:
        now_s = time.monotonic()
        await storm.turn(now_s)
        if now_s >= next_s:
            next_s = now_s + storm.random.uniform(3.0, 7.0)
            agent, index = storm.random.choice(world.agents), storm.random.randrange(DEVICES)
            break_device(agent, index)
            broken.add((agent.name, index))
        led: set[int] = set()
        for process in storm.up():
            led |= await sync_to_async(two.led_by)(process)
        led_s |= dict.fromkeys(led, time.monotonic())
        worst_s = max(worst_s, time.monotonic() - min(led_s.values()))
        await asyncio.sleep(0.05)
    for process in storm.processes:
        if process.name in storm.back:
            await storm.bring_back(process, storm.back[process.name][1])
    await eventually("each is found", lambda: set(of_devices()) >= broken, stack=two.stack)
    await asyncio.sleep(QUIET_S)
    print(f"{storm.faults} faults, {len(broken)} broken devices, a shard without a leader {worst_s:.2f} s at most")
    assert {kind for kind, _, _ in await sync_to_async(findings)()} == {"device_reading"}
    assert sorted(await sync_to_async(of_devices)()) == sorted(broken)
