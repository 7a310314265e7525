"""A whole backend for a test: real web and sentinel processes, fake agents."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User

from controlplane.access.services import create_api_token
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.protocol import spec as specs
from controlplane.runtime import guard
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.reader import Reader
from tests.integration.backend.servers import RedisServer, Stack

WAIT_S = 40.0
POLL_S = 0.05
FILES = frozenset(Path(__file__).parent.glob("test_*.py"))
ENTERED: set[tuple[str, str]] = set()
"""(machine, state) of every move since the session began."""
_LAST = "test_every_state_is_entered"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What judges the whole suite comes last."""
    items.sort(key=lambda item: item.name == _LAST)


@pytest.fixture(autouse=True, scope="session")
def _moves_are_noted() -> Iterator[None]:
    checked = guard.check

    def check(machine: str, before: str, after: str) -> str:
        reason = checked(machine, before, after)
        ENTERED.add((machine, str(after)))
        return reason

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(guard, "check", check)
        yield


@pytest.fixture
def stack(transactional_db: None, tmp_path: Path, redis_server: RedisServer) -> Iterator[Stack]:
    """Web and sentinel, no worker: the sentinel's net decides."""
    made = Stack(tmp_path, redis_server.url)
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def world(stack: Stack) -> AsyncIterator[World]:
    """Four connected nodes of two devices."""
    token = await sync_to_async(join_token)(uses=4)
    agents = [
        FakeAgent(stack.url, f"node-{n}", await asyncio.to_thread(enroll, stack.url, f"node-{n}", token))
        for n in range(1, 5)
    ]
    made = World(agents)
    made.start()
    for agent in agents:
        await asyncio.wait_for(agent.welcomed.wait(), WAIT_S)
    yield made
    await made.stop()


@pytest.fixture
async def reader(stack: Stack, world: World, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    def token() -> str:
        user = User.objects.create_user("ada", password="correct horse battery", is_superuser=True)
        return str(create_api_token(user, name="reader", scope="operate").secret)

    return Reader(tmp_path_factory.mktemp("reader"), stack.url, await sync_to_async(token)())


def job_spec(**changes: Any) -> specs.JobSpec:
    """Three replicas of two ranks (TP1 x PP2), one node of two devices as spare."""
    values: dict[str, Any] = {
        "resources": specs.Resources(nodes=3, gpus_per_node=2, min_replicas=1, spares=specs.Spares(gpus=2)),
        "parallelism": specs.Parallelism(tp=1, pp=2),
        "training": specs.Training(steps=10_000, global_batch=12, micro_batch=1),
        "resiliency": specs.Resiliency(allow_faults=True),
    }
    return specs.JobSpec(metadata=specs.Metadata(name="demo"), spec=specs.TrainSpec(**(values | changes)))


async def submit(**changes: Any) -> Job:
    """A job, as a user would submit it."""
    return await sync_to_async(submit_job)(job_spec(**changes), owner="ada", actor="ada")


async def eventually(
    what: str, check: Callable[[], Any] | Callable[[], Awaitable[Any]], *, stack: Stack | None = None
) -> Any:
    """Poll the database until `check` is true; its value. A failure shows the logs."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while asyncio.get_running_loop().time() < deadline:
        value = await sync_to_async(check)()
        if value:
            return value
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"never: {what}\n{stack.logs() if stack else ''}")
