"""The outbox. Rows are written by whoever decides, in his transaction; delivery reads them.

At least once: a command is sent until the agent has journaled it (`acknowledged`); the
agent answers repeats from its journal, so it takes effect once. A wake-up after the commit
makes the first delivery fast; the web process's poll makes it certain. Each command is
signed as it is written; delivery only relays, so a row that was inserted or altered by
anybody else is refused by the agent.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q

from controlplane.changes.outbox import LIVE, RESEND_S, SENT_IN_DOUBT, STARTS, STOPS, UNSENT, heard
from controlplane.dispatch.models import Command
from controlplane.dispatch.publish import publish_command, publish_queued, supersede
from controlplane.fleet.identity import no_starts_for
from controlplane.fleet.models import Node
from controlplane.protocol.commands import Body, CommandStatement, SignedCommand, StartRanks
from controlplane.protocol.errors import IdentityMismatch, ProtocolError
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.revisions import known_to
from controlplane.protocol.signing import decode_statement, encode_statement
from controlplane.protocol.states import CommandState
from controlplane.protocol.store_keys import store_token
from controlplane.runtime import at_rest, bus, events, guard, keys, metrics
from controlplane.runtime.clock import after, age_s, ago, now
from controlplane.runtime.errors import LostRace
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row
from controlplane.runtime.logs import get
from controlplane.runtime.pieces import batched

_log = get(__name__)
MAX_ORDERS = 200
ORDERS_A_QUERY = 500
DETAIL_CHARS, DATA_CHARS = 2000, 20_000


def enqueue(
    body: Body, *, node_id: str, job_id: str | None = None, attempt: int = 0, epoch: int = 0,
    decision_id: str = "", ttl_s: float = 60.0,
) -> Command:  # fmt: skip
    """Write one order in the current unit of work. `ttl_s`: how long it may wait to be received."""
    rows = enqueue_all(
        body, node_ids=[node_id], job_id=job_id, attempt=attempt, epoch=epoch, decision_id=decision_id, ttl_s=ttl_s
    )
    return rows[0]


def enqueue_all(
    body: Body, *, node_ids: Sequence[str], job_id: str | None = None, attempt: int = 0, epoch: int = 0,
    decision_id: str = "", ttl_s: float = 60.0,
) -> list[Command]:  # fmt: skip
    """The same order for each of the nodes; see `enqueue_each`."""
    orders = [(node_id, body) for node_id in node_ids]
    return enqueue_each(orders, job_id=job_id, attempt=attempt, epoch=epoch, decision_id=decision_id, ttl_s=ttl_s)


def enqueue_each(
    orders: Sequence[tuple[str, Body]], *, job_id: str | None = None, attempt: int = 0, epoch: int = 0,
    decision_id: str = "", ttl_s: float = 60.0,
) -> list[Command]:  # fmt: skip
    """Orders of one kind as (node id, order), in their order, each signed; see `enqueue`. An agent of
    an older release gets what it understands of it."""
    if not orders:
        return []
    kind, node_ids = str(msgspec.to_builtins(orders[0][1])["kind"]), [node_id for node_id, _ in orders]
    # What a node's own claim has ordered (`changes.handshake`) takes nothing back.
    if job_id and (decision_id or kind != STOPS):
        supersede(orders, job_id=job_id, epoch=epoch)
    nodes = {row.id: row for row in _nodes(node_ids)}
    rows, created_at = [], now()
    known: dict[tuple[int, int], tuple[Body, Command]] = {}
    for node_id, body in orders:
        node = nodes[node_id]
        row = Command(
            id=new_id("cmd"), node=node, job_id=job_id, decision_id=decision_id, attempt=attempt, epoch=epoch,
            kind=kind, ttl_s=ttl_s, created_at=created_at, due_at=created_at + timedelta(seconds=ttl_s),
        )  # fmt: skip
        if (id(body), node.revision) in known:
            _sign_like(row, *known[id(body), node.revision])
        else:
            order = body if node.revision >= PROTOCOL_MAX else known_to(body, node.revision)
            sign(row, order)
            known[id(body), node.revision] = order, row
        rows.append(row)
    Command.objects.bulk_create(rows, ORDERS_A_QUERY)
    publish_queued(rows)
    transaction.on_commit(lambda: ring(node_ids))
    return rows


def _nodes(node_ids: Sequence[str]) -> Iterator[Node]:
    """What an order's row needs of them."""
    for some in batched(sorted(set(node_ids)), ORDERS_A_QUERY):
        yield from Node.objects.filter(pk__in=some).only("id", "name", "revision")


def ring(node_ids: Sequence[str]) -> None:
    """Wake the web processes that hold the nodes' sockets, where one does."""
    by_process: dict[str, list[str]] = defaultdict(list)
    live = Node.objects.filter(pk__in=node_ids, connected=True).exclude(session_id="")
    for node_id, session in live.values_list("id", "session_id"):
        by_process[session.partition(".")[0]].append(node_id)
    for process, ids in by_process.items():
        bus.wake_outbox(process, ids)


def deliverable(node_ids: list[str]) -> list[Command]:
    """Orders to send now, oldest first. Say `delivered` once they are sent; were this process
    to die in between, they are sent again, and the agent's journal answers the repeat."""
    moment = now()
    due = Q(state=CommandState.QUEUED) | Q(state=CommandState.DELIVERED, send_due_at__lte=moment)
    rows = Command.objects.filter(due, node_id__in=node_ids, due_at__gt=moment)
    # Where it is in doubt who the node is, nothing begins; what runs is kept in step and can be ended.
    rows = rows.exclude(no_starts_for() & ~Q(kind__in=SENT_IN_DOUBT))
    return [row for row in rows.order_by("id")[:MAX_ORDERS] if _can_be_sent(row)]


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
    return Command.objects.filter(node_id=node_id, state=CommandState.DELIVERED).update(send_due_at=now())


