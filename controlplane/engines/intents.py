"""What Holdfast wants of an engine, as rows: made, found done, void, or asked for again. The only writer of them.

An intent is carried out at least once, and has one effect: before each try the engine is asked how it is, and only its
own later facts make the intent done. A try that fails is repeated, later each time.
"""

import time
from collections.abc import Iterable
from datetime import timedelta

import msgspec

from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.engines.engine import OPEN, Change, Engine, EngineError, IntentKind, IntentState
from controlplane.engines.models import EngineNode, Intent, PoolElement
from controlplane.engines.record import believed_of
from controlplane.engines.slurm import compare, health
from controlplane.fleet.models import Device, Node
from controlplane.fleet.publish import publish_node
from controlplane.jobs.models import Rank
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, NotFound
from controlplane.runtime.ids import new_id
from controlplane.runtime.pieces import batched

POLICY = "policy"
FIRST_AGAIN, LAST_AGAIN = timedelta(seconds=15), timedelta(minutes=10)
MAX_TRIES_A_POLL = 8
MAX_DETAIL_CHARS = 1000
NODES_A_QUERY = 500


def seen_as(rows: Iterable[EngineNode]) -> dict[str, health.Node]:
    """By id the nodes as `health` and `compare` know them. `rows` with their nodes."""
    nodes = {row.node_id: row.node for row in rows}
    busy: set[str] = set()
    devices: dict[str, list[health.Device]] = {}
    for some in batched(sorted(nodes), NODES_A_QUERY):
        busy.update(Rank.objects.filter(node__in=some, released_at=None).values_list("node_id", flat=True).distinct())
        shown = Device.objects.filter(node__in=some).order_by("index")
        for node_id, *values in shown.values_list("node_id", "index", "present", "healthy", "health_reason"):
            devices.setdefault(node_id, []).append(health.Device(*values))
    return {node_id: _as_health(node, devices.get(node_id, []), node_id in busy) for node_id, node in nodes.items()}


def _as_health(node: Node, devices: list[health.Device], busy: bool) -> health.Node:
    ranks = [msgspec.Raw(b"1")] if busy else []
    revoked = node.revoked_at is not None
    return health.Node(node.name, node.state, node.connected, node.state_reason, devices, ranks, revoked=revoked)


def renew(engine: str) -> None:
    """Of each node: make what is wanted now, void what is not any more, and close what the engine's facts confirm."""
    with events.unit_of_work():
        rows = list(EngineNode.objects.filter(engine=engine, node__removed_at=None).select_related("node"))
        opened = {row.node_id: row for row in Intent.objects.filter(engine=engine, state__in=OPEN, node__isnull=False)}
        # Only these can have an intent: the others are in service in both.
        odd = [row for row in rows if row.node_id in opened or _is_out(row.node) or believed_of(row).ours]
        nodes = seen_as(odd)
        for row in odd:
            _renew(row, nodes[row.node_id], opened.get(row.node_id))


def _is_out(node: Node) -> bool:
    return node.revoked_at is not None or node.state in health.OUT_OF_SERVICE


def _renew(row: EngineNode, node: health.Node, intent: Intent | None) -> None:
    believed = believed_of(row)
    kind = compare.wanted(node, believed, piloted=row.piloted)
    if intent is not None and intent.kind != kind:
        is_so = believed.drained if intent.kind == IntentKind.MARK_BAD else not believed.ours
        _close(intent, IntentState.DONE if is_so else IntentState.VOID)
        if is_so and intent.kind == IntentKind.MARK_BAD:
            publish_node(row.node, "node.engine", f"{row.node.name} is marked bad in Slurm: {compare.cause(believed)}.")
        intent = None
    if intent is None and kind is not None:
        why = health.unfit(node, piloted=True) if kind is IntentKind.MARK_BAD else f"{node.name} is well again"
        _make(row.engine, kind, reason=why, who=POLICY, node=row.node)


def _make(engine: str, kind: IntentKind, **columns: object) -> Intent:
    at = now()
    return Intent.objects.create(id=new_id("int"), engine=engine, kind=kind, made_at=at, due_at=at, **columns)


