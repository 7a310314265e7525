"""The outbox. Rows are written by whoever decides, in his transaction; delivery reads them.

At least once: a command is sent until the agent has journaled it (`acknowledged`); the
agent answers repeats from its journal, so it takes effect once. A wake-up after the commit
makes the first delivery fast; the web process's poll makes it certain. Each command is
signed as it is written; delivery only relays, so a row that was inserted or altered by
anybody else is refused by the agent.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, prefetch_related_objects

from controlplane.changes.outbox import LIVE, RESEND_S, SENT_IN_DOUBT, STOPS, UNSENT, heard
from controlplane.dispatch import broadcasts
from controlplane.dispatch.bells import ring
from controlplane.dispatch.broadcasts import ALIKE, COLUMNS
from controlplane.dispatch.models import Command, SharedBody, Unmade
from controlplane.dispatch.publish import COMMAND, publish_command, publish_queued, supersede
from controlplane.dispatch.statements import SHARED, Copies, copies_of, opens, shared_body, shown
from controlplane.fleet.identity import no_starts_for
from controlplane.fleet.models import Node
from controlplane.fleet.publish import NODE
from controlplane.protocol.commands import Body
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.revisions import known_to
from controlplane.protocol.states import CommandState
from controlplane.runtime import bulk, events, guard, metrics
from controlplane.runtime.clock import after, age_s, ago, now
from controlplane.runtime.errors import LostRace
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row
from controlplane.runtime.logs import get
from controlplane.runtime.prepared import MOMENT, NUMBER, TEXT, Prepared, Several

_log = get(__name__)
MAX_ORDERS = 200
ORDERS_A_QUERY = 500
DETAIL_CHARS, DATA_CHARS = 2000, 20_000
_OLDER: Prepared[tuple[str, int]] = Prepared(
    lambda revision, nodes: Node.objects.filter(revision__lt=revision, pk__in=nodes).values_list("id", "revision"),
    revision=NUMBER, nodes=Several(TEXT),
)  # fmt: skip


def enqueue(
    body: Body, *, node_id: str, job_id: str | None = None, attempt: int = 0, epoch: int = 0,
    decision_id: str = "", ttl_s: float = 60.0,
) -> Command:  # fmt: skip
    """Write one order in the current unit of work. `ttl_s`: how long it may wait to be received."""
    (command_id,) = enqueue_all(
        body, node_ids=[node_id], job_id=job_id, attempt=attempt, epoch=epoch, decision_id=decision_id, ttl_s=ttl_s
    )
    return COMMAND.get(command=command_id)


def enqueue_all(
    body: Body, *, node_ids: Sequence[str], job_id: str | None = None, attempt: int = 0, epoch: int = 0,
    decision_id: str = "", ttl_s: float = 60.0,
) -> Sequence[str]:  # fmt: skip
    """The same order for each of the nodes; see `enqueue_each`."""
    commands = [(node_id, body) for node_id in node_ids]
    return enqueue_each(commands, job_id=job_id, attempt=attempt, epoch=epoch, decision_id=decision_id, ttl_s=ttl_s)


def enqueue_each(
    commands: Sequence[tuple[str, Body]], *, job_id: str | None = None, attempt: int = 0, epoch: int = 0,
    decision_id: str = "", ttl_s: float = 60.0,
) -> Sequence[str]:  # fmt: skip
    """Orders of one kind as (node id, order), in their order, each signed; their ids; see `enqueue`. An agent of
    an older release gets what it understands of it. What says the same to many nodes has no ids yet
    (`dispatch.broadcasts`)."""
    if not commands:
        return []
    kind, node_ids = str(type(commands[0][1]).__struct_config__.tag), [node_id for node_id, _ in commands]
    # What a node's own claim has ordered (`changes.handshake`) takes nothing back.
    if job_id and (decision_id or kind != STOPS):
        supersede(commands, job_id=job_id, epoch=epoch)
    created_at = now()
    like = Command(
        node_id=node_ids[0], job_id=job_id, decision_id=decision_id, attempt=attempt, epoch=epoch, kind=kind,
        ttl_s=ttl_s, created_at=created_at, due_at=created_at + timedelta(seconds=ttl_s),
    )  # fmt: skip
    ids: Sequence[str] = []
    if broadcasts.is_one(kind, commands):
        like.id = new_id("cmd")
        broadcasts.write(like, commands[0][1], node_ids, _older_agents(commands))
    else:
        ids = _write(like, commands)
    publish_queued(like, ids, len(commands))
    transaction.on_commit(lambda: ring(node_ids))
    return ids


def _write(like: Command, commands: Sequence[tuple[str, Body]]) -> Sequence[str]:
    """Their rows, each signed; what is the same for many of them is encoded once. Returns their ids."""
    ids = [new_id("cmd") for _ in commands]
    older = _older_agents(commands)
    alike = Counter((id(body), older.get(node_id, PROTOCOL_MAX)) for node_id, body in commands)
    made: dict[tuple[int, int], tuple[Copies, str | None, str]] = {}
    rows = []
    for command_id, (node_id, body) in zip(ids, commands, strict=True):
        key = (id(body), older.get(node_id, PROTOCOL_MAX))
        if key not in made:
            like.id = command_id
            made[key] = _copies(like, body, revision=key[1], shared=alike[key] > 1)
        copies, shared_id, text = made[key]
        rows.append((command_id, node_id, text, shared_id, *copies.signed(command_id, node_id)))
    bulk.insert(Command, {field: getattr(like, field) for field in ALIKE}, COLUMNS, rows)
    return ids


def _copies(like: Command, body: Body, *, revision: int, shared: bool) -> tuple[Copies, str | None, str]:
    """What to sign it by, the row that they share and the body that each has, as JSON."""
    order = body if revision >= PROTOCOL_MAX else known_to(body, revision)
    shared = shared and like.kind in SHARED
    copies = copies_of(like, order, shared=shared)
    if not shared:
        return copies, None, json.dumps(shown(order))
    row = shared_body(new_id("bod"), like, order)
    row.save(force_insert=True)
    return copies, row.pk, "{}"


def _older_agents(commands: Sequence[tuple[str, Body]]) -> Mapping[str, int]:
    """The revision that it speaks of each node whose agent is of an older release: of many, all of the fleet are
    read and none named."""
    if len(commands) <= ORDERS_A_QUERY:
        return dict(_OLDER(revision=PROTOCOL_MAX, nodes={node_id for node_id, _ in commands}))
    return dict(Node.objects.filter(revision__lt=PROTOCOL_MAX).values_list("id", "revision"))


def deliverable(node_ids: list[str]) -> list[Command]:
    """Orders to send now, oldest first. Say `delivered` once they are sent; were this process
    to die in between, they are sent again, and the agent's journal answers the repeat."""
    rows = _DUE(nodes=node_ids, moment=now())
    if rows:
        prefetch_related_objects(rows, "shared")
    return [row for row in rows if _can_be_sent(row)]