def sign(command: Command, body: Body) -> None:
    """Put the statement of this row, and our signature of it, into its columns. Raises
    MalformedFrame for what no agent could decode: it fails where it was decided, not on the node."""
    statement = encode_statement(_statement(command, body))
    decode_statement(statement)
    command.key_id, command.signature = keys.sign_command(statement)
    _put(command, statement, body)


def _sign_like(command: Command, body: Body, other: Command) -> None:
    """As `sign`, of an order that was signed for another node in the same breath."""
    statement = encode_statement(_statement(command, body))
    command.key_id, command.signature = keys.sign_command(statement)
    command.body, command.statement = other.body, _at_rest(command, statement, body)


def sign_again(command: Command) -> None:
    """The same order, signed as the row's columns are now. Raises MalformedFrame."""
    sign(command, decode_statement(_said(command)).body)


def reseal(command: Command, *, opened: bool) -> None:
    """What it carries rests sealed with the present key, or in clear. Raises ProtocolError."""
    statement = _said(command)
    body = decode_statement(statement).body
    _put(command, statement, body)
    if opened:
        command.body, command.statement = msgspec.to_builtins(body), statement


def opens(command: Command) -> bool:
    """A key of this server opens it. One that none opens may still be sent by another process."""
    try:
        at_rest.open_bytes(bytes(command.statement), _place(command))
    except at_rest.Unreadable:
        return False
    return True


def _put(command: Command, statement: bytes, body: Body) -> None:
    command.body = msgspec.to_builtins(_without_values(body))
    command.statement = _at_rest(command, statement, body)


def _at_rest(command: Command, statement: bytes, body: Body) -> bytes:
    secret = isinstance(body, StartRanks) and body.launch.env
    return at_rest.seal_bytes(statement, _place(command)) if secret else statement


def signed(command: Command) -> SignedCommand:
    """The wire form: what was signed, as it was signed. A row that says something else than
    its statement goes without a signature, so that its agent refuses it and tells us."""
    statement = _said(command)
    signature = bytes(command.signature) if _agrees(command, statement) else b""
    token = store_token(settings.STORE_KEY, command.job_id or "") if command.kind == STARTS else ""
    return SignedCommand(
        command_id=command.id, key_id=command.key_id, signature=signature, statement=statement, store_token=token
    )


def is_genuine(command: Command) -> bool:
    """The row is what one of our processes has signed with a key of ours."""
    statement = _said(command)
    return _agrees(command, statement) and keys.is_ours(statement, bytes(command.signature), command.key_id)


def body_of(command: Command) -> Body | None:
    """As the row says it, of an environment the names alone. None: no agent could read that."""
    try:
        return msgspec.convert(command.body, Body)
    except msgspec.ValidationError:
        return None


def _statement(command: Command, body: Body) -> CommandStatement:
    return CommandStatement(
        command_id=command.id,
        node_id=command.node_id,
        epoch=command.epoch,
        issued_at_s=command.created_at.timestamp(),
        ttl_s=command.ttl_s,
        body=body,
        job_id=command.job_id or "",
        attempt=command.attempt,
        decision_id=command.decision_id,
    )


def _said(command: Command) -> bytes:
    """The statement as it was signed; as it rests where it opens nowhere, which agrees with nothing."""
    try:
        return at_rest.open_bytes(bytes(command.statement), _place(command))
    except at_rest.Unreadable:
        return bytes(command.statement)


def _place(command: Command) -> str:
    return f"command/{command.id}"


def _without_values(body: Body) -> Body:
    """As it stands in the row for people: of the environment the names alone."""
    if not isinstance(body, StartRanks):
        return body
    launch = msgspec.structs.replace(body.launch, env=dict.fromkeys(body.launch.env, ""))
    return msgspec.structs.replace(body, launch=launch)


def _agrees(command: Command, statement: bytes) -> bool:
    """The row's columns are those that were signed."""
    try:
        body, said = msgspec.convert(command.body, Body), decode_statement(statement)
        told = msgspec.structs.replace(said, body=_without_values(said.body))
        return told == _statement(command, _without_values(body))
    except (ProtocolError, msgspec.ValidationError):
        return False


def answer(node_id: str, command_id: str, state: str, detail: str, data: str) -> Command | None:
    """An agent's answer, in its unit of work. None when it says nothing new; one that acknowledges
    again with `data` is still at work. The row is locked: an answer may overtake the mark that the order
    was sent. Raises IdentityMismatch for an order to another node."""
    command = lock_row(Command, command_id)
    if command is not None and command.node_id != node_id:
        raise IdentityMismatch(f"command {command_id} was given to another node")
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
    rows = Command.objects.filter(state__in=LIVE, due_at__lte=now()).select_related("node")[:MAX_ORDERS]
    expired = []
    for row in rows:
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
    return rows.count(), age_s(oldest)


def forget_finished(older_than_s: float) -> int:
    """Delete finished orders; returns how many."""
    return Command.objects.exclude(state__in=LIVE).filter(finished_at__lt=ago(older_than_s)).delete()[0]
