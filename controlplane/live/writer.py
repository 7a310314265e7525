"""The one thread of a web process that writes what agents say.

Sockets put (hello, events, closed) in; it takes everything that waits, joins what one
node sent, applies it and calls back. Never in a socket's read path, one transaction a
node and turn, so a burst costs few commits. Full means the sockets stop reading.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, close_old_connections

from controlplane.fleet.services import close_session
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentEvent, AgentHello
from controlplane.recovery import ingest
from controlplane.runtime import bus
from controlplane.runtime.logs import get

MAX_WAITING = 5_000
MAX_TURN_EVENTS = 200
GATHER_S = 0.01
_log = get(__name__)

# (acknowledged seq, resend, refusal code, detail)
Callback = Callable[[int, bool, str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`hello` opens a session, `events` belong to one, neither closes it."""

    node_id: str
    session_id: str
    callback: Callback
    hello: AgentHello | None = None
    events: tuple[AgentEvent, ...] = field(default=())


class Writer:
    """Start once a process; `stop` finishes what waits."""

    def __init__(self, on_volatile: Callable[[str, dict[str, Any]], None]) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
        self._on_volatile = on_volatile

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """No new items come; the waiting ones are applied."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def put(self, item: Item) -> bool:
        """False when full: refuse the peer, it will send again."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def depth(self) -> int:
        """Items that wait."""
        return self._queue.qsize()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            turn, ended = self._turn(item)
            for joined in turn:
                self._one(joined)
            close_old_connections()
            if ended:
                return
            if not self._queue.empty():
                # Under load: let more come, so that one commit carries it, and let others write.
                time.sleep(GATHER_S)

    def _turn(self, first: Item) -> tuple[list[Item], bool]:
        """Everything that waits (bounded); consecutive events of one session are joined."""
        items, count = [first], len(first.events)
        ended = False
        while count < MAX_TURN_EVENTS:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                ended = True
                break
            count += max(1, len(item.events))
            items.append(item)
        return _join(items), ended

    def _one(self, item: Item) -> None:
        try:
            if item.hello is not None:
                acked = ingest.open_session(item.node_id, item.session_id, item.hello)
                item.callback(acked, False, "", "")
            elif item.events:
                outcome = ingest.apply_events(item.node_id, item.session_id, item.events)
                if outcome.resync:
                    item.callback(0, False, "resync", "your events do not follow what we have: begin a new journal")
                else:
                    item.callback(outcome.acked_seq, outcome.resend, "", "")
                self._tell_steps(outcome.steps)
            else:
                close_session(item.node_id, item.session_id)
        except IdentityMismatch as error:
            item.callback(0, False, error.code, str(error))
        except ingest.StaleSession:
            item.callback(0, False, "replaced", "a newer session of this node is live")
        except DatabaseError as error:
            _log.exception("the database refused what an agent told", node_id=item.node_id)
            item.callback(0, False, "overloaded", f"not written, send again: {type(error).__name__}")
        except Exception as error:
            # The event was decodable and still broke us: our bug. The session ends and is
            # counted; the agent keeps the event, other nodes go on.
            _log.exception("an event could not be applied", node_id=item.node_id)
            item.callback(0, False, "overloaded", f"not applied: {type(error).__name__}")

    def _tell_steps(self, points: list[dict[str, object]]) -> None:
        by_job: dict[str, list[dict[str, object]]] = {}
        for point in points:
            by_job.setdefault(str(point["job_id"]), []).append({k: v for k, v in point.items() if k != "job_id"})
        for job_id, mine in by_job.items():
            message = {"type": "steps", "job_id": job_id, "points": mine}
            if not bus.publish_volatile(f"job:{job_id}", message):
                self._on_volatile(f"job:{job_id}", message)


def _join(items: list[Item]) -> list[Item]:
    """Join events of one session that no other item of its node separates."""
    joined: list[Item] = []
    open_at: dict[str, int] = {}
    for item in items:
        position = open_at.get(item.node_id)
        before = joined[position] if position is not None else None
        if before is not None and item.events and before.events and before.session_id == item.session_id:
            joined[position] = Item(  # type: ignore[index]
                node_id=item.node_id,
                session_id=item.session_id,
                callback=item.callback,
                events=before.events + item.events,
            )
            continue
        open_at[item.node_id] = len(joined)
        joined.append(item)
    return joined
