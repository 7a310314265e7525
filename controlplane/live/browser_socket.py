"""WS /api/v1/live: durable events in order, pictures by topic; see /api/v1's contract.

It ends within 5 s of the session that opened it (`access.watch`), with 4401: sign in again.
4503: the session could not be confirmed, connect again.

The page works without it (it polls slowly), so nothing relies on a push arriving.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from channels.auth import AuthMiddlewareStack
from channels.consumer import AsyncConsumer
from channels.security.websocket import AllowedHostsOriginValidator

import controlplane
from controlplane.access.models import Scope
from controlplane.access.refusals import refusals
from controlplane.access.rights import Rights, rights_of
from controlplane.access.sessions import stored_key
from controlplane.access.standing import Standing
from controlplane.access.watch import SIGNED_OUT, Watched, watch
from controlplane.jobs.seen import projects_of
from controlplane.live.hub import Client, text_of
from controlplane.live.links import Send
from controlplane.live.process import WebProcess
from controlplane.live.pumps import events_after
from controlplane.runtime import events
from controlplane.runtime.address import client_address
from controlplane.runtime.requests import on_behalf_of

MAX_MESSAGE_BYTES = 16 * 1024
MAX_TOPICS = 100
MAX_TOPIC_CHARS = 80
MAX_REPLAY = 1000
MAX_BAD = 20
OF_JOB = "job:"
MAX_CLIENTS = 500
CLOSE_ANONYMOUS = 4401
CLOSE_FULL = 4429
CLOSE_BAD = 4400
CLOSE_UNCONFIRMED = 4503
CLOSE_S = 1.0
VERSION = getattr(controlplane, "__version__", "0.1.0")


class Subscribe(msgspec.Struct, tag_field="type", tag="subscribe"):
    """Watch these topics from now on; `since`: newest event the page has applied."""

    topics: list[str]
    since: int | None = None


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Answered by a pong."""


_decode = msgspec.json.Decoder(Subscribe | Ping).decode


class BrowserSocket(AsyncConsumer):
    """See the module. Its own receive loop, like the agents'."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        """Refuse strangers, then read and write until either end closes."""
        await receive()
        await send({"type": "websocket.accept"})
        process = WebProcess.current()
        await process.ensure_started()
        let_in = await process.in_thread(_who, scope)
        if let_in is None:
            await process.in_thread(_refused, client_address(scope))
            await send({"type": "websocket.close", "code": CLOSE_ANONYMOUS, "reason": "log in first"})
            return
        if len(process.hub.clients) >= MAX_CLIENTS:
            await send({"type": "websocket.close", "code": CLOSE_FULL, "reason": "too many browsers"})
            return
        reader, rights = let_in
        watched: Watched | None = None
        client = Client(lambda: (watched and watched.rights) or rights)
        process.hub.clients.add(client)
        writer = asyncio.create_task(_write(client, send))
        reading: asyncio.Task[None] | None = None
        try:
            async with watch().guarded(reader, Scope.READ) as watched:
                seq = await process.in_thread(events.newest_seq)
                client.put(text_of({"type": "hello", "seq": seq, "version": VERSION}))
                reading = asyncio.create_task(_read(process, client, receive, send))
                ended = asyncio.create_task(watched.ended.wait())
                await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if reading.done():
                    reading.result()
        finally:
            process.hub.clients.discard(client)
            tasks = [task for task in (writer, reading) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if watched is not None and watched.ended.is_set():
            code = CLOSE_ANONYMOUS if watched.reason == SIGNED_OUT else CLOSE_UNCONFIRMED
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                close = send({"type": "websocket.close", "code": code, "reason": watched.reason})
                await asyncio.wait_for(close, CLOSE_S)


def _who(scope: dict[str, Any]) -> tuple[Standing, Rights] | None:
    """By what the page was let in, and its reader's rights; None for nobody. Reads the session: not on the loop."""
    user, key = scope["user"], scope["session"].session_key
    if not user.is_authenticated or key is None:
        return None
    rights = rights_of(user)
    return None if rights is None else (Standing(kind="session", key=stored_key(key), user_id=user.pk), rights)


def _refused(address: str) -> None:
    """A row of the audit log; the same again within a minute is counted."""
    with on_behalf_of("", address):
        refusals.note("unknown", "live.refused", "/api/v1/live", reason="no session that is open")


async def _write(client: Client, send: Send) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        while True:
            await send({"type": "websocket.send", "text": await client.queue.get()})


async def _read(process: WebProcess, client: Client, receive: Any, send: Send) -> None:
    bad = 0
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        raw = message.get("text") or ""
        try:
            if len(raw) > MAX_MESSAGE_BYTES:
                raise msgspec.DecodeError("too long")
            said = _decode(raw.encode())
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            bad += 1
            if bad >= MAX_BAD:
                await send({"type": "websocket.close", "code": CLOSE_BAD, "reason": "not our protocol"})
                return
            continue
        if isinstance(said, Ping):
            client.put(text_of({"type": "pong"}))
        else:
            await subscribe(process, client, said)


async def subscribe(process: WebProcess, client: Client, said: Subscribe) -> None:
    """Set the topics; the first time, replay what was missed (or tell it to refetch).

    The replay is read while the hub does not serve this client yet, and ends at the hub's
    own cursor, so nothing is told twice or left out.
    """
    topics = [topic for topic in said.topics[:MAX_TOPICS] if len(topic) <= MAX_TOPIC_CHARS]
    client.topics = await process.in_thread(_with_projects, topics)
    process.hub.watching.set()
    if client.sent_seq is not None:
        return
    newest, oldest = await process.in_thread(lambda: (events.newest_seq(), events.kept_from()))
    since = newest if said.since is None else said.since
    if since > newest or since < oldest - 1 or newest - since > MAX_REPLAY:
        client.resync(newest)
        process.hub.wakeup.set()
        return
    while True:
        missed = await process.in_thread(events_after, since, MAX_REPLAY)
        for shared in missed:
            client.put(shared.text_for(shared.hidden_from(client.rights())))
            since = shared.seq
        # No await between this check and the hand-over: the hub cannot move in between.
        if since >= (process.hub.seq or 0):
            client.sent_seq = since
            process.hub.wakeup.set()
            return
        if not missed:
            client.resync(newest)
            return


def _with_projects(topics: list[str]) -> dict[str, str | None]:
    """Each with the project of the job that it is about, None where it is about none. A job that does not exist has
    no pictures."""
    jobs = {topic: topic.removeprefix(OF_JOB) for topic in topics if topic.startswith(OF_JOB)}
    projects = projects_of(set(jobs.values()))
    others: dict[str, str | None] = {topic: None for topic in topics if topic not in jobs}
    return others | {topic: projects[job_id] for topic, job_id in jobs.items() if job_id in projects}


def browser_socket() -> Callable[..., Awaitable[None]]:
    """The consumer behind its guards: same-host Origin, session, user."""
    return AllowedHostsOriginValidator(AuthMiddlewareStack(BrowserSocket.as_asgi()))
