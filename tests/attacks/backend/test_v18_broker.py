"""V18: what lies in the broker without our seal is not a task, and ends no worker.

A real worker on a real Redis. Each message here is one that a stranger can write; whether
the worker lives is asked as the sentinel asks it: by a task that is carried out.
"""

import base64
import json
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async

from controlplane.runtime.models import FrameCounter, ProcessBeat
from tests.attacks.backend.redis_attacker import NESTED, PIDBOX, QUEUE, attacker
from tests.integration.backend.conftest import eventually
from tests.integration.backend.servers import RedisServer, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _left_clean(redis_server: RedisServer) -> Iterator[None]:
    """What an attack leaves in Redis harms no other test."""
    yield
    attacker(redis_server).flushall()


CANARY = "controlplane.sentinel.tasks.canary"


@pytest.fixture
def working(transactional_db: None, tmp_path: Path, redis_server: RedisServer) -> Iterator[Stack]:
    """Web, sentinel (which sends the canary) and a worker."""
    made = Stack(tmp_path, redis_server.url)
    made.start(worker=True)
    yield made
    made.stop()


def forged_task(task: Any, args: Any = (), **headers: Any) -> bytes:
    """A message as Celery itself would write it."""
    body = base64.b64encode(json.dumps([args, {}, {"callbacks": None, "chain": None}]).encode()).decode()
    number = str(uuid.uuid4())
    return json.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"lang": "py", "task": task, "id": number, "root_id": number, "retries": 0} | headers,
            "properties": {
                "correlation_id": number, "delivery_mode": 2, "delivery_tag": number, "body_encoding": "base64",
                "delivery_info": {"exchange": QUEUE, "routing_key": QUEUE}, "priority": 0,
            },
        }
    ).encode()  # fmt: skip


def control(method: str) -> bytes:
    """A remote control command, as `celery control` sends it."""
    message = json.loads(forged_task("x"))
    message["body"] = base64.b64encode(json.dumps({"method": method, "arguments": {}}).encode()).decode()
    message["headers"] = {"clock": 1, "expires": time.time() + 60.0}
    message["properties"]["delivery_info"] = {"exchange": "celery.pidbox", "routing_key": ""}
    return json.dumps(message).encode()


def works_since(moment: float) -> bool:
    """A canary was carried out since then."""
    row = ProcessBeat.objects.filter(role="worker").first()
    return row is not None and row.beat_at.timestamp() > moment


async def works(stack: Stack) -> None:
    """The same worker process carries tasks out."""
    await eventually("the worker works", partial(works_since, time.time()), stack=stack)
    assert stack.worker.child.poll() is None


def dropped_of_broker() -> int:
    rows = FrameCounter.objects.filter(node_name="(redis)", reason__startswith="broker")
    return sum(rows.values_list("count", flat=True))


SHAPES = (
    b"", b"garbage", b"\xff\xfe\x00", b"null", b"[]", b"{}", b'"text"', b"1e999", NESTED.encode(),
    b'{"__type__": ["a"], "__value__": {}}', b'{"body": 1, "headers": [], "properties": null}',
    forged_task({"a": 1}), forged_task(None), forged_task(["x"]), forged_task(CANARY, eta=[]),
    forged_task(CANARY, timelimit="x"), forged_task(CANARY, retries={}, expires={"a": 1}),
    forged_task("celery.map", [{"task": CANARY}, [[]] * 10]), forged_task("celery.chord", [[], {}]),
    forged_task("no.such.task"), forged_task(CANARY, [NESTED]),
)  # fmt: skip


async def test_no_entry_of_a_queue_ends_the_worker(working: Stack, redis_server: RedisServer) -> None:
    await works(working)
    client = attacker(redis_server)
    for shape in SHAPES:
        client.lpush(QUEUE, shape)
    await eventually("all are dropped", lambda: dropped_of_broker() >= len(SHAPES) - 1, stack=working)
    await works(working)


async def test_a_forged_task_is_not_carried_out(working: Stack, redis_server: RedisServer) -> None:
    await works(working)
    working.sentinel.kill()
    client = attacker(redis_server)
    await eventually("the queue is empty", lambda: client.llen(QUEUE) == 0, stack=working)
    moment = time.time() + 1.0
    before = await sync_to_async(dropped_of_broker)()
    time_to_pass = await sync_to_async(ProcessBeat.objects.filter(role="worker").get)()
    for _ in range(20):
        client.lpush(QUEUE, forged_task(CANARY))
    await eventually("they are dropped", lambda: dropped_of_broker() >= before + 20, stack=working)
    after = await sync_to_async(ProcessBeat.objects.filter(role="worker").get)()
    assert after.beat_at <= time_to_pass.beat_at or after.beat_at.timestamp() < moment
    working.sentinel.start()
    await works(working)


async def test_nobody_shuts_the_worker_down_over_redis(working: Stack, redis_server: RedisServer) -> None:
    await works(working)
    client = attacker(redis_server)
    heard = 0
    for method in ("shutdown", "pool_restart", "revoke", "pool_shrink", "cancel_consumer"):
        heard += client.publish(PIDBOX, control(method))
    for shape in (b"garbage", NESTED.encode(), b"null", b"{}", b'{"body": 1}'):
        heard += client.publish(PIDBOX, shape)
    assert heard, "the worker listens there"
    await eventually("they are dropped", lambda: dropped_of_broker() >= heard // 2, stack=working)
    await works(working)


async def test_keys_of_the_broker_made_into_something_else_are_made_anew(
    working: Stack, redis_server: RedisServer
) -> None:
    await works(working)
    client = attacker(redis_server)
    for key in (QUEUE, "unacked", "unacked_index"):
        spoil(client, key)
        await works(working)
    client.hset("unacked", "tag", NESTED)
    client.zadd("unacked_index", {"tag": 1.0})
    client.sadd(f"_kombu.binding.{QUEUE}", "no binding")
    await works(working)


def spoil(client: redis.Redis, key: str) -> None:
    """Make it a string, also against a worker that uses it at the same moment."""
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(key)
        pipe.set(key, "x")
        pipe.execute()
