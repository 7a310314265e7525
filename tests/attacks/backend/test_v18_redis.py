"""V18, F26: write access to Redis causes no finding, no decision and no command, and no
message ends a process or makes a node deaf.

Real Redis, web and sentinel; the attacker writes to Redis and nowhere else.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from functools import partial

import pytest
import redis
from asgiref.sync import sync_to_async

from controlplane.api.overview import health
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol.commands import WarmHost
from controlplane.recovery.models import Decision, Signal
from controlplane.runtime import events
from controlplane.runtime.models import FrameCounter, ProcessBeat
from tests.attacks.backend.redis_attacker import NESTED, STREAM, attacker, dropped, hot_frames, unsealed_entries
from tests.integration.backend.conftest import eventually, submit
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import RedisServer, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _left_clean(redis_server: RedisServer) -> Iterator[None]:
    """What an attack leaves in Redis harms no other test."""
    yield
    attacker(redis_server).flushall()


async def training(world: World, stack: Stack) -> list[Node]:
    """A job runs on nodes; those that have its ranks."""
    job = await submit()
    await eventually("the job trains", lambda: _state(job.id) == "running", stack=stack)
    rows = Node.objects.filter(ranks__released_at=None, ranks__isnull=False).distinct().order_by("name")
    return await sync_to_async(list)(rows)


def _state(job_id: str) -> str:
    return Job.objects.get(pk=job_id).state


def hurt() -> list[str]:
    """Findings about devices and silence, and decisions that ask for saves or stop ranks."""
    kinds = Signal.objects.filter(kind__in=("device_risk", "node_silent", "device_lost", "xid"))
    saves = Command.objects.filter(kind__in=("request_save", "stop_ranks"))
    return [*kinds.values_list("kind", flat=True), *saves.values_list("kind", flat=True)]


async def obeys(world: World, stack: Stack) -> None:
    """A command given now reaches every node."""
    for agent in world.agents:
        await _reached(agent.name, stack)


async def _reached(name: str, stack: Stack) -> None:
    def give() -> str:
        node = Node.objects.get(name=name)
        with events.unit_of_work():
            return dispatch.enqueue(WarmHost(job_id="job_x", attempt=1), node_id=node.id).id

    command_id = await sync_to_async(give)()
    await eventually(
        f"{name} carries a command out",
        lambda: Command.objects.get(pk=command_id).state == "succeeded",
        stack=stack,
    )


def sees(since: float) -> bool:
    """A sentinel has beaten since then, and is not blind."""
    rows = ProcessBeat.objects.filter(role="sentinel").order_by("-beat_at")
    row = rows.first()
    return row is not None and row.beat_at.timestamp() > since and not row.detail.get("blind", True)


async def all_well(world: World, stack: Stack) -> None:
    """No process ended, the sentinel sees, and every node is served."""
    await eventually("the sentinel sees", partial(sees, time.time() + 0.5), stack=stack)
    assert stack.web.child.poll() is None
    assert stack.sentinel.child.poll() is None
    await obeys(world, stack)


async def test_forged_samples_cause_no_finding_and_no_save(
    world: World, stack: Stack, redis_server: RedisServer
) -> None:
    nodes = await training(world, stack)
    before = await sync_to_async(Decision.objects.count)()
    client = attacker(redis_server)
    for node in nodes:
        items = list(hot_frames(node.session_id, node.id, time.time()))
        for entry in unsealed_entries(items):
            client.xadd(STREAM, {"d": entry})
    await eventually("dropped, or believed", lambda: dropped_now() >= 3 * len(nodes) or hurt(), stack=stack)
    assert await sync_to_async(hurt)() == []
    assert await sync_to_async(Decision.objects.filter(routine=False).count)() <= before
    told = (await sync_to_async(health)())["redis"]
    assert not told["ok"]
    assert "none of our processes wrote" in told["detail"]
    await all_well(world, stack)
    assert await sync_to_async(hurt)() == []


def dropped_now() -> int:
    rows = FrameCounter.objects.filter(node_name="(redis)", reason__startswith="telemetry")
    return sum(rows.values_list("count", flat=True))


async def test_genuine_batches_that_are_repeated_reordered_or_altered_are_dropped(
    world: World, stack: Stack, redis_server: RedisServer
) -> None:
    await training(world, stack)
    client = attacker(redis_server)
    entries = [fields[b"d"] for _, fields in client.xrange(STREAM, count=1000)][-20:]
    for entry in reversed(entries):
        client.xadd(STREAM, {"d": entry})
        client.xadd(STREAM, {"d": entry[:-1] + bytes([entry[-1] ^ 1])})
    await eventually("all are dropped", lambda: dropped_now() >= 2 * len(entries), stack=stack)
    assert await dropped("telemetry_repeated") or await dropped("telemetry_late")
    assert await sync_to_async(hurt)() == []
    await all_well(world, stack)


async def test_no_entry_of_the_stream_blinds_the_sentinel(
    world: World, stack: Stack, redis_server: RedisServer
) -> None:
    await training(world, stack)
    client = attacker(redis_server)
    for fields in (
        {"x": b"no such field"}, {"d": b""}, {"d": b"\x91" * 100_000}, {"d": NESTED.encode()}, {"d": b"\xff" * 64},
        {"d": b"\0" * (9 << 20)}, {b"\xff\xfe": b"\xff"},
    ):  # fmt: skip
        client.xadd(STREAM, fields)
    await eventually("they are counted", lambda: dropped_now() >= 7, stack=stack)
    await all_well(world, stack)
    assert await sync_to_async(hurt)() == []


async def test_a_stream_that_is_spoilt_is_made_anew(world: World, stack: Stack, redis_server: RedisServer) -> None:
    await training(world, stack)
    client = attacker(redis_server)
    client.xadd(STREAM, {"d": b"last"}, id="18446744073709551615-18446744073709551615")
    await all_well(world, stack)
    client.delete(STREAM)
    client.set(STREAM, "no stream")
    await all_well(world, stack)
    client.delete(STREAM)
    await all_well(world, stack)
    assert await sync_to_async(hurt)() == []


async def test_frames_taken_out_of_redis_do_not_make_a_node_silent(
    world: World, stack: Stack, redis_server: RedisServer
) -> None:
    await training(world, stack)
    client = attacker(redis_server)
    until = time.monotonic() + 8.0
    while time.monotonic() < until:
        client.xtrim(STREAM, maxlen=0, approximate=False)
        await asyncio.sleep(0.001)
    assert await sync_to_async(hurt)() == []
    await all_well(world, stack)


async def test_forged_pictures_are_no_evidence(world: World, stack: Stack, redis_server: RedisServer) -> None:
    nodes = await training(world, stack)
    client = attacker(redis_server)
    silent = {node.id: 9999.0 for node in nodes}
    until = time.monotonic() + 6.0
    while time.monotonic() < until:
        forge(client, "sight", {"at_s": time.time(), "blind": False})
        forge(client, "nodes", silent)
        await asyncio.sleep(0.002)
    assert await sync_to_async(hurt)() == []
    for name, key in (("list", "hf:live:sight"), ("set", "hf:live:nodes")):
        # At once: the sentinel writes its own between two calls.
        with client.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            pipe.rpush(key, "x") if name == "list" else pipe.sadd(key, "x")
            pipe.execute()
    await all_well(world, stack)


def forge(client: redis.Redis, name: str, fields: dict[str, object]) -> None:
    """In the form of before seals and in today's."""
    key = f"hf:live:{name}"
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(key)
        if int(time.time() * 1000) % 2:
            pipe.hset(key, mapping={k: json.dumps(v) for k, v in fields.items()})
        else:
            pipe.set(key, b"\0" * 40 + json.dumps(fields).encode())
        pipe.execute()


async def test_no_published_message_deafens_a_node(world: World, stack: Stack, redis_server: RedisServer) -> None:
    client = attacker(redis_server)
    channels = [name.decode() for name in client.pubsub_channels("hf:*")]
    assert any(name.startswith("hf:web:") for name in channels)
    bodies = (
        b"", b"\xff\xfe", b"[]", b'{"topic": [], "message": 1}', b'{"topic": {"a": 1}, "message": {}}',
        b'{"topic": "overview", "message": {"type": "health"}}', NESTED.encode(), b"\0" * (9 << 20),
    )  # fmt: skip
    for body in bodies:
        for name in channels:
            client.publish(name, body)
    await obeys(world, stack)
    await eventually("they are counted", lambda: volatile_dropped() >= len(bodies), stack=stack)
    await all_well(world, stack)


def volatile_dropped() -> int:
    return sum(FrameCounter.objects.filter(node_name="(redis)", reason="volatile").values_list("count", flat=True))
