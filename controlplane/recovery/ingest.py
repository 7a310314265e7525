"""Agents' events to rows: facts, applied once, in order, before they are acknowledged.

Called by the web process's one writer thread with what one node sent. One transaction a
batch: lock the jobs it touches (by id), then the node; drop what was applied before,
stop at a gap; apply each event; remember the newest `seq`. The caller acknowledges after
the commit, so a crash in between only makes the agent send again.

A batch that cannot be applied is cut in two until the event at fault stands alone; after
`TRIES` it is put aside (`deadletter`) and everything else goes on. Only an outage of the
database makes a node wait.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec

from controlplane.changes.handshake import greeting_of
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Node
from controlplane.fleet.publish import publish_node
from controlplane.jobs.models import Job
from controlplane.jobs.selectors import wanting_nodes
from controlplane.jobs.services import TERMINAL, wake_job, wake_job_later
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentEvent, AgentHello, DeviceLost, NodeNotice, XidSeen
from controlplane.recovery import deadletter, doubts, hello, identity, signals
from controlplane.recovery.facts import apply_event, finish
from controlplane.recovery.heard import Heard
from controlplane.recovery.row_queries import JOBS_ON
from controlplane.runtime import counters, events
from controlplane.runtime.clock import ago
from controlplane.runtime.locks import lock_row, lock_rows, retrying
from controlplane.runtime.outages import raise_if_outage
from controlplane.runtime.prepared import NUMBER, TEXT, Change

OF_ALL_HERE = (XidSeen, DeviceLost, NodeNotice)
"""They concern every job with ranks on the node."""
_TAKEN_IN = Change(lambda node, seq: (Node.objects.filter(pk=node), {"last_event_seq": seq}), node=TEXT, seq=NUMBER)
# How often an event is tried by itself before it is put aside.
TRIES = 3
# So many events are put aside at once; then other nodes have their turn, and this one resends.
MAX_ASIDE_A_TURN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`acked_seq`: newest event applied or put aside. `resend`: those behind it are wanted
    again; `resync`: there is a gap that no repeat has closed, so that only a new journal helps.
    `aside`: how many were put aside; `refused`: of them, for speaking for another node."""

    acked_seq: int
    resend: bool = False
    resync: bool = False
    steps: list[dict[str, object]] = field(default_factory=list)
    aside: int = 0
    refused: int = 0


class StaleSession(Exception):
    """The events came on a socket that a newer one has replaced."""


def open_session(node_id: str, session_id: str, said: AgentHello) -> int:
    """A hello was accepted: the session is live. Returns the newest event applied of its
    journal. Raises IdentityMismatch when the hello names another node."""
    return retrying(lambda: _open_session(node_id, session_id, said), "open session")


def _open_session(node_id: str, session_id: str, said: AgentHello) -> int:
    with events.unit_of_work():
        mine = set(JOBS_ON(node=node_id))
        jobs = lock_rows(Job, mine.union(hello.job_ids(node_id, said)))
        node = lock_row(Node, node_id)
        if node is None or node.name != said.node_name:
            raise IdentityMismatch(f"this credential is not node {said.node_name!r}'s")
        greeting = greeting_of(
            said,
            node_id=node_id,
            journal_id=node.journal_id,
            boot_id=node.boot_id,
            applied_seq=node.last_event_seq,
        )
        fleet.open_session(
            node,
            session_id=session_id,
            boot_id=said.boot_id,
            journal_id=said.journal_id,
            version=said.agent_version,
            segment=said.segment,
        )
        fleet.note_revision(node, said.protocol_max)
        if found := fleet.sync_devices(node, said.devices):
            publish_node(node, "device.found", f"Node {node.name} has {found}.")
        hello.greet(node, jobs, said, greeting, mine)
        dispatch.requeue_of_node(node_id)
        signals.settle(signals_open_silence(node_id), f"node {node.name} is connected again")
        signals.settle(signals_of_devices_back(node), "the device is back")
        for job_id in jobs:
            wake_job(job_id)
        for job_id in wanting_nodes():
            if job_id not in jobs:
                wake_job_later(job_id)
        return Node.objects.values_list("last_event_seq", flat=True).get(pk=node_id)


