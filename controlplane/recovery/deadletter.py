"""Agents' events that cannot be applied: kept aside, counted, told, replayable.

Called by ingest when an event has failed by itself (`put`), by the commands that replay or
discard, by the API and the retention. An event lands here because of what it says (a number
that no column holds, a rank that was never placed on its node) or because of a fault of
ours; never because the database is away. Nothing waits behind it. Holds no opinion on how
an event is applied: `ingest.replay` does that.
"""

from datetime import datetime

import msgspec
from django.db import transaction
from django.db.models import Count, QuerySet, Sum

from controlplane.access import services as access
from controlplane.fleet.models import Node
from controlplane.fleet.publish import publish_node
from controlplane.policy import capabilities
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentEvent, RankSaid
from controlplane.recovery.models import DeadLetter, LetterState
from controlplane.runtime import counters, metrics
from controlplane.runtime.clock import ago, iso, now
from controlplane.runtime.errors import Conflict, Invalid, NotFound, refuse
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import retrying
from controlplane.runtime.logs import get
from controlplane.runtime.text import printable

# Kept a node; the oldest go first, those that were dealt with before those that wait.
MAX_KEPT_A_NODE = 500
MAX_KEPT_BYTES_A_NODE = 8 << 20
REASON_MAX = 500
# One after the other is told, and audited, with the first after so long without; counts are exact.
TELL_EVERY_S = 60.0
AUDIT_EVERY_S = 600.0
TOLD = "node.dead_letter"
_log = get(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[AgentEvent] = msgspec.msgpack.Decoder(AgentEvent)


def put(node: Node, event: AgentEvent, error: Exception, *, tries: int) -> DeadLetter:
    """Keep `event` in the current unit of work; `node` is locked."""
    raw, moment = _encode(event), now()
    letter = DeadLetter.objects.create(
        id=new_id("dlt"),
        node=node,
        journal_id=node.journal_id,
        seq=event.seq,
        kind=kind_of(event),
        raw=raw,
        size_bytes=len(raw),
        reason=reason_of(error),
        tries=tries,
        happened_at=_happened_at(event),
        first_seen_at=moment,
        last_seen_at=moment,
    )
    if isinstance(error, IdentityMismatch):
        counters.count(node.name, error.code, detail=letter.reason)
        _audit(node, letter)
    counters.count(node.name, "dead_letter", detail=f"{letter.kind} {letter.seq}: {letter.reason}")
    metrics.DEAD_LETTERS.labels(kind=letter.kind).inc()
    _log.error("an event is put aside", node_id=node.id, seq=event.seq, kind=letter.kind, reason=letter.reason)
    _tell(node, letter)
    _keep_within_bounds(node)
    return letter


def waiting(letter_id: str) -> DeadLetter:
    """Raises NotFound, or Conflict when it was replayed or discarded before."""
    letter = DeadLetter.objects.filter(pk=letter_id).first()
    if letter is None:
        raise NotFound(f"no dead letter {letter_id!r}")
    refuse(capabilities.dead_letter(letter_id, letter.state)["replay"])
    return letter


def event_of(letter: DeadLetter) -> AgentEvent:
    """The event as it came. Raises Invalid when this version of the protocol refuses it."""
    try:
        return _decode.decode(bytes(letter.raw))
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
        raise Invalid(f"this version of the protocol refuses the event, discard it: {printable(str(error))}") from error


def letters(*, node_id: str = "", state: str = "") -> QuerySet[DeadLetter]:
    """In the order in which they came, without their bytes."""
    rows = DeadLetter.objects.defer("raw").order_by("id")
    rows = rows.filter(node_id=node_id) if node_id else rows
    return rows.filter(state=state) if state else rows


def waiting_count(node_id: str = "") -> int:
    """Events that are put aside now, of one node or of all."""
    return letters(node_id=node_id, state=LetterState.WAITING).count()


def replayed(letter: DeadLetter) -> None:
    """It was applied, in the current unit of work. Raises Conflict when another was first."""
    _settle(letter, LetterState.REPLAYED)
    sentence = f"An event of {letter.node.name} that was put aside ({letter.kind}, {letter.seq}) was applied."
    publish_node(letter.node, "node.dead_letter_replayed", sentence)


def failed_again(letter: DeadLetter, error: Exception) -> None:
    """A replay failed: note why, it waits on."""
    rows = DeadLetter.objects.filter(pk=letter.pk, state=LetterState.WAITING)
    rows.update(tries=letter.tries + 1, reason=reason_of(error), last_seen_at=now())


def discard(letter_id: str, *, actor: str, reason: str) -> None:
    """A person says that it is not wanted, which is in the audit log with it or not at all. Raises
    NotFound or Conflict."""
    retrying(lambda: _discard(letter_id, actor, reason), "discard a dead letter")


@transaction.atomic
def _discard(letter_id: str, actor: str, reason: str) -> None:
    letter = waiting(letter_id)
    _settle(letter, LetterState.DISCARDED)
    data = {"kind": letter.kind, "seq": letter.seq}
    access.audit(actor, "dead_letter.discard", letter.node_id, reason=reason, data=data)


def forget(older_than_s: float) -> int:
    """Remove those that were dealt with so long ago; returns how many."""
    old = DeadLetter.objects.filter(last_seen_at__lt=ago(older_than_s)).exclude(state=LetterState.WAITING)
    return old.delete()[0]


def letter_view(letter: DeadLetter) -> dict[str, object]:
    """As the API shows it; the event itself stays here, it may hold a job's output."""
    return {
        "id": letter.id,
        "node_id": letter.node_id,
        "journal_id": letter.journal_id,
        "seq": letter.seq,
        "kind": letter.kind,
        "size_bytes": letter.size_bytes,
        "reason": letter.reason,
        "tries": letter.tries,
        "happened_at": iso(letter.happened_at),
        "first_seen_at": iso(letter.first_seen_at),
        "last_seen_at": iso(letter.last_seen_at),
        "state": letter.state,
        "capabilities": capabilities.dead_letter(letter.id, letter.state),
    }


def kind_of(event: AgentEvent) -> str:
    """The event's name on the wire, and the report's, as in "rank_said step"."""
    body = event.body
    names = [body, body.report] if isinstance(body, RankSaid) else [body]
    return " ".join(str(type(part).__struct_config__.tag) for part in names)[:60]


def reason_of(error: Exception) -> str:
    """The error in one printable line."""
    return printable(f"{type(error).__name__}: {error}")[:REASON_MAX]


def _settle(letter: DeadLetter, to: str) -> None:
    changed = DeadLetter.objects.filter(pk=letter.pk, state=LetterState.WAITING).update(state=to, last_seen_at=now())
    if not changed:
        raise Conflict(f"dead letter {letter.pk} does not wait any more")
    letter.state = to


def _happened_at(event: AgentEvent) -> datetime:
    """By the server's clock; an age that no calendar holds counts as 0."""
    try:
        return ago(event.age_s)
    except OverflowError:
        return now()


def _tell(node: Node, letter: DeadLetter) -> None:
    if _others(node, letter, TELL_EVERY_S).exists():
        return
    sentence = (
        f"An event of {node.name} ({letter.kind}, {letter.seq}) could not be applied and was put aside; "
        f"everything behind it continues. {letter.reason[:200]}"
    )
    publish_node(node, TOLD, sentence)


def _audit(node: Node, letter: DeadLetter) -> None:
    if not _others(node, letter, AUDIT_EVERY_S).filter(reason__startswith=IdentityMismatch.__name__).exists():
        access.audit(f"node:{node.name}", f"agent.{IdentityMismatch.code}", node.id, reason=letter.reason)


def _others(node: Node, letter: DeadLetter, within_s: float) -> QuerySet[DeadLetter]:
    """Those of the node that came just before."""
    return DeadLetter.objects.filter(node=node, first_seen_at__gte=ago(within_s)).exclude(pk=letter.pk)


def _keep_within_bounds(node: Node) -> None:
    """Drop the oldest while there are too many or too large ones, and count those that waited."""
    mine = DeadLetter.objects.filter(node=node)
    total = mine.aggregate(rows=Count("pk"), size=Sum("size_bytes"))
    rows, size = int(total["rows"]), int(total["size"] or 0)
    if rows <= MAX_KEPT_A_NODE and size <= MAX_KEPT_BYTES_A_NODE:
        return
    dealt_with, wait = mine.exclude(state=LetterState.WAITING), mine.filter(state=LetterState.WAITING)
    oldest = [*dealt_with.defer("raw").order_by("id"), *wait.defer("raw").order_by("id")]
    gone: list[DeadLetter] = []
    for letter in oldest:
        if rows - len(gone) <= MAX_KEPT_A_NODE and size <= MAX_KEPT_BYTES_A_NODE:
            break
        gone.append(letter)
        size -= letter.size_bytes
    waited = sum(letter.state == LetterState.WAITING for letter in gone)
    DeadLetter.objects.filter(pk__in=[letter.pk for letter in gone]).delete()
    if waited:
        counters.count(node.name, "dead_letter_dropped", number=waited, detail="too many wait; the oldest are gone")
