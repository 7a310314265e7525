"""Fan-out to this process's browsers.

Durable events go to everybody, in order, so that a browser can see a gap by `seq`; of what is about a job of a
project that its reader does not see it gets the number alone. Pictures go to those who watch their topic. A slow
browser loses pictures first; if even events pile up it is told to refetch, and so is one whose reader's rights have
changed. Nothing here is shared between processes.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controlplane.access.rights import Rights
from controlplane.jobs.seen import event_seen
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


@dataclass(frozen=True, slots=True)
class Shared:
    """An event as a message, and the projects of the jobs that it names."""

    message: dict[str, Any]
    projects: Mapping[str, str] = field(default_factory=dict)

    @property
    def seq(self) -> int:
        """Its number."""
        return int(self.message["event"]["seq"])

    def hidden_from(self, rights: Rights) -> frozenset[str]:
        """The jobs of it that these rights do not see."""
        return frozenset(job_id for job_id, project in self.projects.items() if not rights.sees(project))

    def text_for(self, hidden: frozenset[str]) -> str:
        """As a reader gets it who does not see these jobs."""
        return text_of(event_seen(self.message, hidden) if hidden else self.message)


@dataclass(slots=True, eq=False)
class Client:
    """One browser, whose reader has `rights` now; `served_as`: those by which it was last told an event. `topics` that
    it watches, those of jobs with their projects. `sent_seq`: newest event put in its queue; None until it
    subscribed."""

    rights: Callable[[], Rights]
    served_as: Rights | None = None
    topics: dict[str, str | None] = field(default_factory=dict)
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

    def changed(self, rights: Rights) -> bool:
        """They are not those by which it was told before; from now on they are."""
        before, self.served_as = self.served_as, rights
        return before is not None and before is not rights and before != rights

    def resync(self, seq: int) -> None:
        """Forget what waits; it refetches everything as of `seq`."""
        while not self.queue.empty():
            self.queue.get_nowait()
        self.sent_seq = seq
        self.put(text_of({"type": "resync", "seq": seq}))


class Hub:
    """`seq`: newest event handed out; `wakeup`: there may be newer ones; `watching`: a browser watches something
    else than before."""

    def __init__(self) -> None:
        self.watching = asyncio.Event()
        self.clients: set[Client] = set()
        self.seq: int | None = None
        self.wakeup = asyncio.Event()

    def durable(self, shared: Shared) -> None:
        """Hand one event to every subscribed browser, as its reader may see it, and move the cursor."""
        seq = shared.seq
        self.seq = max(self.seq or 0, seq)
        texts: dict[frozenset[str], str] = {}
        for client in self.clients:
            if client.sent_seq is None or seq <= client.sent_seq:
                continue
            rights = client.rights()
            if client.changed(rights):
                client.resync(seq)
                continue
            hidden = shared.hidden_from(rights)
            if hidden not in texts:
                texts[hidden] = shared.text_for(hidden)
            if client.put(texts[hidden]):
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
        """A picture for those who watch `topic`, while they see the project of its job."""
        text = None
        for client in self.clients:
            if topic not in client.topics or not client.rights().sees(client.topics[topic]):
                continue
            text = text or text_of(message)
            self._shed_or_put(client, text)

    def watched(self) -> list[str]:
        """Topics that any browser watches."""
        return sorted({topic for client in self.clients for topic in client.topics})

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
