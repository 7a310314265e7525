"""F26: a replayed proof, a stolen join token, a dump of the database, a header: none makes a session."""

import asyncio

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from websockets.asyncio.client import connect

from agents.errors import EnrolmentError
from agents.link.keys import NodeKey
from controlplane.access import join_tokens
from controlplane.access.models import AuditEntry
from controlplane.fleet import enrolment
from controlplane.fleet.models import Node
from controlplane.protocol import frames
from controlplane.protocol.codec import decode_to_agent, encode_frame
from controlplane.protocol.handshake import Challenge, enrolment_statement
from controlplane.runtime.models import FrameCounter
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import Enrolled, FakeAgent, enroll, join_token
from tests.integration.backend.servers import RedisServer, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
NAME = "node-1"


async def enrolled(stack: Stack) -> FakeAgent:
    token = await sync_to_async(join_token)()
    return FakeAgent(stack.url, NAME, await asyncio.to_thread(enroll, stack.url, NAME, token))


async def told(agent: FakeAgent, proof: bytes, *, headers: dict[str, str] | None = None) -> frames.ToAgent:
    """Answer the challenge with these bytes; what the server says to it."""
    async with connect(agent.url, compression=None, additional_headers=headers) as socket:
        challenge = decode_to_agent(await socket.recv())  # type: ignore[arg-type]
        assert isinstance(challenge, Challenge)
        await socket.send(proof)
        await socket.send(encode_frame(agent._hello()))
        return decode_to_agent(await asyncio.wait_for(socket.recv(), 20.0))  # type: ignore[arg-type]


def is_refused(answer: frames.ToAgent, code: str) -> bool:
    return isinstance(answer, frames.Refused) and answer.code == code


async def test_a_proof_that_was_overheard_is_good_for_nothing(stack: Stack) -> None:
    agent = await enrolled(stack)
    agent.credential.counter = 1
    overheard = encode_frame(agent._prove(Challenge(bytes(32))))
    unknown = await told(agent, overheard)
    assert is_refused(unknown, "unknown_node")
    nobody = FakeAgent(stack.url, NAME, Enrolled(node_id="node_nobody", key=NodeKey.fresh(), counter=1))
    stranger = await told(nobody, encode_frame(nobody._prove(Challenge(bytes(32)))))
    # One answer for both: who proves nothing does not learn which nodes there are.
    assert stranger == unknown
    await eventually(
        "both are counted",
        lambda: sum(FrameCounter.objects.filter(reason="unknown_key").values_list("count", flat=True)) == 2,
    )
    assert await sync_to_async(AuditEntry.objects.filter(action="agent.proof_refused").count)() == 1


async def test_a_proof_for_another_servers_name_is_not_taken(stack: Stack) -> None:
    stack.web.stop()
    stack.web.env["HOLDFAST_ALLOWED_HOSTS"] = "holdfast.example.org"
    stack.web.env["DJANGO_SETTINGS_MODULE"] = "tests.attacks.backend.strict_hosts"
    stack.web.start()
    await asyncio.to_thread(stack.wait_for_web)
    agent = await enrolled(stack)
    agent.credential.counter = 1
    async with connect(agent.url, compression=None) as socket:
        challenge = decode_to_agent(await socket.recv())  # type: ignore[arg-type]
        assert isinstance(challenge, Challenge)
        where = {"boot_id": agent.boot_id, "journal_id": agent.journal_id}
        await socket.send(encode_frame(agent.credential.prove(challenge, host="evil.example", **where)))
        answer = decode_to_agent(await asyncio.wait_for(socket.recv(), 20.0))  # type: ignore[arg-type]
    assert is_refused(answer, "bad_protocol")


async def test_no_header_and_no_part_of_the_address_lets_anybody_in(stack: Stack) -> None:
    agent = await enrolled(stack)
    key = agent.credential.key.public_key
    agent.url += f"?credential={key}&node_id={agent.credential.node_id}"
    hello = encode_frame(agent._hello())
    assert is_refused(await told(agent, hello, headers={"Authorization": f"Bearer {key}"}), "bad_protocol")


