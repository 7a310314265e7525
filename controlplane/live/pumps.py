"""The loops of a web process. Each has a wake-up (Redis) and a clock (the net under it)."""

import asyncio
import contextlib
import importlib
import time
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

import redis
from redis.asyncio.client import PubSub

from controlplane.access.refusals import refusals
from controlplane.dispatch import broadcasts
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.dispatch.statements import signed
from controlplane.fleet import flapping
from controlplane.fleet.identity import REVOKED_RETRY_S
from controlplane.fleet.models import Node
from controlplane.fleet.selectors import node_count
from controlplane.fleet.services import reopen_session
from controlplane.jobs.seen import job_ids_of, projects_of
from controlplane.live import proof
from controlplane.live.hub import Shared, event_message
from controlplane.protocol.commands import SignedCommand
from controlplane.protocol.frames import Order
from controlplane.recovery import gauges, ledger_gauges
from controlplane.runtime import beats, bus, events, metrics
from controlplane.runtime.clock import now, now_s
from controlplane.runtime.models import Event
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared, Several

if TYPE_CHECKING:
    from controlplane.live.process import WebProcess

POLL_ORDERS_S = 0.25
POLL_EVENTS_S = 0.5
HEALTH_S = 2.0
BEAT_S = 1.0
SWEEP_S = 2.0
GAUGES_S = 5.0
LEDGER_S = 30.0
WATCHED_S = 1.0
MAX_WATCHED = 10_000
"""Of more topics the sentinel makes all pictures."""
EVENTS_A_READ = 500
NO_PROJECT = ""
"""Of a job that is not there: an administrator of the fleet sees what names it."""
RELISTEN_S = 1.0
WAKEUP_GAP_S = 0.005
ORDER_BYTES = 1 << 20


async def listen(process: "WebProcess") -> None:
    """Redis's wake-ups: our nodes' outbox, the newest event, pictures for browsers."""
    client = bus.async_client(blocking=True)
    try:
        pubsub = client.pubsub()
        outbox = f"hf:web:{process.name}"
        await pubsub.subscribe(outbox, bus.SEQ_CHANNEL, bus.VOLATILE_CHANNEL)
        bus.health.note(None)
        await _hear(process, pubsub, outbox)
    except (redis.RedisError, OSError) as error:
        bus.health.note(error)
        await asyncio.sleep(RELISTEN_S)
    finally:
        with contextlib.suppress(redis.RedisError, OSError):
            await client.aclose()


async def _hear(process: "WebProcess", pubsub: PubSub, outbox: str) -> None:
    async for message in pubsub.listen():
        if message["type"] != "message":
            continue
        channel = message["channel"].decode()
        if channel == outbox:
            process.any_node()
        elif channel == bus.SEQ_CHANNEL:
            process.hub.wakeup.set()
        else:
            picture = bus.hear_volatile(message["data"])
            if picture is not None:
                process.hub.volatile(picture.topic, picture.message)


async def deliver_orders(process: "WebProcess") -> None:
    """Send what is due to the nodes connected here; sweep sessions that are no longer ours."""
    swept_at = read_at = 0.0
    while True:
        await _wakeup_or_clock(process.outbox_wakeup, POLL_ORDERS_S)
        if not process.links:
            continue
        arrived, process.arrived = process.arrived, set()
        if process.any_due or time.monotonic() - read_at >= POLL_ORDERS_S:
            read_at, process.any_due = time.monotonic(), False
            if await process.in_thread(broadcasts.make_waiting):
                # There may be more, and what is made is sent below, as far as its nodes are here.
                process.any_node()
            await _deliver(process, list(process.links))
        elif here := [node_id for node_id in arrived if node_id in process.links]:
            # Somebody came, and nobody rang: what is due to the others was sent.
            await _deliver(process, here)
        if time.monotonic() - swept_at >= SWEEP_S:
            swept_at = time.monotonic()
            await _sweep_sessions(process)


async def _deliver(process: "WebProcess", node_ids: list[str]) -> None:
    """What is due to these nodes, which are connected here."""
    rows = await process.in_thread(dispatch.deliverable, node_ids)
    sent: list[Command] = []
    sent_at: dict[str, datetime] = {}
    for orders in _by_node(rows):
        sent_at |= dict.fromkeys((row.pk for row in orders), now())
        if await _send(process, orders):
            sent += orders
    await process.in_thread(dispatch.delivered, sent, sent_at)


async def _wakeup_or_clock(wakeup: asyncio.Event, poll_s: float) -> None:
    """Anybody who reaches Redis can ring for ever: the database is asked once in WAKEUP_GAP_S."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(wakeup.wait(), poll_s)
    if wakeup.is_set():
        await asyncio.sleep(WAKEUP_GAP_S)
    wakeup.clear()


async def _send(process: "WebProcess", orders: list[Command]) -> bool:
    """One node's orders, in as few messages as its agent takes. False when its socket is gone."""
    link = process.links.get(orders[0].node_id)
    if link is None:
        return False
    for commands in _messages([signed(row) for row in orders]):
        if not await link.tell(Order(commands=commands, server_time_s=now_s())):
            return False
    return True


def _messages(commands: list[SignedCommand]) -> Iterator[tuple[SignedCommand, ...]]:
    """In order, each of at most ORDER_BYTES unless one command alone is larger."""
    part: list[SignedCommand] = []
    size = 0
    for command in commands:
        if part and size + len(command.statement) > ORDER_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(command)
        size += len(command.statement)
    if part:
        yield tuple(part)


