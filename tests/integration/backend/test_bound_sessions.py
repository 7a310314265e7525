"""Sessions that are bound to the proxy's TLS certificate: renewed, asked again, older agents, loopback."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from websockets.asyncio.client import connect

from controlplane.fleet.models import Node
from controlplane.protocol import frames
from controlplane.protocol.codec import decode_to_agent, encode_frame
from controlplane.protocol.handshake import Challenge
from controlplane.runtime.clock import now
from controlplane.runtime.models import FrameCounter
from tests.integration.agents.authority import Authority
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.front import HOST, Dialler, Front
from tests.integration.backend.servers import RedisServer, Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


class Bound:
    """A web process that requires the certificate of `file`, and an enrolled agent."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self.authority = Authority(directory, "trusted")
        self.file = directory / "proxy.crt"
        self.stack = Stack(directory, redis_url)
        self.front = self.renew()
        self.stack.web.env["HOLDFAST_TLS_CERTIFICATE"] = str(self.file)
        self.agent = Dialler(directory / "node", self.authority)

    def renew(self) -> Front:
        """The file has another certificate; a proxy that shows it."""
        context = self.authority.context(HOST)
        self.file.write_bytes(self.authority.served.read_bytes())
        return Front(self.stack.url, context)


@pytest.fixture
async def bound(transactional_db: None, tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Bound]:
    made = Bound(tmp_path, redis_server.url)
    made.stack.web.start()
    await asyncio.to_thread(made.stack.wait_for_web)
    token = await sync_to_async(join_token)()
    await asyncio.to_thread(made.agent.enrol, made.stack.url, token)
    yield made
    made.stack.stop()


async def scripted(bound: Bound, host: str) -> frames.ToAgent:
    """What is answered to an agent of a release before this one, that dialled `host` over ws://."""
    token = await sync_to_async(join_token)()
    agent = FakeAgent(bound.stack.url, "node-2", await asyncio.to_thread(enroll, bound.stack.url, "node-2", token))
    agent.credential.counter = 1
    async with connect(agent.url, compression=None) as socket:
        challenge = decode_to_agent(await socket.recv())  # type: ignore[arg-type]
        assert challenge == Challenge(challenge.nonce), "who does not offer it is not asked for it"
        where = {"boot_id": agent.boot_id, "journal_id": agent.journal_id}
        await socket.send(encode_frame(agent.credential.prove(challenge, host=host, **where)))
        await socket.send(encode_frame(agent._hello()))
        return decode_to_agent(await asyncio.wait_for(socket.recv(), 20.0))  # type: ignore[arg-type]


async def test_a_renewal_refuses_neither_the_old_nor_the_new_certificate(bound: Bound) -> None:
    async with bound.front as before, bound.renew() as after:
        # The proxy that has not reloaded yet, then the one that has, then a worker of it that is late.
        for front in (before, after, before):
            assert await bound.agent.told(front) == "welcome"
        async with bound.renew() as third:
            assert await bound.agent.told(third) == "welcome"


async def test_a_file_that_cannot_be_read_any_more_refuses_nobody(bound: Bound) -> None:
    async with bound.front as front:
        bound.file.unlink()
        assert await bound.agent.told(front) == "welcome"


async def test_a_live_session_that_is_asked_again_answers_as_it_did_though_the_file_was_renewed(bound: Bound) -> None:
    async with bound.front as front, bound.agent.session(front) as said:
        assert said == "welcome"
        async with bound.renew():
            pass
        newcomer = {"boot_id": "boot-2", "journal_id": "journal-2", "machine_id": "machine", "counter": 99}
        ask = Node.objects.filter(name="node-1").update
        await sync_to_async(ask)(challenger=newcomer | {"address": "", "devices": []}, asked_at=now())
        row = await eventually("it proved itself", lambda: Node.objects.exclude(doubt="").first(), stack=bound.stack)
    assert "two sessions with its key are live" in row.doubt
    assert not await sync_to_async(FrameCounter.objects.filter(reason="unknown_key").exists)()


async def test_a_session_that_is_asked_twice_before_it_opens_answers_twice_alike(bound: Bound) -> None:
    async with bound.front as front:
        assert await bound.agent.told(front) == "welcome"
        await sync_to_async(Node.objects.update)(session_counter=1_000)
        assert await bound.agent.told(front) == "welcome"
        assert front.passed_on == 3
    assert "went back from 1000" in (await sync_to_async(Node.objects.get)()).doubt


async def test_an_older_agent_is_refused_with_what_to_do(bound: Bound) -> None:
    answer = await scripted(bound, HOST)
    assert isinstance(answer, frames.Refused)
    assert answer.code == "bad_protocol"
    assert "Upgrade the agent" in answer.detail
    assert answer.retry_after_s == 30.0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_older_agent_that_dialled_loopback_is_welcome(bound: Bound, host: str) -> None:
    assert isinstance(await scripted(bound, host), frames.Welcome)
