"""The one thread of a web process that writes what agents say.

Sockets put (hello, events, closed) in; it takes everything that waits, joins what one
node sent, applies it and calls back. Never in a socket's read path. Events are one transaction a
node and turn; hellos of many nodes are one, and so are ends of sessions (`recovery.returning`,
`fleet.sessions`), so a burst costs few commits. A hello whose socket is gone is dropped. Full means
the sockets stop reading.
"""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import close_old_connections

from controlplane.fleet.sessions import close_sessions
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentEvent, AgentHello
from controlplane.recovery import ingest, returning
from controlplane.runtime import bus, metrics
from controlplane.runtime.errors import LostRace
from controlplane.runtime.locks import retrying
from controlplane.runtime.logs import get
from controlplane.runtime.outages import is_outage

MAX_WAITING = 5_000
MAX_WAITING_A_NODE = 200
MAX_TURN_EVENTS = 200
GATHER_S = 0.01
RETRY_S = 1.0
"""Ends of sessions that could not be written are tried again so soon."""
ALONE_S = 0.25
"""So long in a turn hellos are applied one by one."""
# Events of one session that speak for another node before it is disconnected.
MAX_FOREIGN = 8
_log = get(__name__)

# (acknowledged seq, resend, refusal code, detail)
Callback = Callable[[int, bool, str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`hello` opens a session, `events` belong to one, neither closes it. `received_s`: when, by the monotonic
    clock; the events' ages count from there. `gone`: whether the socket that waits for the answer has ended."""

    node_id: str
    session_id: str
    callback: Callback
    hello: AgentHello | None = None
    events: tuple[AgentEvent, ...] = field(default=())
    received_s: float = field(default_factory=time.monotonic)
    gone: Callable[[], bool] = lambda: False


class Writer:
    """Start once a process; `stop` finishes what waits."""

    def __init__(self, on_volatile: Callable[[str, dict[str, Any]], None]) -> None:
        self._queue: queue.Queue[Item | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
        self._on_volatile = on_volatile
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()
        self._foreign: Counter[str] = Counter()
        self._ended: dict[str, str] = {}
        self._retry_at = 0.0
        self._alone: deque[Item] = deque()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """No new items come; the waiting ones are applied."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def put(self, item: Item) -> bool:
        """False when full, or full of this node: refuse the peer, it will send again."""
        with self._lock:
            if item.events and self._waiting[item.node_id] >= MAX_WAITING_A_NODE:
                return False
            try:
                self._queue.put_nowait(item)
            except queue.Full:
                return False
            self._waiting[item.node_id] += 1
        return True

    def _taken(self, item: Item) -> None:
        with self._lock:
            self._waiting[item.node_id] -= 1
            if self._waiting[item.node_id] <= 0:
                del self._waiting[item.node_id]

    def depth(self) -> int:
        """Items that wait."""
        return self._queue.qsize() + len(self._alone)

    def _run(self) -> None:
        ended = False
        while not ended or self._alone:
            turn, last = self._turn(wait=not ended and not self._alone)
            ended = ended or last
            for step in _steps(turn):
                self._step(step)
            self._open_some()
            if self._ended and (ended or time.monotonic() >= self._retry_at):
                self._write_ends()
            close_old_connections()
            if not self._queue.empty():
                # Under load: let more come, so that one commit carries it, and let others write.
                time.sleep(GATHER_S)

    def _turn(self, *, wait: bool) -> tuple[list[Item], bool]:
        """Everything that waits (bounded); consecutive events of one session are joined. `wait`: for the first, until
        an end of a session is to be tried again."""
        items: list[Item] = []
        count, ended = 0, False
        while count < MAX_TURN_EVENTS:
            try:
                timeout_s = RETRY_S if self._ended else None
                item = self._queue.get(timeout=timeout_s) if wait and not items else self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                ended = True
                break
            self._taken(item)
            count += max(1, len(item.events))
            items.append(item)
        return _join(items), ended

    def _step(self, items: list[Item]) -> None:
        """Of different nodes. Events first: whoever is connected waits for nobody who comes or goes."""
        for item in items:
            if item.events:
                self._guarded(item, self._events)
        if hellos := [item for item in items if item.hello is not None]:
            self._opened(hellos)
        if ended := [item for item in items if item.hello is None and not item.events]:
            self._closed(ended)

    def _opened(self, items: list[Item]) -> None:
        """Who comes back as it was is answered at once; the others wait for `_open_some`, a node's in order."""
        waiting = {item.node_id for item in self._alone}
        there = self._still_there(items)
        hellos = [
            returning.Return(node_id=item.node_id, session_id=item.session_id, said=item.hello)
            for item in there
            if item.hello is not None and item.node_id not in waiting
        ]
        try:
            opened = returning.open_quiet(hellos) if hellos else {}
        except Exception as error:
            for item in there:
                self._refused(item, error)
            return
        for item in there:
            if item.node_id in opened:
                item.callback(opened[item.node_id], False, "", "")
        self._alone += [item for item in there if item.node_id not in opened]

    def _open_some(self) -> None:
        """Hellos that are applied by themselves, for a while: then it is others' turn."""
        until_s = time.monotonic() + ALONE_S
        while self._alone:
            for item in self._still_there([self._alone.popleft()]):
                self._guarded(item, self._open)
            if time.monotonic() >= until_s:
                return

    def _open(self, item: Item) -> None:
        assert item.hello is not None, "nothing else is opened"
        item.callback(ingest.open_session(item.node_id, item.session_id, item.hello), False, "", "")

    def _still_there(self, items: list[Item]) -> list[Item]:
        there = [item for item in items if not item.gone()]
        if len(there) < len(items):
            metrics.FRAMES.labels(result="hello_gone").inc(len(items) - len(there))
        return there

    def _closed(self, items: list[Item]) -> None:
        """Those that could not be written are tried again, with the next that come or soon."""
        for item in items:
            self._foreign.pop(item.session_id, None)
            self._ended[item.node_id] = item.session_id
        self._write_ends()

    def _write_ends(self) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        try:
            retrying(lambda: close_sessions(self._ended), "close sessions")
        except Exception as error:
            _log.exception("ends of sessions were not written", number=len(self._ended))
            if not is_outage(error):
                self._write_each_end()
        else:
            self._ended.clear()

    def _write_each_end(self) -> None:
        """One that can never be written keeps no other from it, and is not tried again."""
        ended, self._ended = self._ended, {}
        for node_id, session_id in ended.items():
            try:
                retrying(partial(close_sessions, {node_id: session_id}), "close a session")
            except Exception as error:
                if is_outage(error):
                    self._ended[node_id] = session_id
                else:
                    _log.error("the end of a session cannot be written", node_id=node_id, exc_info=error)

    def _guarded(self, item: Item, work: Callable[[Item], None]) -> None:
        try:
            work(item)
        except Exception as error:
            self._refused(item, error)

    def _refused(self, item: Item, error: Exception) -> None:
        """Why what a socket reported was not taken."""
        if isinstance(error, IdentityMismatch):
            item.callback(0, False, error.code, str(error))
        elif isinstance(error, ingest.StaleSession):
            item.callback(0, False, "replaced", "a newer session of this node is live")
        else:
            _log.error("what an agent reported was not written", node_id=item.node_id, exc_info=error)
            if item.hello is not None and not is_outage(error) and not isinstance(error, LostRace):
                # No later try can store this hello; the agent waits long before the next one.
                detail = f"this hello cannot be stored ({type(error).__name__}); see the server's log"
                item.callback(0, False, "bad_protocol", detail)
            else:
                item.callback(0, False, "overloaded", f"not written, send again: {type(error).__name__}")

    def _events(self, item: Item) -> None:
        """Apply and acknowledge. A session that speaks for others again and again ends."""
        outcome = ingest.apply_events(item.node_id, item.session_id, item.events, received_s=item.received_s)
        item.callback(outcome.acked_seq, outcome.resend, "", "")
        if outcome.refused:
            self._foreign[item.session_id] += outcome.refused
            if self._foreign[item.session_id] >= MAX_FOREIGN:
                detail = f"{self._foreign[item.session_id]} events of this session are none of this node's"
                item.callback(0, False, IdentityMismatch.code, detail)
        self._tell_steps(outcome.steps)

    def _tell_steps(self, points: list[dict[str, object]]) -> None:
        by_job: dict[str, list[dict[str, object]]] = {}
        for point in points:
            by_job.setdefault(str(point["job_id"]), []).append({k: v for k, v in point.items() if k != "job_id"})
        for job_id, mine in by_job.items():
            message = {"type": "steps", "job_id": job_id, "points": mine}
            if not bus.publish_volatile(f"job:{job_id}", message):
                self._on_volatile(f"job:{job_id}", message)


def _steps(items: list[Item]) -> list[list[Item]]:
    """In the order of each node's own items; what stands in one step is of different nodes."""
    steps: list[list[Item]] = []
    before: Counter[str] = Counter()
    for item in items:
        if before[item.node_id] == len(steps):
            steps.append([])
        steps[before[item.node_id]].append(item)
        before[item.node_id] += 1
    return steps


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
                events=before.events + ingest.aged(item.events, before.received_s - item.received_s),
                received_s=before.received_s,
            )
            continue
        open_at[item.node_id] = len(joined)
        joined.append(item)
    return joined