def signals_of_devices_back(node: Node) -> list[signals.Signal]:
    """Open findings that a device is gone, of those that its driver lists again."""
    back = node.devices.filter(present=True).values_list("index", flat=True)
    rows = signals.Signal.objects.filter(kind="device_lost", node=node, settled_at=None, device_index__in=list(back))
    return list(rows)


def signals_open_silence(node_id: str) -> list[signals.Signal]:
    """Open findings that the node is silent."""
    return list(signals.Signal.objects.filter(kind="node_silent", node_id=node_id, settled_at=None))


def apply_events(
    node_id: str, session_id: str, batch: tuple[AgentEvent, ...], *, received_s: float | None = None
) -> Outcome:
    """Apply a batch of one node; what cannot be applied is put aside and told. `received_s`: when it came, by the
    monotonic clock (None: now); since then it has waited, and what it tells of is older by that. Raises
    StaleSession, or the database's own error while it is out."""
    since_s = time.monotonic() if received_s is None else received_s
    return _apply_halves(node_id, session_id, _Batch(batch, since_s), room=MAX_ASIDE_A_TURN)


def aged(batch: tuple[AgentEvent, ...], seconds: float) -> tuple[AgentEvent, ...]:
    """The same events, so much older."""
    return tuple(msgspec.structs.replace(event, age_s=event.age_s + seconds) for event in batch)


class _Batch(NamedTuple):
    """`received_s`: see `apply_events`."""

    events: tuple[AgentEvent, ...]
    received_s: float

    def by_now(self) -> tuple[AgentEvent, ...]:
        """Each as old as it is at this moment."""
        return aged(self.events, time.monotonic() - self.received_s)


def _apply_halves(node_id: str, session_id: str, sent: _Batch, *, room: int) -> Outcome:
    """The batch as a whole, or, if that fails, its first half, then its second. `room`: so many
    events may still be put aside in this turn."""
    batch, since_s = sent
    try:
        return retrying(lambda: _apply_events(node_id, session_id, sent), "apply events")
    except StaleSession:
        raise
    except Exception as error:
        raise_if_outage(error)
        if len(batch) == 1:
            return _apply_alone(node_id, session_id, sent)
    ordered = tuple(sorted(batch, key=lambda event: event.seq))
    middle = len(ordered) // 2
    first = _apply_halves(node_id, session_id, _Batch(ordered[:middle], since_s), room=room)
    if first.resend or first.aside >= room:
        return Outcome(
            acked_seq=first.acked_seq, resend=True, steps=first.steps, aside=first.aside, refused=first.refused
        )
    second = _apply_halves(node_id, session_id, _Batch(ordered[middle:], since_s), room=room - first.aside)
    return Outcome(
        acked_seq=second.acked_seq,
        resend=second.resend,
        steps=first.steps + second.steps,
        aside=first.aside + second.aside,
        refused=first.refused + second.refused,
    )


def _apply_alone(node_id: str, session_id: str, sent: _Batch) -> Outcome:
    """The event that failed, once more (another writer may have been first); then aside."""
    failed: list[Exception] = []
    while len(failed) < TRIES - 1:
        try:
            return retrying(lambda: _apply_events(node_id, session_id, sent), "apply one event")
        except StaleSession:
            raise
        except Exception as error:
            raise_if_outage(error)
            failed.append(error)
    return retrying(lambda: _put_aside(node_id, session_id, sent, failed[-1]), "put an event aside")


def _put_aside(node_id: str, session_id: str, sent: _Batch, error: Exception) -> Outcome:
    """Keep the event where it delays nobody, and count it as taken, if it is the next one."""
    with events.unit_of_work():
        node = _own(node_id, session_id)
        (event,) = sent.by_now()
        fresh, gap = _in_order(node, (event,))
        if not fresh:
            return Outcome(acked_seq=node.last_event_seq, resend=gap)
        deadletter.put(node, event, error, tries=TRIES)
        Node.objects.filter(pk=node_id).update(last_event_seq=event.seq)
    return Outcome(acked_seq=event.seq, aside=1, refused=int(isinstance(error, IdentityMismatch)))