def _due(nodes: Any, moment: Any) -> QuerySet[Command]:
    due = Q(state=CommandState.QUEUED) | Q(state=CommandState.DELIVERED, send_due_at__lte=moment)
    rows = Command.objects.filter(due, node_id__in=nodes, due_at__gt=moment)
    # Where it is in doubt who the node is, nothing begins; what runs is kept in step and can be ended.
    return rows.exclude(no_starts_for(moment) & ~Q(kind__in=SENT_IN_DOUBT)).order_by("id")[:MAX_ORDERS]


_DUE: Prepared[Command] = Prepared(_due, nodes=Several(TEXT), moment=MOMENT)
_OVERDUE: Prepared[Command] = Prepared(
    lambda moment: Command.objects.filter(state__in=LIVE, due_at__lte=moment).select_related("node")[:MAX_ORDERS],
    moment=MOMENT,
)


def _can_be_sent(row: Command) -> bool:
    """It is no forgery where this process has another HOLDFAST_SECRET_KEY than who decided."""
    if not opens(row):
        _tell_sealed(row.pk)
        return False
    return True


@lru_cache(maxsize=1024)
def _tell_sealed(command_id: str) -> None:
    """Once for each, as outboxes are read several times a second."""
    _log.error("a command opens with no key of this process: set HOLDFAST_SECRET_KEY_FALLBACKS", command=command_id)


def delivered(rows: list[Command], sent_at: Mapping[str, datetime] | None = None) -> None:
    """These were sent, each at its moment of `sent_at` by id (now, where that says nothing): due
    again after RESEND_S unless the agent has journaled them (one may have answered already, and
    its answer is never older than the sending)."""
    if not rows:
        return
    with events.unit_of_work():
        for row in rows:
            _mark_delivered(row, (sent_at or {}).get(row.pk) or now())


