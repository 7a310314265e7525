"""A stolen join token that holds: its thief gets a row and a session, and no work."""

import asyncio

import pytest
from asgiref.sync import sync_to_async

from controlplane.dispatch.services import enqueue
from controlplane.fleet.models import Node
from controlplane.protocol.commands import StopRanks, WarmHost
from controlplane.recovery import doubts
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
NAME = "gpu-a1-7"


def order(body: WarmHost | StopRanks) -> str:
    """The command's id."""
    return enqueue(body, node_id=Node.objects.get(name=NAME).id, ttl_s=200.0).id


async def connected(agent: FakeAgent) -> None:
    agent.welcomed.clear()
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)


async def test_it_gets_no_start_over_reconnects_a_reboot_and_a_restarted_server_until_it_is_admitted(
    stack: Stack,
) -> None:
    token = await sync_to_async(join_token)(name_pattern="gpu-a1-*", uses=4, hold=True)
    agent = FakeAgent(stack.url, NAME, await asyncio.to_thread(enroll, stack.url, NAME, token))
    await connected(agent)
    start = await sync_to_async(order)(WarmHost("job_x", 1))
    for stop in (1, 2, 3):
        told = await sync_to_async(order)(StopRanks("job_x", stop, 0, 1, 0.0, "test"))
        await eventually("what ends work is sent", lambda told=told: agent.received[told], stack=stack)
        assert not agent.received[start]
        await agent.stop()
        await eventually("it is away", lambda: not Node.objects.get(name=NAME).connected)
        if stop == 1:
            agent.boot_id, agent.journal_id = "boot-2", "journal-2"
            agent.next_seq = 1
        if stop == 2:
            stack.web.stop()
            stack.web.start()
            await asyncio.to_thread(stack.wait_for_web)
        await connected(agent)
        row = await sync_to_async(Node.objects.get)(name=NAME)
        assert (row.state, row.held, row.doubt) == ("quarantined", True, "")
    await sync_to_async(doubts.confirm)(row.id, actor="user:ada", reason="serial number checked")
    await eventually("the start goes out", lambda: agent.received[start], stack=stack)
    await agent.stop()
