"""A fleet that lives while the browser watches: the real web process, sentinel and Redis, and scripted agents that
speak the agents' protocol to them from a thread of their own. Training never stands still."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group, User

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.jobs.services import submit_job
from controlplane.recovery.models import Incident
from tests.e2e.browser import Target
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import Stack

NAMES = ("node-a", "node-b", "node-c", "node-d")
WAIT_S = 60.0
STEP_S = 0.3
PASSWORD = "correct horse battery staple"


class Lively:
    """What the tests of one module share. `job` trains on three of four nodes and has lost a replica once."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self.stack = Stack(directory, redis_url)
        self.target = Target(url=self.stack.url, username="ana", password=PASSWORD)
        self.job = Job()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._world: World | None = None

    def start(self) -> None:
        """Until the job trains again after its first incident."""
        user = User.objects.create_user("ana", password=PASSWORD)
        user.groups.add(Group.objects.get_or_create(name="admin")[0])
        token = join_token(uses=len(NAMES))
        self.stack.start()
        credentials = {name: enroll(self.stack.url, name, token) for name in NAMES}
        self._thread.start()
        self._do(self._connect(credentials))
        self.wait("agents are connected", lambda: Node.objects.filter(connected=True).count() == len(NAMES))
        self.job = submit_job(job_spec(), owner="ana", actor="ana")
        self.wait("it trains", lambda: self.committed() >= 3)
        assert self._world is not None
        self._loop.call_soon_threadsafe(self._world.kill_replica, 1)
        self.wait("it is at full strength again", lambda: Incident.objects.filter(state="resolved").exists())
        first = self.committed()
        self.wait("it trains again", lambda: self.committed() >= first + 3)

    def committed(self) -> int:
        """Steps of the job."""
        return int(Job.objects.values_list("committed_step", flat=True).get(pk=self.job.pk))

    def busy_agent(self) -> FakeAgent:
        """One on whose node ranks run."""
        assert self._world is not None
        return next(agent for agent in self._world.agents if agent.ranks)

    def wait(self, what: str, check: Callable[[], object]) -> None:
        """Until it is so."""
        deadline_s = time.monotonic() + WAIT_S
        while not check():
            assert time.monotonic() < deadline_s, f"never: {what}\n{self.stack.logs()}"
            time.sleep(0.1)

    def web_starts_again(self) -> None:
        """On the same port, once it is dead."""
        self.stack.web.start()
        self.stack.wait_for_web()

    def stop(self) -> None:
        """End it all."""
        if self._world is not None:
            self._do(self._world.stop())
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self.stack.web.resume()
        self.stack.stop()

    async def _connect(self, credentials: dict[str, Any]) -> None:
        agents = [FakeAgent(self.stack.url, name, made) for name, made in credentials.items()]
        self._world = World(agents, step_s=STEP_S)
        self._world.start()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)


@contextmanager
def living(directory: Path, redis_url: str) -> Iterator[Lively]:
    """Started, and ended however the block ends."""
    made = Lively(directory, redis_url)
    try:
        made.start()
        yield made
    finally:
        made.stop()