def _mark_delivered(row: Command, at: datetime) -> None:
    again_at = after(RESEND_S)
    if row.state == CommandState.DELIVERED:
        same = Command.objects.filter(pk=row.pk, state=row.state, send_due_at=row.send_due_at)
        same.update(deliveries=F("deliveries") + 1, send_due_at=again_at)
        return
    try:
        guard.move(
            row, "command", CommandState.DELIVERED, delivered_at=at, deliveries=row.deliveries + 1, send_due_at=again_at
        )
    except LostRace:
        # Its answer was quicker than this line.
        Command.objects.filter(pk=row.pk, delivered_at=None).update(delivered_at=at, deliveries=F("deliveries") + 1)
    else:
        publish_command(row, "command.delivered", f"{row.kind} sent to node {row.node.name}.")


def requeue_of_node(node_id: str) -> int:
    """A new session: what was sent on the old one and not acknowledged is due at once."""
    return requeue_of_nodes([node_id])


def requeue_of_nodes(node_ids: Collection[str]) -> int:
    """As `requeue_of_node` of each."""
    return Command.objects.filter(node_id__in=node_ids, state=CommandState.DELIVERED).update(send_due_at=now())


def answer(node_id: str, command_id: str, state: str, detail: str, data: str) -> Command | None:
    """An agent's answer, in its unit of work. None when it says nothing new; one that acknowledges
    again with `data` is still at work. The row is locked: an answer may overtake the mark that the order
    was sent. Raises IdentityMismatch for an order to another node."""
    command = lock_row(Command, command_id)
    if command is not None and command.node_id != node_id:
        raise IdentityMismatch(f"command {command_id} was given to another node")
    if command is not None:
        command.node = NODE.get(node=node_id)
    found = heard(command.state, state, data, ttl_s=command.ttl_s) if command is not None else None
    if command is None or found is None:
        return None
    moment = now()
    columns: dict[str, object] = {"detail": detail[:DETAIL_CHARS], "data": data[:DATA_CHARS]}
    if found.due_in_s is not None:
        columns["due_at"] = moment + timedelta(seconds=found.due_in_s)
    if found.again:
        for name, value in columns.items():
            setattr(command, name, value)
        command.save(update_fields=list(columns))
        return command
    columns["send_due_at"] = None
    if found.to == CommandState.ACKNOWLEDGED:
        columns["acknowledged_at"] = moment
        metrics.COMMAND_ACK.observe((moment - command.created_at).total_seconds())
    else:
        columns |= {"finished_at": moment, "acknowledged_at": command.acknowledged_at or moment}
        metrics.COMMANDS.labels(kind=command.kind, result=str(found.to)).inc()
    guard.move(command, "command", found.to, **columns)
    sentence = f"{command.kind} on node {command.node.name}: {found.to}. {detail}".strip()
    publish_command(command, f"command.{found.to}", sentence)
    return command


def expire_overdue() -> list[Command]:
    """Orders that outlived their time; returns them for whoever must know."""
    expired = []
    for row in _OVERDUE(moment=now()):
        try:
            with events.unit_of_work():
                guard.move(row, "command", CommandState.EXPIRED, finished_at=now(), detail="not answered in time")
                publish_command(
                    row, "command.expired", f"{row.kind} for node {row.node.name} was not answered in time."
                )
        except LostRace:
            # It was answered after all, or somebody else has expired it.
            continue
        metrics.COMMANDS.labels(kind=row.kind, result="expired").inc()
        expired.append(row)
    return expired


def outbox_numbers() -> tuple[int, float | None]:
    """(commands not yet journaled by their agents, age of the oldest in seconds)."""
    rows = Command.objects.filter(state__in=UNSENT)
    oldest = rows.order_by("created_at").values_list("created_at", flat=True).first()
    waiting, since = broadcasts.waiting_numbers()
    return rows.count() + waiting, age_s(min(filter(None, (oldest, since)), default=None))


def forget_finished(older_than_s: float) -> int:
    """Delete finished orders; returns how many."""
    gone = Command.objects.exclude(state__in=LIVE).filter(finished_at__lt=ago(older_than_s)).delete()[0]
    still = Command.objects.filter(shared=OuterRef("pk"))
    unmade = Unmade.objects.filter(shared=OuterRef("pk"))
    SharedBody.objects.filter(~Exists(still), ~Exists(unmade), created_at__lt=ago(older_than_s)).delete()
    return gone