def _by_node(rows: list[Command]) -> list[list[Command]]:
    nodes: dict[str, list[Command]] = {}
    for row in rows:
        nodes.setdefault(row.node_id, []).append(row)
    return list(nodes.values())


async def _sweep_sessions(process: "WebProcess") -> None:
    """Revoked nodes and sessions that another process has replaced end here; those in doubt and
    those whose key is to be replaced are asked."""
    rows = await process.in_thread(_sessions, list(process.links))
    for node_id, (session_id, revoked, connected) in rows.items():
        link = process.links.get(node_id)
        if link is None:
            continue
        if revoked:
            await link.refuse("revoked", "the node was revoked", REVOKED_RETRY_S)
        elif session_id != link.session_id:
            await link.refuse("replaced", "a newer session of this node is live", 0.1)
        elif not connected:
            await process.in_thread(reopen_session, node_id, session_id)
    await proof.ask_again(process)


_SESSIONS: Prepared[tuple[str, str, datetime | None, bool]] = Prepared(
    lambda nodes: Node.objects.filter(pk__in=nodes).values_list("id", "session_id", "revoked_at", "connected"),
    nodes=Several(TEXT),
)


def _sessions(node_ids: list[str]) -> dict[str, tuple[str, bool, bool]]:
    """(session, revoked, connected) of each node as the rows have it."""
    rows = _SESSIONS(nodes=node_ids)
    return {node_id: (session_id, revoked is not None, connected) for node_id, session_id, revoked, connected in rows}


async def follow_events(process: "WebProcess") -> None:
    """Read the event log by cursor and hand it to the hub, in order."""
    hub = process.hub
    if hub.seq is None:
        hub.seq = await process.in_thread(events.newest_seq)
    while True:
        await _wakeup_or_clock(hub.wakeup, POLL_EVENTS_S)
        if not hub.clients:
            # Nobody watches: the cursor moves without reading.
            hub.seq = await process.in_thread(events.newest_seq)
            continue
        hub.rewind(await process.in_thread(events.newest_seq))
        while True:
            found = await process.in_thread(events_after, hub.seq, EVENTS_A_READ)
            for shared in found:
                hub.durable(shared)
            if len(found) < EVENTS_A_READ:
                break


@cache
def _after(limit: int) -> Prepared[Event]:
    return Prepared(lambda seq: Event.objects.filter(seq__gt=seq).order_by("seq")[:limit], seq=NUMBER)


def events_after(seq: int, limit: int) -> list[Shared]:
    """Committed events in order, as the browsers get them, with the projects of their jobs."""
    messages = [event_message(row) for row in _after(limit)(seq=seq)]
    named = [job_ids_of(message) for message in messages]
    projects = projects_of(set().union(*named))
    return [
        Shared(message, {job_id: projects.get(job_id, NO_PROJECT) for job_id in ids})
        for message, ids in zip(messages, named, strict=True)
    ]


async def tell_health(process: "WebProcess") -> None:
    """The control plane's own health, to whoever watches."""
    try:
        health = importlib.import_module("controlplane.api.overview").health
    except ModuleNotFoundError:
        return await asyncio.sleep(HEALTH_S * 30)
    while True:
        await asyncio.sleep(HEALTH_S)
        if process.hub.clients:
            picture = await process.in_thread(health)
            process.hub.everybody({"type": "health", "health": picture})


async def announce_watched(process: "WebProcess") -> None:
    """To the sentinel, which pictures our browsers watch: no others are made for them."""
    while True:
        # First, so that what is watched while this is written is written at once.
        process.hub.watching.clear()
        topics = process.hub.watched()
        said = topics if len(topics) <= MAX_WATCHED else None
        await process.in_thread(bus.write_live, {bus.watch_key(process.name): {"topics": said}})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.hub.watching.wait(), WATCHED_S)


async def beat(process: "WebProcess") -> None:
    """A row that says this process and the database work, and how late its loop runs."""
    refreshed_at, counted_at = -GAUGES_S, -LEDGER_S
    lag = metrics.WorstLag("web")
    while True:
        if time.monotonic() - refreshed_at >= GAUGES_S:
            refreshed_at = time.monotonic()
            process.intake.fleet_nodes = await process.in_thread(node_count)
            process.intake.webs = len(await process.in_thread(beats.live_web) | {process.name})
            await process.in_thread(gauges.refresh)
            await process.in_thread(flapping.settle)
            await process.in_thread(refusals.flush)
        if time.monotonic() - counted_at >= LEDGER_S:
            counted_at = time.monotonic()
            await process.in_thread(ledger_gauges.refresh)
        begin = time.monotonic()
        await asyncio.sleep(BEAT_S)
        lag_s = max(0.0, time.monotonic() - begin - BEAT_S)
        lag.note(lag_s, time.monotonic())
        detail = {
            "agents": len(process.links),
            "browsers": len(process.hub.clients),
            "loop_lag_s": round(lag_s, 4),
            "writer_depth": process.writer.depth(),
            "sessions_per_s": round(process.intake.rate.per_s, 1),
            "sent_away": process.intake.refused,
        }
        await process.in_thread(beats.beat, "web", f"web:{process.name}", detail)
        await process.in_thread(gauges.refresh_incidents)
