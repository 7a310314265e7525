"""V15: a join token in wrong hands takes over no node that is known."""

import asyncio

import pytest
from asgiref.sync import sync_to_async

from agents.errors import EnrolmentError
from agents.link.keys import NodeKey
from controlplane.fleet import enrolment
from controlplane.fleet.models import Node
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import Enrolled, FakeAgent, enroll, join_token
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
NAME = "node-1"


async def enrol(stack: Stack, token: str, name: str = NAME, **changes: object) -> Enrolled:
    return await asyncio.to_thread(enroll, stack.url, name, token, **changes)


async def test_a_token_takes_over_no_node_connected_or_not(stack: Stack) -> None:
    token = await sync_to_async(join_token)(uses=9)
    owner = await enrol(stack, token)
    with pytest.raises(EnrolmentError, match=r"409.*holdfast node re-enrol node-1"):
        await enrol(stack, token)
    agent = FakeAgent(stack.url, NAME, owner)
    agent.start()
    await asyncio.wait_for(agent.welcomed.wait(), 20.0)
    with pytest.raises(EnrolmentError, match="409"):
        await enrol(stack, token)
    await agent.stop()
    await eventually("it is away", lambda: not Node.objects.get(name=NAME).connected)
    with pytest.raises(EnrolmentError, match="409"):
        await enrol(stack, token, old_key=NodeKey.fresh())
    assert (await sync_to_async(Node.objects.get)(name=NAME)).public_key == owner.key.public_key


async def test_the_old_key_may_name_a_new_one(stack: Stack) -> None:
    token = await sync_to_async(join_token)(uses=2)
    owner = await enrol(stack, token)
    again = await enrol(stack, token, old_key=owner.key)
    assert again.node_id == owner.node_id
    assert (await sync_to_async(Node.objects.get)(name=NAME)).public_key == again.key.public_key


async def test_a_lost_disk_comes_back_with_a_token_of_its_own_and_shuts_the_old_key_out(stack: Stack) -> None:
    token = await sync_to_async(join_token)(uses=2)
    owner = await enrol(stack, token)
    old = FakeAgent(stack.url, NAME, owner)
    old.start()
    await asyncio.wait_for(old.welcomed.wait(), 20.0)
    reissue = sync_to_async(enrolment.reissue)
    shown = await reissue(owner.node_id, actor="user:ada", reason="its disk was lost", ttl_s=3600.0)
    with pytest.raises(EnrolmentError, match="403"):
        await enrol(stack, shown.secret, name="node-2")
    again = await enrol(stack, shown.secret)
    with pytest.raises(EnrolmentError, match="403"):
        await enrol(stack, shown.secret)
    await eventually("the old key is shut out", lambda: any(r.code == "unknown_node" for r in old.refused))
    await old.stop()
    new = FakeAgent(stack.url, NAME, again)
    new.boot_id, new.journal_id = "boot-2", "journal-2"
    new.start()
    await asyncio.wait_for(new.welcomed.wait(), 20.0)
    row = await sync_to_async(Node.objects.get)(name=NAME)
    assert (row.id, row.state, row.doubt) == (owner.node_id, "ready", "")
    await new.stop()


async def test_a_revoked_node_is_not_taken_over_even_with_its_old_key(stack: Stack) -> None:
    token = await sync_to_async(join_token)(uses=2)
    owner = await enrol(stack, token)
    await sync_to_async(enrolment.revoke)(owner.node_id, actor="user:ada", reason="stolen")
    with pytest.raises(EnrolmentError, match=r"409.*was revoked"):
        await enrol(stack, token, old_key=owner.key)
    shown = await sync_to_async(enrolment.reissue)(owner.node_id, actor="user:ada", reason="r", ttl_s=600.0)
    assert (await enrol(stack, shown.secret)).node_id == owner.node_id


async def test_an_answer_that_was_lost_costs_no_second_use_and_a_copied_key_no_second_name(stack: Stack) -> None:
    key = NodeKey.fresh()
    token = await sync_to_async(join_token)()
    first = await enrol(stack, token, key=key)
    assert (await enrol(stack, token, key=key)).node_id == first.node_id
    other = await sync_to_async(join_token)()
    with pytest.raises(EnrolmentError, match=r"409.*copied with its state directory"):
        await enrol(stack, other, name="node-2", key=key)