def _close(intent: Intent, state: IntentState) -> None:
    Intent.objects.filter(pk=intent.pk, state__in=OPEN).update(state=state, done_at=now())


def carry_out(engine: Engine, *, until_s: float) -> int:
    """Ask the engine for what is due; how many tries that were. Each is counted before it is made, and none begins
    after `until_s` of the monotonic clock."""
    names = dict(EngineNode.objects.filter(engine=engine.name).values_list("node_id", "name"))
    due = Intent.objects.filter(engine=engine.name, state__in=OPEN, due_at__lte=now()).order_by("due_at", "id")
    tries = 0
    for intent in due[:MAX_TRIES_A_POLL]:
        if time.monotonic() >= until_s:
            break
        again_at = now() + min(FIRST_AGAIN * 2 ** min(intent.tries, 16), LAST_AGAIN)
        counted = Intent.objects.filter(pk=intent.pk, state__in=OPEN, tries=intent.tries)
        if counted.update(tries=intent.tries + 1, due_at=again_at):
            _try(engine, intent, names.get(intent.node_id or "", ""))
            tries += 1
    return tries


def _try(engine: Engine, intent: Intent, name: str) -> None:
    change = Change(
        id=intent.id, kind=IntentKind(intent.kind), node=name, reason=intent.reason, pool=intent.pool,
        size=intent.size or 0, spare=_spare(intent),
    )  # fmt: skip
    mine = Intent.objects.filter(pk=intent.pk, state__in=OPEN)
    try:
        detail = engine.carry_out(change)
    except EngineError as error:
        mine.update(detail=str(error)[:MAX_DETAIL_CHARS])
        return
    # Of a pool the driver reads the size back itself; a node's facts come with the next look.
    state = IntentState.DONE if change.kind is IntentKind.RESIZE else IntentState.SENT
    mine.update(state=state, detail=detail, done_at=now() if state is IntentState.DONE else None)


def _spare(intent: Intent) -> tuple[int, ...]:
    """Of a pool that is to be smaller, numbers of pilots that are given back now: as many as are too many, of those
    whose node has no rank and is kept for no job."""
    if intent.kind != IntentKind.RESIZE:
        return ()
    running = PoolElement.objects.filter(engine=intent.engine, pool=intent.pool, state="RUNNING")
    too_many = running.count() - (intent.size or 0)
    busy = Rank.objects.filter(node__pilots__in=running, released_at=None).values("node")
    kept = Device.objects.filter(node__pilots__in=running, reservation__isnull=False).values("node")
    spare = running.filter(node__isnull=False).exclude(node__in=busy).exclude(node__in=kept).order_by("-index")
    return tuple(spare.values_list("index", flat=True)[:too_many]) if too_many > 0 else ()


def resize(engine: str, pool: str, size: int, *, reason: str, actor: str, request_id: str = "") -> Intent:
    """A person wants so many pilots of a pool at a time; an order that was not carried out yet is replaced. Raises
    NotFound, Conflict."""
    with events.unit_of_work():
        elements = PoolElement.objects.filter(engine=engine, pool=pool).count()
        if not elements:
            raise NotFound(f"{engine} lists no pool {pool!r}")
        if size > elements:
            raise Conflict(
                f"pool {pool} has {elements} pilots, running and waiting: for more submit another with"
                " `holdfast slurm pilots`"
            )
        for before in Intent.objects.filter(engine=engine, pool=pool, state__in=OPEN):
            _close(before, IntentState.VOID)
        made = _make(engine, IntentKind.RESIZE, reason=reason, who=in_words(actor)[:200], pool=pool, size=size)
        data = {"engine": engine, "size": size, "intent": made.id}
        access.audit(actor, "pool.resize", pool, reason=reason, request_id=request_id, data=data)
    return made


def forget(older_s: float) -> int:
    """Those that ended so long ago."""
    return Intent.objects.exclude(state__in=OPEN).filter(done_at__lt=now() - timedelta(seconds=older_s)).delete()[0]
