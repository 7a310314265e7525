"""The event log as the API shows it: pages by sequence number, and a stream that goes on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.db.models import QuerySet
from ninja import Schema
from pydantic import AwareDatetime, Field

from controlplane.access.models import Scope
from controlplane.access.rights import Rights
from controlplane.access.standing import Standing
from controlplane.access.watch import watch
from controlplane.api.pages import MAX_LIMIT, listing
from controlplane.api.problems import Kind, Problem
from controlplane.jobs.seen import events_seen, hidden_jobs, seen
from controlplane.runtime.clock import iso
from controlplane.runtime.events import kept_from, newest_seq, told
from controlplane.runtime.models import Event

Seq = Annotated[int, Field(ge=0, le=2**53, description="Sequence number of an event.")]
Entity = Literal["breaker", "checkpoint", "command", "decision", "device", "incident", "job", "node", "rank", "replica"]
POLL_S = 0.5
HEARTBEAT_S = 15.0
BATCH = 200
NO_JOB = "-"
RETRY_MS = 1000


class EventQuery(Schema):
    """A window of the event log. `newest`: the last `limit` of it, not the first; those before
    them with `before_seq` = the first one. `with_sentence`: only what has a sentence; the others
    carry a changed summary and no news. `entity`: only new summaries of such objects; the newest one until an
    instant is how it was then."""

    after_seq: Seq = 0
    before_seq: Seq | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 100
    newest: bool = False
    with_sentence: bool = False
    until: Annotated[AwareDatetime | None, Field(description="Not after this instant.")] = None
    entity: Annotated[Entity | None, Field(description="Only what has a new summary of such an object.")] = None


def event_view(row: Event) -> dict[str, Any]:
    """One event; empty references are null."""
    return {
        "seq": row.seq,
        "at": iso(row.at),
        "kind": row.kind,
        "sentence": row.sentence,
        "job_id": row.job_id or None,
        "job_seq": row.job_seq,
        "node_id": row.node_id or None,
        "entity": row.entity or None,
        "entity_id": row.entity_id or None,
        "patch": row.patch,
        "data": row.data,
    }


def event_page(query: EventQuery, rights: Rights, *, job_id: str = "", node_id: str = "") -> dict[str, Any]:
    """Oldest first after `after_seq`, of what these rights see; `next` is null: the last seq is the cursor. Raises
    Problem (410) where events after it are no longer all kept."""
    job_id = answered_id(rights, job_id)
    must_be_kept(query.after_seq, job_id)
    seq = newest_seq()
    rows = events_seen(rights, _after(query.after_seq, job_id, node_id))
    if query.before_seq is not None:
        rows = rows.filter(seq__lt=query.before_seq)
    if query.until is not None:
        rows = rows.filter(at__lte=query.until)
    if query.entity is not None:
        rows = rows.filter(entity=query.entity, patch__isnull=False)
    if query.with_sentence:
        rows = told(rows)
    found = list(rows.order_by("-seq")[: query.limit])[::-1] if query.newest else list(rows[: query.limit])
    return listing(seen(rights, [event_view(row) for row in found]), None, seq)


def answered_id(rights: Rights, job_id: str) -> str:
    """The id, or where that job is not seen one that no job has: both are answered alike."""
    return NO_JOB if job_id and hidden_jobs(rights, [job_id]) else job_id


def _after(after_seq: int, job_id: str = "", node_id: str = "") -> QuerySet[Event]:
    """Events in order, of one job or node if given."""
    rows = Event.objects.filter(seq__gt=after_seq).order_by("seq")
    if job_id:
        rows = rows.filter(job_id=job_id)
    return rows.filter(node_id=node_id) if node_id else rows


def must_be_kept(since: int, job_id: str = "") -> None:
    """Raises Problem (410) when events after `since` (of the job) are no longer all kept, or the log was set back
    behind it; 0 means from the first that is."""
    if since > 0 and since + 1 < kept_from(job_id):
        raise Problem(Kind.GONE, "These events are no longer kept; read the lists again and watch from as_of_seq.")
    if since > newest_seq():
        raise Problem(
            Kind.GONE,
            "There is no such event yet: the database was set back. Read the lists again and watch from as_of_seq.",
        )


async def stream(since: int, job_id: str, reader: Standing, rights: Rights) -> AsyncIterator[bytes]:
    """Server-sent events from `since` on, until the reader leaves or may no longer read. What is told follows the
    reader's rights, which are `rights` as it begins. `id` is the sequence number; a comment each HEARTBEAT_S keeps
    proxies from closing the line; an event "resync" says that the log was set back, and from where it goes on."""
    yield f"retry: {RETRY_MS}\n\n".encode()
    quiet_s = 0.0
    async with watch().guarded(reader, Scope.READ) as watched:
        while not watched.ended.is_set():
            rows, newest = await sync_to_async(_read_fresh)(since, job_id, watched.rights or rights)
            if newest < since:
                since = newest
                yield b"id: %d\nevent: resync\ndata: %s\n\n" % (since, msgspec.json.encode({"seq": since}))
                continue
            for row in rows:
                if watched.ended.is_set():
                    break
                since = row["seq"]
                yield b"id: %d\nevent: event\ndata: %s\n\n" % (since, msgspec.json.encode(row))
            quiet_s = 0.0 if rows else quiet_s + POLL_S
            if quiet_s >= HEARTBEAT_S:
                quiet_s = 0.0
                yield b": quiet\n\n"
            if len(rows) < BATCH:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(watched.ended.wait(), POLL_S)
        yield f": ended: {watched.reason}\n\n".encode()


def _read_fresh(since: int, job_id: str, rights: Rights) -> tuple[list[dict[str, Any]], int]:
    """What is new, and the newest there is of all, which is older than `since` once the log was set back. Outside a
    request Django returns no connection by itself."""
    try:
        rows = events_seen(rights, _after(since, answered_id(rights, job_id)))
        found = list(seen(rights, [event_view(row) for row in rows[:BATCH]]))
        return found, found[-1]["seq"] if found else newest_seq()
    finally:
        close_old_connections()
