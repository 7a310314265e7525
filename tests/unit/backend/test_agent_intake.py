"""Agents that come: who comes while too many wait, and who has left before he was let in."""

import asyncio
from typing import Any

import pytest

from controlplane.live.agent_socket import AgentSocket, Session
from controlplane.live.intake import LATEST_S, SOONEST_S, Intake
from controlplane.live.links import AgentLink
from controlplane.live.process import WebProcess
from controlplane.live.proof import Entrance
from controlplane.protocol.codec import decode_to_agent
from controlplane.protocol.frames import AgentHello, Refused
from tests.integration.backend.builders import hello

SCOPE: dict[str, Any] = {"type": "websocket", "headers": [], "client": ("127.0.0.1", 1)}
GONE = {"type": "websocket.disconnect"}


class Socket:
    """What an agent sends, one after the other, and what it is sent."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.messages.put_nowait(message)
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return await self.messages.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


@pytest.fixture
async def process() -> WebProcess:
    """One that takes itself for started: no pump runs, and its writer only keeps what it is given."""

    async def app(*_: object) -> None:
        """Nobody asks it."""

    found = WebProcess(app)
    found.loop = asyncio.get_running_loop()
    return found


def session(process: WebProcess, socket: Socket) -> Session:
    link = AgentLink(node_id="node_1", node_name="n1", session_id="web.1", send=socket.send)
    return Session(process, link, Entrance(process, link, socket.receive, SCOPE))


def said() -> AgentHello:
    return hello("n1")


async def test_who_comes_while_too_many_wait_is_refused_at_once_with_the_moment_to_come_again(
    process: WebProcess,
) -> None:
    process.intake = Intake(waiting=5000, fleet_nodes=12_500)
    socket = Socket({"type": "websocket.connect"})
    await AgentSocket()(SCOPE, socket.receive, socket.send)
    assert [message["type"] for message in socket.sent] == ["websocket.accept", "websocket.send", "websocket.close"]
    refused = decode_to_agent(socket.sent[1]["bytes"])
    assert isinstance(refused, Refused)
    assert refused.code == "overloaded"
    assert refused.retry_after_s is not None
    assert SOONEST_S <= refused.retry_after_s <= LATEST_S
    assert process.intake.refused == 1
    assert process.writer.depth() == 0


async def test_a_hello_whose_socket_ends_while_it_waits_is_not_applied_any_more(process: WebProcess) -> None:
    socket = Socket(GONE)
    mine = session(process, socket)
    assert not await mine._opened(said(), socket.receive)
    item = process.writer._queue.get_nowait()
    assert item is not None
    assert item.gone()
    assert mine.link.opened.cancelled()
    assert not process.intake.rate.measured, "it was not waited for until it was late"


async def test_what_an_agent_sends_before_it_is_welcome_is_read_after_it(process: WebProcess) -> None:
    socket = Socket({"type": "websocket.receive", "bytes": b"first"}, {"type": "websocket.receive", "bytes": b"second"})
    mine = session(process, socket)
    opening = asyncio.create_task(mine._opened(said(), socket.receive))
    await asyncio.sleep(0.01)
    assert not opening.done()
    mine.link._after_write(7, False, "", "")
    assert await opening
    assert mine.link.opened.result() == 7
    assert [await mine._next(socket.receive), await mine._next(socket.receive)] == [b"first", b"second"]


async def test_a_session_that_never_was_open_is_not_closed_and_neither_is_one_that_was_replaced_here(
    process: WebProcess,
) -> None:
    refused, replaced, last = (session(process, Socket()) for _ in range(3))
    refused._leave()
    assert process.writer.depth() == 0
    replaced.may_be_open = last.may_be_open = True
    process.links["node_1"] = last.link
    replaced._leave()
    assert process.writer.depth() == 0
    process.unregister(last.link)
    last._leave()
    assert process.writer.depth() == 1


async def test_a_hello_that_is_refused_ends_the_session_with_why(process: WebProcess) -> None:
    socket = Socket()
    mine = session(process, socket)
    opening = asyncio.create_task(mine._opened(said(), socket.receive))
    await asyncio.sleep(0.01)
    mine.link._after_write(0, False, "identity_mismatch", "another's")
    assert not await opening
    await asyncio.sleep(0.01)
    assert mine.link.refused_as == "identity_mismatch"