async def test_a_stolen_join_token_enrols_nobody_but_whom_it_was_made_for(stack: Stack) -> None:
    named = await sync_to_async(join_token)(name=NAME)
    elsewhere = await sync_to_async(join_token)(cidr="192.0.2.0/24")
    here = await sync_to_async(join_token)(cidr="127.0.0.0/8,::1/128")
    for token, name in ((named, "node-2"), (elsewhere, NAME), ("holdfast_join_guess", NAME)):
        with pytest.raises(EnrolmentError, match="403"):
            await asyncio.to_thread(enroll, stack.url, name, token)
    await asyncio.to_thread(enroll, stack.url, "node-3", here)
    await asyncio.to_thread(enroll, stack.url, NAME, named)


async def test_a_dump_of_the_database_holds_no_usable_secret(stack: Stack) -> None:
    token = await sync_to_async(join_token)(uses=2)
    agent = FakeAgent(stack.url, NAME, await asyncio.to_thread(enroll, stack.url, NAME, token))
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)
    await agent.stop()

    def dump() -> str:
        return "\n".join(str(row) for model in apps.get_models() for row in model._default_manager.values())

    text = await sync_to_async(dump)()
    assert agent.credential.key.public_key in text
    assert token not in text
    assert token.removeprefix("holdfast_join_") not in text
    # The public key, which is all that is there, signs nothing.
    forged = FakeAgent(stack.url, NAME, Enrolled(node_id=agent.credential.node_id, key=NodeKey.fresh(), counter=9))
    assert is_refused(await told(forged, encode_frame(forged._prove(Challenge(bytes(32))))), "unknown_node")


async def test_an_enrolment_signed_by_another_key_is_refused() -> None:
    key, other = NodeKey.fresh(), NodeKey.fresh()
    token = await sync_to_async(join_token)()
    statement = enrolment_statement(
        token_sha256=join_tokens.digest(token), node_name=NAME, public_key=key.public_key, boot_id=""
    )
    asked = enrolment.Enrolment(name=NAME, join_token=token, public_key=key.public_key, proof=other.sign(statement))
    with pytest.raises(Exception, match="not signed by the key"):
        await sync_to_async(enrolment.enroll_node)(asked)


async def test_a_revoked_node_is_out_and_stays_out_without_redis(
    transactional_db: None, tmp_path: object, redis_server: RedisServer
) -> None:
    stack = Stack(tmp_path, "redis://127.0.0.1:1/0")  # type: ignore[arg-type]
    stack.web.start()
    try:
        await asyncio.to_thread(stack.wait_for_web)
        agent = await enrolled(stack)
        agent.start()
        await asyncio.wait_for(agent.welcomed.wait(), 20.0)
        await sync_to_async(enrolment.revoke)(agent.credential.node_id, actor="user:ada", reason="stolen")
        await eventually("it is told", lambda: any(r.code == "revoked" for r in agent.refused))
        again = await told(agent, b"")
        assert is_refused(again, "malformed_frame")
        count = len(agent.refused)
        await eventually("each new session is refused", lambda: len(agent.refused) > count)
        assert {r.code for r in agent.refused} == {"revoked"}
        assert "holdfast node restore" in agent.refused[-1].detail
        await agent.stop()
    finally:
        stack.stop()


async def test_a_replaced_key_is_good_for_its_overlap_and_no_longer(stack: Stack) -> None:
    agent = await enrolled(stack)
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)
    old = agent.credential.copy()
    await sync_to_async(enrolment.want_new_key)(old.node_id, actor="user:ada", reason="it is old")
    await eventually("the key was replaced", lambda: agent.credential.key.public_key != old.key.public_key)
    row = await sync_to_async(Node.objects.get)(name=NAME)
    assert (row.public_key, row.old_public_key) == (agent.credential.key.public_key, old.key.public_key)
    await agent.stop()
    async with connect(agent.url, compression=None) as socket:
        assert isinstance(await agent.open(socket), frames.Welcome)
    old.counter = agent.credential.counter
    before = FakeAgent(stack.url, NAME, old)
    async with connect(before.url, compression=None) as socket:
        assert isinstance(await before.open(socket), frames.Welcome)
    await sync_to_async(Node.objects.update)(old_key_until=row.key_since)
    async with connect(before.url, compression=None) as socket:
        assert is_refused(await before.open(socket), "unknown_node")
