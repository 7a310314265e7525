"""Two real sentinels beside a real web process: one is killed, or stands still and comes back, under telemetry.

Whoever leads a shard next raises what the one before had no time for, once, and nothing else: no node is found silent
because its leader died. How long a shard had no leader is printed; the limit here is for a machine that is busy.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, transaction
from pytest_django.fixtures import Settings

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.states import JobState
from controlplane.recovery import health_gate
from controlplane.recovery.models import Signal
from controlplane.runtime import bus, shards
from controlplane.runtime.models import ProcessBeat
from controlplane.runtime.shards import shard_of
from controlplane.sentinel.leading import WITHIN_S
from controlplane.telemetry.models import TelemetryChunk
from tests.integration.backend.conftest import eventually, submit
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import Process, RedisServer, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
LIMIT_S = 4 * WITHIN_S
QUIET_S = 3.0
FAILED = {"row_remap_failure": True}
POSTGRES = os.environ.get("HOLDFAST_TEST_DATABASE") == "postgres"
# Several shards are for fleets of PostgreSQL; before a release each is tried on both databases.
COUNTS = [1, 4] if "HOLDFAST_TEST_RELEASE" in os.environ else [4 if POSTGRES else 1]


class Two:
    """The stack with a second sentinel."""

    def __init__(self, stack: Stack, count: int) -> None:
        self.stack, self.count = stack, count
        argv = [sys.executable, "manage.py", "sentinel"]
        self.other = Process("sentinel-2", argv, stack.env, stack.directory, kind="backend")
        self.processes = [stack.sentinel, self.other]

    def leases(self) -> dict[int, ProcessBeat]:
        """By shard."""
        rows = {row.name: row for row in ProcessBeat.objects.filter(role="lease")}
        return {n: rows[name] for n in range(self.count) if (name := lease_name(n)) in rows}

    def led_by(self, process: Process) -> set[int]:
        """Shards whose lease that process has."""
        mine = f":{process.child.pid}" if process.child else "?"
        return {n for n, row in self.leases().items() if str(row.detail.get("owner")).endswith(mine)}

    def seen(self) -> bool:
        """Each shard's leader says that it sees."""
        return not health_gate.is_blind()


def lease_name(number: int) -> str:
    return f"lease:sentinel.{number}" if number else "lease:sentinel"


@pytest.fixture(params=COUNTS, ids="{} shards".format)
def two(
    request: pytest.FixtureRequest,
    transactional_db: None,
    tmp_path: Path,
    redis_server: RedisServer,
    settings: Settings,
) -> Iterator[Two]:
    """Two sentinels that share the shards."""
    settings.SENTINEL_SHARDS = request.param
    settings.REDIS_URL = redis_server.url
    bus.health.note(None)
    made = Stack(tmp_path, redis_server.url)
    made.env["HOLDFAST_SENTINEL_SHARDS"] = str(request.param)
    made.start()
    both = Two(made, request.param)
    yield both
    both.other.stop()
    made.stop()


@pytest.fixture
async def fleet(two: Two) -> AsyncIterator[World]:
    """Four connected nodes, and a job on them that trains."""
    token = await sync_to_async(join_token)(uses=4)
    url = two.stack.url
    agents = [FakeAgent(url, f"node-{n}", await asyncio.to_thread(enroll, url, f"node-{n}", token)) for n in range(4)]
    made = World(agents)
    made.start()
    for agent in agents:
        await asyncio.wait_for(agent.welcomed.wait(), 40.0)
    job = await submit()
    await eventually("it trains", lambda: Job.objects.get(pk=job.pk).state == JobState.RUNNING, stack=two.stack)
    yield made
    await made.stop()


async def both_lead(two: Two) -> None:
    """The second one has joined, and has its share or stands by."""
    two.other.start()
    least = two.count // 2

    def shared() -> bool:
        beats = ProcessBeat.objects.filter(role="sentinel")
        warm = all(row.detail.get("ready") for row in beats if not row.detail.get("leads"))
        return beats.count() == 2 and warm and len(two.led_by(two.other)) == least and two.seen()

    await eventually("they share the shards", shared, stack=two.stack)


def break_device(agent: FakeAgent, index: int) -> None:
    """Its driver says that rows could not be remapped: a finding, once, until it is replaced."""
    agent.readings[index] = FAILED


def findings() -> list[tuple[str, str, int]]:
    """(kind, node, device) of every finding there was, open or settled."""
    rows = Signal.objects.select_related("node").order_by("created_at")
    return [
        (row.kind, row.node.name if row.node else "", -1 if row.device_index is None else row.device_index)
        for row in rows
    ]


def of_devices() -> list[tuple[str, int]]:
    """Of readings past their limits."""
    return [(node, index) for kind, node, index in findings() if kind == "device_reading"]


def chunks_of(nodes: set[str]) -> set[tuple[str, int]]:
    """(node, key) of each stored part of their history."""
    return set(TelemetryChunk.objects.filter(node_id__in=nodes).values_list("node_id", "pk"))


def a_node_with_ranks(of_shards: set[int], count: int) -> str:
    """Its name; "" where no rank runs in these shards."""
    rows = Rank.objects.filter(released_at=None).select_related("node").order_by("pk")
    return next((row.node.name for row in rows if shard_of(row.node_id, count) in of_shards), "")


async def taken_over(two: Two, lost: set[int], by: Process, since: float) -> float:
    """Seconds until each of these shards was another's."""
    deadline = since + LIMIT_S
    while not lost <= await sync_to_async(two.led_by)(by):
        assert time.monotonic() < deadline, two.stack.logs() + two.other.tail()
        await asyncio.sleep(0.02)
    return time.monotonic() - since


