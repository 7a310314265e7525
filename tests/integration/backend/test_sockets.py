"""What strangers, garbage and floods get from the agents' socket, and what they leave behind."""

import asyncio
import json
import urllib.error
import urllib.request
from collections import Counter

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db.models import Sum
from websockets.asyncio.client import connect

from agents.errors import EnrolmentError
from agents.link.keys import NodeKey
from controlplane.fleet.enrolment import revoke
from controlplane.fleet.models import Node
from controlplane.protocol import frames
from controlplane.protocol.codec import decode_to_agent, encode_frame
from controlplane.protocol.handshake import encode_bytes
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import XidEvent
from controlplane.recovery.models import Signal
from controlplane.runtime.models import FrameCounter
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import Enrolled, FakeAgent, enroll, join_token
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]


async def enrolled(stack: Stack, name: str = "node-1") -> FakeAgent:
    """A new node's agent, not yet connected."""
    token = await sync_to_async(join_token)()
    return FakeAgent(stack.url, name, await asyncio.to_thread(enroll, stack.url, name, token))


async def refusal(agent: FakeAgent, *messages: bytes | str, proved: bool = True) -> frames.Refused:
    """Send these (after the proof and the hello, unless not `proved`); what the server says last."""
    async with connect(agent.url, compression=None) as socket:
        if proved:
            answer = await agent.open(socket, *messages)
        else:
            for message in messages:
                await socket.send(message)
            answer = decode_to_agent(await asyncio.wait_for(socket.recv(), 20.0))  # type: ignore[arg-type]
        while not isinstance(answer, frames.Refused):
            answer = decode_to_agent(await asyncio.wait_for(socket.recv(), 20.0))  # type: ignore[arg-type]
        return answer


async def counted(reason: str) -> int:
    """How often input was refused for that reason."""
    return sum(await sync_to_async(list)(FrameCounter.objects.filter(reason=reason).values_list("count", flat=True)))


async def test_an_enrolled_agent_is_welcomed_and_every_misuse_of_the_socket_is_refused_and_counted(
    stack: Stack,
) -> None:
    agent = await enrolled(stack)
    hello = encode_frame(agent._hello())
    nobody = FakeAgent(stack.url, agent.name, Enrolled(node_id=agent.credential.node_id, key=NodeKey.fresh()))
    assert (await refusal(nobody)).code == "unknown_node"
    assert (await refusal(agent, b"\x00garbage", proved=False)).code == "malformed_frame"
    assert (await refusal(agent, "text", proved=False)).code == "malformed_frame"
    assert (await refusal(agent, hello, proved=False)).code == "bad_protocol"
    assert (await refusal(agent, *[b"\xc1"] * 10)).code == "malformed_frame"
    gone = Node.objects.filter(name=agent.name, connected=False)
    await eventually("its own session has ended", gone.exists, stack=stack)
    stranger = FakeAgent(stack.url, "node-9", agent.credential)
    assert (await refusal(stranger)).code == "identity_mismatch"
    foreign = [frames.AgentEvent(n, 0.0, frames.RankJoined(RankRef("job_x", 1, 0, 1, 0))) for n in range(1, 13)]
    frame, again = (
        encode_frame(frames.AgentFrame(seq=seq, uptime_s=1.0, events=tuple(part)))
        for seq, part in ((1, foreign[:6]), (2, foreign[6:]))
    )
    assert (await refusal(agent, frame, again)).code == "identity_mismatch"
    await eventually("garbage is counted", lambda: FrameCounter.objects.filter(reason="malformed_frame").exists())
    everything = {"malformed_frame": 12, "unknown_key": 1, "identity_mismatch": 8}

    def all_counted() -> bool:
        found = Counter(dict(FrameCounter.objects.values_list("reason").annotate(Sum("count"))))
        return all(found[reason] >= number for reason, number in everything.items())

    await eventually("each is counted", all_counted, stack=stack)
    assert await counted("unknown_key") == 1