def _apply_events(node_id: str, session_id: str, sent: _Batch) -> Outcome:
    with events.unit_of_work():
        jobs = lock_rows(Job, _jobs_touched(node_id, sent.events))
        node = _own(node_id, session_id)
        fresh, gap = _in_order(node, sent.by_now())
        resync = doubts.is_stuck(node, advanced=bool(fresh), gap=gap)
        facts = apply_to(node, jobs, [(ago(event.age_s), event) for event in fresh])
        acked = node.last_event_seq + len(fresh)
        if fresh:
            _TAKEN_IN(node=node_id, seq=acked)
    return Outcome(acked_seq=acked, resend=gap, resync=resync, steps=facts.points)


def replay(letter_id: str) -> None:
    """Apply an event that was put aside, exactly as a session would have. Raises NotFound or
    Conflict (it does not wait), an outage's error, or whatever makes it fail again."""
    letter = deadletter.waiting(letter_id)
    event = deadletter.event_of(letter)
    with events.unit_of_work():
        jobs = lock_rows(Job, _jobs_touched(letter.node_id, (event,)))
        node = lock_row(Node, letter.node_id)
        assert node is not None, "a node's letters are deleted with it"
        apply_to(node, jobs, [(letter.happened_at, event)])
        deadletter.replayed(letter)


def apply_to(node: Node, jobs: dict[str, Job], timed: Iterable[tuple[datetime, AgentEvent]]) -> Heard:
    """Each event with the moment it happened, to rows, in the current unit of work; `node` and
    `jobs` are locked. Raises whatever a handler raises."""
    batch = list(timed)
    facts = Heard(node=node, jobs=jobs, ranks=identity.ranks_here(node, jobs, [event for _, event in batch]))
    facts.merge.named = identity.steps_of(event for _, event in batch)
    for at, event in batch:
        facts.at = at
        apply_event(facts, event.body)
    finish(facts)
    for job_id in sorted(facts.touched):
        if jobs[job_id].state not in TERMINAL or facts.freed:
            wake_job(job_id, sure=job_id in facts.sure)
    for job_id in _waiting_for(facts):
        wake_job_later(job_id)
    return facts


def _own(node_id: str, session_id: str) -> Node:
    """The node's row, locked. Raises StaleSession when another session is its newest."""
    node = lock_row(Node, node_id)
    if node is None or node.session_id != session_id:
        raise StaleSession(session_id)
    return node


def _waiting_for(facts: Heard) -> list[str]:
    """A device was freed: jobs that wait for one are looked at."""
    if not facts.freed:
        return []
    return [job_id for job_id in wanting_nodes() if job_id not in facts.touched]


def _jobs_touched(node_id: str, batch: tuple[AgentEvent, ...]) -> set[str]:
    """Every job whose row the batch may write, so that it is locked first. Device findings and a notice
    touch the jobs with ranks on the node."""
    found = identity.job_ids_of(batch)
    command_ids = identity.command_ids_of(batch)
    if command_ids:
        answered = Command.objects.filter(pk__in=command_ids).exclude(job=None)
        found |= {job_id for job_id in answered.values_list("job_id", flat=True) if job_id}
    if any(isinstance(event.body, OF_ALL_HERE) for event in batch):
        found |= set(JOBS_ON(node=node_id))
    return found


def _in_order(node: Node, batch: tuple[AgentEvent, ...]) -> tuple[list[AgentEvent], bool]:
    """(the events that follow the newest applied one without a gap, whether there is a gap)."""
    wanted = node.last_event_seq + 1
    fresh: list[AgentEvent] = []
    duplicates = 0
    for event in sorted(batch, key=lambda event: event.seq):
        if event.seq < wanted:
            duplicates += 1
        elif event.seq == wanted:
            fresh.append(event)
            wanted += 1
        else:
            counters.count(node.name, "gap", detail=f"event {event.seq} came, {wanted} is the next")
            return fresh, True
    if duplicates:
        counters.count(node.name, "duplicate", number=duplicates)
    return fresh, False
