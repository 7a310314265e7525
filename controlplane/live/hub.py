"""Fan-out to this process's browsers.

Durable events go to everybody, in order, so that a browser can see a gap by `seq`;
pictures go to those who watch their topic. A slow browser loses pictures first; if even
events pile up it is told to refetch. Nothing here is shared between processes.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controlplane.runtime import metrics
from controlplane.runtime.clock import iso
from controlplane.runtime.models import Event

MAX_WAITING = 1000
# Above this, pictures are shed so that events find room.
SHED_AT = 200
_encode = msgspec.json.Encoder().encode


def event_message(row: Event) -> dict[str, Any]:
    """A durable event as browsers get it."""
    return {
        "type": "event",
        "event": {
            "seq": row.seq,
            "at": iso(row.at),
            "kind": row.kind,
            "sentence": row.sentence,
            "job_id": row.job_id or None,
            "job_seq": row.job_seq,
            "node_id": row.node_id or None,
            "entity": row.entity,
            "entity_id": row.entity_id,
            "patch": row.patch,
            "data": row.data,
        },
    }


@dataclass(slots=True, eq=False)
class Client:
    """One browser. `sent_seq`: newest event put in its queue; None until it subscribed."""

    topics: set[str] = field(default_factory=set)
    queue: "asyncio.Queue[str]" = field(default_factory=lambda: asyncio.Queue(MAX_WAITING))
    sent_seq: int | None = None
    stale: bool = False

    def put(self, text: str) -> bool:
        """False when it does not read fast enough."""
        try:
            self.queue.put_nowait(text)
        except asyncio.QueueFull:
            return False
        return True

    def resync(self, seq: int) -> None:
        """Forget what waits; it refetches everything as of `seq`."""
        while not self.queue.empty():
            self.queue.get_nowait()
        self.sent_seq = seq
        self.put(text_of({"type": "resync", "seq": seq}))


class Hub:
    """`seq`: newest event handed out; `wakeup`: there may be newer ones."""

    def __init__(self) -> None:
        self.clients: set[Client] = set()
        self.seq: int | None = None
        self.wakeup = asyncio.Event()

    def durable(self, message: dict[str, Any]) -> None:
        """Hand one event to every subscribed browser and move the cursor."""
        seq = message["event"]["seq"]
        self.seq = max(self.seq or 0, seq)
        text = text_of(message)
        for client in self.clients:
            if client.sent_seq is None or seq <= client.sent_seq:
                continue
            if client.put(text):
                client.sent_seq = seq
            else:
                metrics.CHANNEL_DROPPED.inc()
                client.resync(seq)

    def rewind(self, newest: int) -> bool:
        """The log ends before our cursor: the database was set back under us. Every browser that
        subscribed fetches everything again. False: it was not."""
        if self.seq is None or newest >= self.seq:
            return False
        self.seq = newest
        for client in self.clients:
            if client.sent_seq is not None:
                client.resync(newest)
        return True

    def volatile(self, topic: str, message: dict[str, Any]) -> None:
        """A picture for those who watch `topic`."""
        text = None
        for client in self.clients:
            if topic not in client.topics:
                continue
            text = text or text_of(message)
            self._shed_or_put(client, text)

    def everybody(self, message: dict[str, Any]) -> None:
        """A picture for every browser."""
        text = text_of(message)
        for client in self.clients:
            self._shed_or_put(client, text)

    def _shed_or_put(self, client: Client, text: str) -> None:
        if client.queue.qsize() >= SHED_AT or not client.put(text):
            metrics.CHANNEL_DROPPED.inc()


def text_of(message: dict[str, Any]) -> str:
    """JSON text of a message."""
    return _encode(message).decode()