@pytest.mark.parametrize("ahead", [True, False])
async def test_unknown_fields_are_dropped_and_counted_of_a_newer_agent_and_refused_of_any_other(
    stack: Stack, ahead: bool
) -> None:
    agent = await enrolled(stack)
    newer = frames.PROTOCOL_MAX + 1 if ahead else frames.PROTOCOL_MAX
    prove = agent.credential.prove
    agent._prove = lambda challenge: agent.credential.key.proof(  # type: ignore[method-assign]
        challenge.nonce,
        msgspec.structs.replace(
            prove(challenge, boot_id=agent.boot_id, journal_id=agent.journal_id), protocol_max=newer
        ),
    )
    seen = frames.AgentEvent(1, 0.0, frames.XidSeen(XidEvent(index=0, xid=43)))
    raw = msgspec.msgpack.decode(encode_frame(frames.AgentFrame(seq=1, uptime_s=1.0, events=(seen,))))
    raw |= {"mood": "fine"}
    raw["events"][0]["body"]["xid"]["bank"] = 7
    async with connect(agent.url, compression=None) as socket:
        welcome = await agent.open(socket, msgspec.msgpack.encode(raw))
        assert isinstance(welcome, frames.Welcome)
        assert welcome.protocol == frames.PROTOCOL_MAX
        if ahead:
            await eventually("the event is applied", lambda: Signal.objects.filter(kind="xid").exists(), stack=stack)
            await eventually(
                "it is counted", lambda: FrameCounter.objects.filter(reason="newer_field").exists(), stack=stack
            )
            assert await counted("malformed_frame") == 0
        else:
            await eventually(
                "it is counted", lambda: FrameCounter.objects.filter(reason="malformed_frame").exists(), stack=stack
            )
            assert not await sync_to_async(Signal.objects.filter(kind="xid").exists)()


async def test_an_oversized_frame_ends_the_session_and_harms_nobody(stack: Stack) -> None:
    agent = await enrolled(stack)
    async with connect(agent.url, compression=None) as socket:
        assert isinstance(await agent.open(socket), frames.Welcome)
        await socket.send(b"\x00" * (frames.MAX_FRAME_BYTES + 1))
        answer = decode_to_agent(await asyncio.wait_for(socket.recv(), 20.0))  # type: ignore[arg-type]
    assert isinstance(answer, frames.Refused)
    assert answer.code == "frame_too_large"
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)
    await agent.stop()


async def test_a_newer_session_replaces_the_older_and_a_revoked_node_is_shut_out(stack: Stack) -> None:
    first = await enrolled(stack)
    first.start()
    await asyncio.wait_for(first.welcomed.wait(), 20.0)
    second = FakeAgent(stack.url, first.name, first.credential)
    second.start()
    await asyncio.wait_for(second.welcomed.wait(), 20.0)
    await eventually("the older session is told", lambda: any(r.code == "replaced" for r in first.refused))
    await first.stop()
    node = await sync_to_async(Node.objects.get)(name=first.name)
    await sync_to_async(revoke)(node.id, actor="ada", reason="lost")
    await eventually("the revoked node is told", lambda: any(r.code == "revoked" for r in second.refused))
    await second.stop()


async def test_enrolment_errors_are_problems_that_say_what_to_do(stack: Stack) -> None:
    key = NodeKey.fresh()
    signed = {"proof": encode_bytes(key.sign(b"something else"))}

    def fail(name: str, token: str) -> tuple[int, dict[str, object]]:
        body = json.dumps({"join_token": token, "node_name": name, "public_key": key.public_key} | signed).encode()
        url, headers = f"{stack.url}/agent/v1/enroll", {"Content-Type": "application/json"}
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, data=body, headers=headers), timeout=10.0)
        assert caught.value.headers["Content-Type"].startswith("application/problem+json")
        return caught.value.code, json.load(caught.value)

    status, problem = await asyncio.to_thread(fail, "node-1", "holdfast_join_wrong")
    assert status == 403
    status, problem = await asyncio.to_thread(fail, "Not A Host", "x")
    assert status == 422
    assert problem["errors"][0]["pointer"] == "/node_name"  # type: ignore[index]
    token = await sync_to_async(join_token)()
    await asyncio.to_thread(enroll, stack.url, "node-1", token)
    with pytest.raises(EnrolmentError, match=r"refused \(403\).*used up"):
        await asyncio.to_thread(enroll, stack.url, "node-2", token)


async def test_events_survive_a_killed_web_process_and_are_applied_once(stack: Stack) -> None:
    agent = await enrolled(stack)
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)
    for number in range(40):
        agent.tell(frames.XidSeen(XidEvent(index=0, xid=100 + number)))
        if number == 20:
            stack.web.kill()
    stack.web.start()
    await asyncio.to_thread(stack.wait_for_web)
    await eventually("all are applied", lambda: Signal.objects.filter(kind="xid").count() == 40, stack=stack)
    values = await sync_to_async(sorted)(Signal.objects.filter(kind="xid").values_list("value", flat=True))
    assert values == [float(100 + n) for n in range(40)]
    await eventually("all are acknowledged", lambda: not agent.unacked, stack=stack)
    await agent.stop()
