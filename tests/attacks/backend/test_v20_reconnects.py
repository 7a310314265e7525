"""V20: a credential that reconnects in a loop wrote events without end. F25: floods."""

import asyncio
import contextlib

import pytest
from asgiref.sync import sync_to_async
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agents.link.keys import NodeKey
from controlplane.access.models import AuditEntry
from controlplane.fleet.sessions import close_session
from controlplane.live.limits import MAX_UNKNOWN_SOCKETS
from controlplane.protocol import frames
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import ingest
from controlplane.recovery.models import Signal
from controlplane.runtime.models import Event, FrameCounter
from tests.integration.backend.builders import hello, make_fleet
from tests.integration.backend.conftest import eventually
from tests.integration.backend.ending import end
from tests.integration.backend.fake_agent import Enrolled, FakeAgent, enroll, join_token
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
UPGRADE = (
    b"GET /agent/v1/stream HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def test_a_node_that_comes_and_goes_writes_no_endless_history_and_its_row_stays_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet(2)
    node = fleet.nodes["n1"]
    for number in range(200):
        ingest.open_session(node.id, f"web.{number}", hello("n1"))
        close_session(node.id, f"web.{number}")
    ingest.open_session(node.id, "web.last", hello("n1"))
    told = Event.objects.filter(node_id=node.id, kind__in=("node.connected", "node.disconnected"))
    assert told.count() <= 10
    node.refresh_from_db()
    assert (node.connected, node.session_id) == (True, "web.last")

    from controlplane.fleet import flapping

    assert flapping.settle() == 0, "not before its time"
    monkeypatch.setattr(flapping, "EVERY_S", 0.0)
    assert flapping.settle() == 1
    summary = Event.objects.get(kind="node.flapping")
    assert "connected now" in summary.sentence
    assert summary.patch["connected"] is True
    assert flapping.settle() == 0
    other = fleet.nodes["n2"]
    close_session(other.id, "web.n2")
    assert Event.objects.filter(node_id=other.id, kind="node.disconnected").exists(), "others are told as ever"


async def one_session(agent: FakeAgent) -> str:
    """Connect, say hello, leave; the code of the refusal, or ""."""
    async with connect(agent.url, compression=None) as socket:
        try:
            answer = await agent.open(socket)
        except ConnectionClosed:
            return "closed"
    return answer.code if isinstance(answer, frames.Refused) else ""


async def test_a_credential_that_reconnects_in_a_loop_is_slowed_and_another_node_is_not(stack: Stack) -> None:
    token = await sync_to_async(join_token)(uses=2)
    agents = [
        FakeAgent(stack.url, name, await asyncio.to_thread(enroll, stack.url, name, token)) for name in ("loop", "good")
    ]
    answers = [await one_session(agents[0]) for _ in range(60)]
    assert answers.count("") < 40
    assert "overloaded" in answers
    counted = FrameCounter.objects.filter(node_name="loop", reason="reconnects")
    await eventually("it is counted", counted.exists, stack=stack)
    told = Event.objects.filter(kind__in=("node.connected", "node.disconnected"))
    assert await sync_to_async(told.count)() <= 10
    agents[1].tell(frames.XidSeen(XidEvent(index=0, xid=79)))
    agents[1].start()
    await eventually("the other is heard", lambda: Signal.objects.filter(kind="xid").exists(), stack=stack)
    await agents[1].stop()


async def test_refused_sessions_are_counted_each_and_audited_once_in_a_while(stack: Stack) -> None:
    stranger = FakeAgent(stack.url, "nobody", Enrolled(node_id="node_nobody", key=NodeKey.fresh()))
    for _ in range(30):
        assert await one_session(stranger) == "unknown_node"

    def counted() -> bool:
        rows = FrameCounter.objects.filter(reason="unknown_key").values_list("count", flat=True)
        return sum(rows) == 30

    await eventually("each is counted", counted, stack=stack)
    audited = AuditEntry.objects.filter(action="agent.session_refused", reason="unknown_node")
    await eventually("it is audited", audited.exists, stack=stack)
    assert await sync_to_async(audited.count)() == 1


async def test_sockets_of_strangers_do_not_keep_an_agent_out(stack: Stack) -> None:
    token = await sync_to_async(join_token)()
    agent = FakeAgent(stack.url, "good", await asyncio.to_thread(enroll, stack.url, "good", token))
    stranger = FakeAgent(stack.url, "nobody", Enrolled(node_id="node_nobody", key=NodeKey.fresh()))
    stop = asyncio.Event()

    async def knock() -> None:
        while not stop.is_set():
            try:
                await one_session(stranger)
            except (OSError, InvalidStatus, TimeoutError):
                continue

    knocking = [asyncio.create_task(knock()) for _ in range(40)]
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 30.0)
    stop.set()
    await asyncio.gather(*knocking)
    await agent.stop()


async def test_sockets_that_say_nothing_do_not_keep_an_agent_out(stack: Stack) -> None:
    """More of them than there are places, from the agent's own address, each opened anew when it ends."""
    token = await sync_to_async(join_token)()
    agent = FakeAgent(stack.url, "good", await asyncio.to_thread(enroll, stack.url, "good", token))
    opened = 0

    async def idle() -> None:
        nonlocal opened
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        try:
            writer.write(UPGRADE % stack.port)
            await reader.readuntil(b"\r\n\r\n")
            opened += 1
            while await reader.read(4096):
                if reader.at_eof():
                    return
        finally:
            writer.close()

    async def keep_idle() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await idle()
            await asyncio.sleep(0.1)

    idlers = [asyncio.create_task(keep_idle()) for _ in range(MAX_UNKNOWN_SOCKETS + 200)]
    try:
        async with asyncio.timeout(60.0):
            while opened < MAX_UNKNOWN_SOCKETS + 200:
                await asyncio.sleep(0.1)
        # Each try is one of its own: none of them may find the door shut for long.
        for _ in range(3):
            agent.start()
            await asyncio.wait_for(agent.welcomed.wait(), 5.0)
            await agent.stop()
            agent.welcomed.clear()
    finally:
        await end(*idlers)
        await agent.stop()


async def test_a_flood_of_events_of_one_node_delays_only_itself(stack: Stack) -> None:
    token = await sync_to_async(join_token)(uses=2)
    flood, good = [
        FakeAgent(stack.url, name, await asyncio.to_thread(enroll, stack.url, name, token))
        for name in ("flood", "good")
    ]
    good.start()
    await asyncio.wait_for(good.welcomed.wait(), 20.0)
    for _ in range(2_000):
        flood.tell(frames.DeviceLost(99, "GPU"))
    flood.start()
    await asyncio.wait_for(flood.welcomed.wait(), 20.0)
    good.tell(frames.XidSeen(XidEvent(index=0, xid=79)))
    await eventually("the other is heard", lambda: Signal.objects.filter(kind="xid").exists(), stack=stack)
    await flood.stop()
    await good.stop()