async def leader_of(two: Two, agent: FakeAgent) -> tuple[Process, Process]:
    """The sentinel that leads the node's shard, and the other one."""
    shard = shard_of(agent.credential.node_id, two.count)
    first, second = two.processes
    return (first, second) if shard in await sync_to_async(two.led_by)(first) else (second, first)


def free_to_pause() -> bool:
    """SQLite has one writer: one that stands still while it writes holds everybody up, which no lease can help."""
    if connection.vendor != "sqlite":
        return True
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except OperationalError:
        return False
    return True


async def pause(process: Process) -> None:
    """Between two of its writes, where that matters."""
    before = connection.settings_dict["OPTIONS"].get("timeout")
    while True:
        process.pause()
        if await sync_to_async(free_to_pause)():
            return
        process.resume()
        assert before


async def nothing_false(before: list[tuple[str, str, int]]) -> None:
    """After a while: no finding but those about readings of devices."""
    await asyncio.sleep(QUIET_S)
    new = (await sync_to_async(findings)())[len(before) :]
    assert [each for each in new if each[0] != "device_reading"] == []


async def test_a_leader_that_is_killed_is_replaced_and_nothing_is_found_falsely_or_twice(
    two: Two, fleet: World
) -> None:
    await both_lead(two)
    broken = fleet.agents[0]
    first, second = await leader_of(two, broken)
    lost = await sync_to_async(two.led_by)(first)
    terms = {n: row.term for n, row in (await sync_to_async(two.leases)()).items()}
    break_device(broken, 0)
    await eventually("the leader finds it", lambda: of_devices() == [(broken.name, 0)], stack=two.stack)
    before = await sync_to_async(findings)()
    first.kill()
    since = time.monotonic()
    break_device(broken, 1)
    took_s = await taken_over(two, lost, second, since)
    print(f"killed: {len(lost)} of {two.count} shards led again after {took_s:.2f} s (R32: {WITHIN_S:.0f} s)")
    await eventually("it is found by who leads now", lambda: (broken.name, 1) in of_devices(), stack=two.stack)
    await nothing_false(before)
    assert sorted(await sync_to_async(of_devices)()) == [(broken.name, 0), (broken.name, 1)]
    leases = await sync_to_async(two.leases)()
    assert {n: leases[n].term for n in lost} == {n: terms[n] + 1 for n in lost}
    await eventually("all shards are seen", two.seen, stack=two.stack)
    mine = await sync_to_async(a_node_with_ranks)(lost, two.count)
    silent = mine or await sync_to_async(a_node_with_ranks)(set(range(two.count)), two.count)
    assert silent, "it trains"
    for agent in fleet.agents:
        agent.muted = agent.name == silent
    await eventually("silence is found again", lambda: ("node_silent", silent, -1) in findings(), stack=two.stack)


async def test_a_leader_that_stood_still_writes_nothing_under_its_old_term_and_stands_by(
    two: Two, fleet: World, settings: Settings
) -> None:
    await both_lead(two)
    broken = fleet.agents[0]
    first, second = await leader_of(two, broken)
    lost = await sync_to_async(two.led_by)(first)
    before = await sync_to_async(findings)()
    await pause(first)
    since = time.monotonic()
    break_device(broken, 0)
    took_s = await taken_over(two, lost, second, since)
    print(f"stood still: {len(lost)} of {two.count} shards led again after {took_s:.2f} s (R32: {WITHIN_S:.0f} s)")
    await eventually("it is found by who leads now", lambda: of_devices() == [(broken.name, 0)], stack=two.stack)
    terms = {n: row.term for n, row in (await sync_to_async(two.leases)()).items()}
    first.resume()
    await nothing_false(before)
    assert await sync_to_async(of_devices)() == [(broken.name, 0)]
    leases = await sync_to_async(two.leases)()
    # With one shard it stands by; of several it is given its share again, when it has heard it for a while.
    for n in lost:
        assert leases[n].term == terms[n] or n in await sync_to_async(two.led_by)(first)
    await eventually(
        "it stands by, or has its share", lambda: len(two.led_by(first)) == two.count // 2, stack=two.stack
    )
    rest = await sync_to_async(two.led_by)(second)
    second.kill()
    since = time.monotonic()
    break_device(broken, 1)
    took_s = await taken_over(two, rest, first, since)
    print(f"killed: {len(rest)} of {two.count} shards led again after {took_s:.2f} s")
    await eventually("the one that stood still finds it", lambda: (broken.name, 1) in of_devices(), stack=two.stack)
    await nothing_false(before)
    assert sorted(await sync_to_async(of_devices)()) == [(broken.name, 0), (broken.name, 1)]


async def test_a_sentinel_that_joins_is_given_its_share_and_one_that_ends_gives_all_back(
    two: Two, fleet: World
) -> None:
    await both_lead(two)
    first, second = two.processes
    led = await sync_to_async(two.led_by)(first)
    before = await sync_to_async(findings)()
    whole: dict[str, Any] = await sync_to_async(shards.read_whole)("nodes")
    assert set(whole) == set(await sync_to_async(lambda: set(Node.objects.values_list("id", flat=True)))())
    held = {node_id for node_id in whole if shard_of(node_id, two.count) in led}
    stored = await sync_to_async(chunks_of)(held)
    await asyncio.to_thread(first.stop)
    since = time.monotonic()
    took_s = await taken_over(two, led, second, since)
    print(f"ended: {len(led)} of {two.count} shards led again after {took_s:.2f} s")
    new = await sync_to_async(chunks_of)(held) - stored
    assert {node_id for node_id, _ in new} == held, "it stores what it holds"
    await nothing_false(before)
    await eventually("all shards are seen", two.seen, stack=two.stack)
