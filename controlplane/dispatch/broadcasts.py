"""The same command to many nodes: decided as a few rows, made each node's own afterwards.

A view goes to every node of a job, and a stop to every node of a replica. To sign and write ten thousand commands
where it is decided held the job's row for seconds; so what is committed there is `Unmade`, a row for up to
`NODES_A_PIECE` nodes, whose signature says that it was decided. Whoever delivers (and the sweep, for what nobody takes
up) makes the commands of one piece after the other, in a transaction that removes the piece: each node's own row,
signed, before anything of it is sent. From there on they are commands as any. Of a piece that none of our processes has
signed they go unsigned, and are refused by their agents.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Min, Sum

from controlplane.changes import outbox
from controlplane.changes.outbox import STOPS
from controlplane.dispatch.bells import ring
from controlplane.dispatch.models import Command, SharedBody, Unmade
from controlplane.dispatch.statements import SHARED, Copies, alike, copies_of, shared_body
from controlplane.fleet.models import Node
from controlplane.protocol.commands import Body
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.revisions import known_to
from controlplane.protocol.signing import encode_alike
from controlplane.runtime import bulk, keys
from controlplane.runtime.clock import ago
from controlplane.runtime.ids import new_id
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOMENT, Prepared

NODES_A_PIECE = 256
ALIKE = ("job_id", "decision_id", "attempt", "epoch", "kind", "ttl_s", "created_at", "due_at")
"""What all commands of one call have in their rows."""
COLUMNS = ("id", "node_id", "body", "shared_id", "statement", "key_id", "signature")
"""What each of them has of its own."""
LATE_S = 1.0
"""Who delivers has taken a piece up by then."""
_WAITING: Prepared[str] = Prepared(lambda: Unmade.objects.values_list("pk", flat=True)[:1])
_WAITING_SINCE: Prepared[str] = Prepared(
    lambda before: Unmade.objects.filter(created_at__lte=before).values_list("pk", flat=True)[:1], before=MOMENT
)
_NOTHING = b"\xc0"
"""Said by commands whose shared row somebody has deleted."""


def is_one(kind: str, commands: Sequence[tuple[str, Body]]) -> bool:
    """These (node id, command) are the same to so many nodes that they are made afterwards."""
    alike = kind in (*SHARED, STOPS) and len(commands) > NODES_A_PIECE
    return alike and all(body is commands[0][1] for _, body in commands)


def write(like: Command, body: Body, nodes: Sequence[str], older: Mapping[str, int]) -> None:
    """In the unit of work that decides. `older`: the revision of each agent of an older release, by node id.
    Raises MalformedFrame for what no agent could decode."""
    by_revision: dict[int, list[str]] = defaultdict(list)
    for node_id in nodes:
        by_revision[older.get(node_id, PROTOCOL_MAX)].append(node_id)
    for revision, its in by_revision.items():
        order = body if revision >= PROTOCOL_MAX else known_to(body, revision)
        copies_of(like, order, shared=True)
        shared = shared_body(new_id("bod"), like, order)
        shared.save(force_insert=True)
        Unmade.objects.bulk_create(_piece(like, shared, some) for some in batched(its, NODES_A_PIECE))


def _piece(like: Command, shared: SharedBody, nodes: Sequence[str]) -> Unmade:
    row = Unmade(id=new_id("unm"), shared=shared, nodes=list(nodes), number=len(nodes), **_alike(like))
    row.key_id, sign = keys.broadcast_signer()
    row.signature = sign(_said(row, shared.packed))
    return row


def _alike(row: Command | Unmade) -> dict[str, Any]:
    return {field: getattr(row, field) for field in ALIKE}


def _said(row: Unmade, packed: bytes) -> bytes:
    """What is signed of it: all that its commands will say, and to whom."""
    return encode_alike(alike(Command(**_alike(row)), packed), command_id=row.id, node_id="\n".join(_nodes(row)))


def _nodes(row: Unmade) -> list[str]:
    """As many as we ever write; where somebody else wrote it they may be anything."""
    named = row.nodes[:NODES_A_PIECE] if isinstance(row.nodes, list) else []
    return [node for node in named if isinstance(node, str) and node.isascii() and node.isprintable()]


def make_waiting(*, older_than_s: float = 0.0) -> int:
    """The commands of the oldest piece that nobody else is about to make, each signed; how many, 0 where none waits.
    `older_than_s`: of those alone that wait for so long."""
    before = ago(older_than_s)
    found = _WAITING_SINCE.first(before=before) if older_than_s else _WAITING.first()
    if found is None:
        return 0
    waiting = Unmade.objects.filter(created_at__lte=before) if older_than_s else Unmade.objects.all()
    with transaction.atomic():
        row = waiting.order_by("id").select_for_update(skip_locked=True).first()
        return _make(row, _nodes(row)) if row is not None else 0


def make_all() -> None:
    """Of all pieces, in this unit of work: none is being made by another process when this returns."""
    for row in Unmade.objects.order_by("id").select_for_update():
        _make(row, _nodes(row))


def take_back(job_id: str, kinds: Collection[str], by: Mapping[str, outbox.Sent | None]) -> list[str]:
    """Of older orders of these kinds to the job's nodes those that the newer one (`by` node id) makes void are never
    made: to which nodes. What stays is made now. Before older commands are asked for: whoever makes some at this
    moment is waited for."""
    void: list[str] = []
    for row in Unmade.objects.filter(job_id=job_id, kind__in=kinds).order_by("id").select_for_update():
        old = outbox.Sent(row.kind, row.epoch, row.attempt)
        gone = {node for node in _nodes(row) if (new := by.get(node)) is not None and outbox.is_void(old, new)}
        if gone:
            void += gone
            _make(row, [node for node in _nodes(row) if node not in gone])
    return void


def _make(row: Unmade, nodes: Sequence[str]) -> int:
    """Of these of its nodes, as many as there still are, and the piece is gone."""
    shared = SharedBody.objects.filter(pk=row.shared_id).first()
    packed = bytes(shared.packed) if shared is not None else _NOTHING
    signature = bytes(row.signature)
    ours = shared is not None and keys.is_our_broadcast(_said(row, packed), signature, row.key_id)
    copies = Copies(Command(**_alike(row)), packed, shared=True)
    sign = copies.signed if ours else copies.unsigned
    known = set(Node.objects.filter(pk__in=nodes).values_list("pk", flat=True)) if nodes else set()
    made = [(new_id("cmd"), node_id) for node_id in nodes if node_id in known]
    rows = [(pk, node_id, "{}", row.shared_id, *sign(pk, node_id)) for pk, node_id in made]
    row.delete()
    if rows:
        bulk.insert(Command, _alike(row), COLUMNS, rows)
        transaction.on_commit(lambda: ring([node_id for _, node_id in made]))
    return len(rows)


def waiting_numbers() -> tuple[int, Any]:
    """(commands that are not made yet, the moment at which the oldest was decided)."""
    found = Unmade.objects.aggregate(number=Sum("number"), oldest=Min("created_at"))
    return found["number"] or 0, found["oldest"]
