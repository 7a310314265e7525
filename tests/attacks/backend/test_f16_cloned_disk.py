"""F16 with real agents: a cloned disk is found, a restart is not, and the token is used once."""

import asyncio
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.access.models import JoinToken
from controlplane.dispatch.models import Command
from controlplane.dispatch.services import enqueue
from controlplane.fleet import enrolment
from controlplane.fleet.models import Node
from controlplane.protocol.commands import WarmHost
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import join_token
from tests.integration.backend.servers import Process, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
NAME = "node-1"


class RealAgents:
    """`python -m agents`, each with a state directory of its own."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack, self.directory = stack, directory
        self.processes: list[Process] = []

    def start(self, name: str, token: str = "") -> Process:
        token_file = self.directory / f"{name}.token"
        token_file.write_text(token)
        argv = [
            sys.executable, "-m", "agents", "--server", self.stack.url.replace("http://", "ws://"), "--name", NAME,
            "--state-dir", str(self.directory / name), "--probe", "simulated", "--devices", "2",
            "--join-token-file", str(token_file),
        ]  # fmt: skip
        process = Process(f"agent-{name}-{len(self.processes)}", argv, {}, self.directory)
        process.start()
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()


@pytest.fixture
def agents(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealAgents]:
    made = RealAgents(stack, tmp_path_factory.mktemp("n"))
    yield made
    made.stop()


def node() -> Node:
    return Node.objects.get(name=NAME)


async def connected(what: str, check: Any = lambda: True) -> Node:
    return await eventually(what, lambda: check() and Node.objects.filter(name=NAME, connected=True).first())


async def test_restarts_spend_no_token_raise_nothing_and_keep_the_key(stack: Stack, agents: RealAgents) -> None:
    token = await sync_to_async(join_token)(name=NAME)
    first = agents.start("a", token)
    row = await connected("it is connected")
    for _ in range(2):
        first.kill()
        await eventually("it is away", lambda: not node().connected)
        first = agents.start("a", token)
        await connected("it is back")
    await sync_to_async(enrolment.want_new_key)(row.id, actor="user:ada", reason="it is old")
    await eventually("it has a new key", lambda: node().public_key != row.public_key)
    first._signal(signal.SIGTERM)
    await eventually("it is away", lambda: not node().connected)
    agents.start("a")
    after = await connected("it is back with the new key")
    assert (after.id, after.state, after.doubt) == (row.id, "ready", "")
    assert (await sync_to_async(JoinToken.objects.get)()).uses_left == 0


async def test_an_agent_on_a_copied_disk_gets_no_start_and_the_node_waits_for_a_person(
    stack: Stack, agents: RealAgents
) -> None:
    agents.start("a", await sync_to_async(join_token)())
    row = await connected("it is connected")
    disk, clone = agents.directory / "a", agents.directory / "b"
    await asyncio.to_thread(lambda: shutil.copytree(disk, clone, ignore=shutil.ignore_patterns("*.sock", "lock")))
    copy = agents.start("b")
    found = await eventually("the node is in doubt", lambda: Node.objects.exclude(doubt="").first())
    assert (found.id, found.state) == (row.id, "quarantined")
    order = await sync_to_async(lambda: enqueue(WarmHost("job_x", 1), node_id=row.id, ttl_s=600.0).id)()
    copy.kill()
    await connected("the true agent is back")
    assert (await sync_to_async(Command.objects.get)(pk=order)).state == "queued"


async def test_a_lost_state_directory_comes_back_by_re_enrolment_alone(stack: Stack, agents: RealAgents) -> None:
    first = agents.start("a", await sync_to_async(join_token)())
    row = await connected("it is connected")
    first.kill()
    shutil.rmtree(agents.directory / "a")
    refused = agents.start("a", await sync_to_async(join_token)())
    await eventually("it is refused", lambda: "holdfast node re-enrol node-1" in refused.tail())
    refused.kill()
    shown = await sync_to_async(enrolment.reissue)(row.id, actor="user:ada", reason="lost disk", ttl_s=600.0)
    agents.start("a", shown.secret)
    after = await connected("it is back", lambda: node().public_key != row.public_key)
    assert (after.id, after.state, after.doubt) == (row.id, "ready", "")
