"""V5: somebody has copied a node's key. He gets no start, and the true node is not disturbed."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from websockets.asyncio.client import connect

from controlplane.access.models import AuditEntry
from controlplane.dispatch.services import enqueue
from controlplane.fleet.models import Node
from controlplane.protocol import frames
from controlplane.protocol.commands import StopRanks, WarmHost
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import doubts
from controlplane.recovery.models import Signal
from controlplane.runtime.models import Event
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
NAME = "node-1"


async def enrolled(stack: Stack) -> FakeAgent:
    """The true node's agent, not yet connected."""
    token = await sync_to_async(join_token)()
    return FakeAgent(stack.url, NAME, await asyncio.to_thread(enroll, stack.url, NAME, token))


async def live(stack: Stack) -> FakeAgent:
    """The true node's agent, connected."""
    agent = await enrolled(stack)
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)
    return agent


def copy_of(agent: FakeAgent, *, boot: str = "", journal: str = "") -> FakeAgent:
    """What somebody makes of a copied state directory."""
    copy = FakeAgent(
        agent.url.replace("ws://", "http://").removesuffix("/agent/v1/stream"), NAME, agent.credential.copy()
    )
    copy.boot_id, copy.journal_id = boot or agent.boot_id, journal or agent.journal_id
    return copy


def node() -> Node:
    return Node.objects.get(name=NAME)


def order_a_start() -> str:
    """Something that would begin on the node; the command's id."""
    return enqueue(WarmHost("job_x", 1), node_id=node().id, ttl_s=200.0).id


def order_a_stop() -> str:
    return enqueue(StopRanks("job_x", 1, 0, 1, 0.0, "test"), node_id=node().id, ttl_s=200.0).id


async def in_doubt() -> Node:
    """The node, once it is flagged, quarantined, audited and told of."""
    found = await eventually("the node is quarantined", lambda: Node.objects.filter(state="quarantined").first())
    assert found.doubt
    assert found.doubt in found.state_reason
    assert await sync_to_async(AuditEntry.objects.filter(action="node.identity_doubt", subject=found.id).exists)()
    assert await sync_to_async(Event.objects.filter(kind="node.state", node_id=found.id).exists)()
    await eventually("it is a finding", lambda: Signal.objects.filter(kind="node_identity", settled_at=None).exists())
    return found


async def goes_on(agent: FakeAgent, xid: int) -> None:
    """Its events arrive."""
    agent.tell(frames.XidSeen(XidEvent(index=0, xid=xid)))
    await eventually("its event is applied", lambda: Signal.objects.filter(kind="xid", value=float(xid)).exists())
    await eventually("and acknowledged", lambda: not agent.unacked)


async def test_a_copy_gets_no_session_and_no_start_while_the_true_node_is_live_and_the_node_is_flagged(
    stack: Stack,
) -> None:
    agent = await live(stack)
    copy = copy_of(agent, boot="boot-elsewhere", journal="journal-elsewhere")
    copy.start()
    found = await in_doubt()
    assert "boot-elsewhere" in found.doubt
    await eventually("the copy is told", lambda: any(r.code == "cloned" for r in copy.refused))
    start, stop = await sync_to_async(order_a_start)(), await sync_to_async(order_a_stop)()
    await eventually("what ends work is sent", lambda: agent.received[stop], stack=stack)
    await goes_on(agent, 101)
    assert not agent.received[start]
    assert not copy.received
    assert not copy.welcomed.is_set()
    assert not {r.code for r in agent.refused} & {"replaced", "cloned", "in_doubt"}
    await copy.stop()
    await sync_to_async(doubts.confirm)(found.id, actor="user:ada", reason="the copy was found and ended")
    await eventually("the start goes out", lambda: agent.received[start], stack=stack)
    assert (await sync_to_async(node)()).state == "ready"
    assert not await sync_to_async(Signal.objects.filter(kind="node_identity", settled_at=None).exists)()
    await agent.stop()


async def test_a_copy_of_the_whole_state_is_found_by_its_counter_and_gets_no_start_before(stack: Stack) -> None:
    agent = await live(stack)
    start = ""
    copy = copy_of(agent)
    copy.start()
    await asyncio.wait_for(copy.welcomed.wait(), 20.0)
    start = await sync_to_async(order_a_start)()
    found = await in_doubt()
    assert "counter went back" in found.doubt
    await copy.stop()
    await eventually("the true agent is back", agent.welcomed.is_set)
    await goes_on(agent, 102)
    assert not copy.received[start]
    assert not agent.received[start]
    await agent.stop()


async def test_a_copy_that_comes_while_the_node_is_away_is_shut_out_when_the_node_returns(stack: Stack) -> None:
    agent = await live(stack)
    await agent.stop()
    await eventually("it is away", lambda: not node().connected)
    copy = copy_of(agent, boot="boot-elsewhere", journal="journal-elsewhere")
    copy.start()
    await asyncio.wait_for(copy.welcomed.wait(), 20.0)
    agent.welcomed.clear()
    agent.start()
    await in_doubt()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)
    await goes_on(agent, 103)
    await eventually("the copy is told", lambda: any(r.code == "cloned" for r in copy.refused))
    await copy.stop()
    await agent.stop()


async def test_a_key_on_another_machine_is_flagged_even_while_the_node_is_away(stack: Stack) -> None:
    agent = await live(stack)
    await agent.stop()
    await eventually("it is away", lambda: not node().connected)
    copy = copy_of(agent, boot="boot-elsewhere", journal="journal-elsewhere")
    copy.credential.machine_id = "another-machine"
    copy.start()
    found = await in_doubt()
    assert "machine id" in found.doubt
    await copy.stop()


async def test_a_reboot_behind_a_half_open_socket_is_no_copy(stack: Stack) -> None:
    before = await enrolled(stack)
    async with connect(before.url, compression=None) as half_open:
        assert isinstance(await before.open(half_open), frames.Welcome)
        after = copy_of(before, boot="boot-2", journal="journal-2")
        after.start()
        await asyncio.wait_for(after.welcomed.wait(), 30.0)
    # One that comes again without any pause, as this one does, is held back for that alone.
    assert {refused.code for refused in after.refused} <= {"in_doubt", "overloaded"}
    row = await sync_to_async(node)()
    assert (row.state, row.doubt, row.boot_id) == ("ready", "", "boot-2")
    await after.stop()


async def test_a_reconnect_beside_a_half_open_socket_of_the_same_boot_is_admitted_at_once(stack: Stack) -> None:
    agent = await enrolled(stack)
    async with connect(agent.url, compression=None) as half_open:
        assert isinstance(await agent.open(half_open), frames.Welcome)
        async with connect(agent.url, compression=None) as again:
            assert isinstance(await agent.open(again), frames.Welcome)
            row = await sync_to_async(node)()
            assert (row.state, row.doubt) == ("ready", "")
