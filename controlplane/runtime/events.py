"""The event log. What changed, in one gap-free order, written with the change itself.

Theory of operation. Inside `unit_of_work()` services call `publish`; the events are
kept aside and numbered last, just before the commit: the stream's row lock orders
commits, so it is held for the shortest time and always taken after every other lock
(else two units would wait for each other). Patches may be callables: they are taken at
the end, so an event always carries what the unit leaves behind. After the commit a wake-up
is sent; readers follow the table by cursor, so a lost one costs latency alone.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import F, QuerySet

from controlplane.protocol.plain import without_secrets
from controlplane.runtime import bulk, bus
from controlplane.runtime.clock import now
from controlplane.runtime.models import Event, EventStream
from controlplane.runtime.prepared import TEXT, Prepared

ALL = "all"
FORGOTTEN = "forgotten"
"""A stream of its own: its number is that of the newest event that was removed."""
MAX_EVENTS_A_UNIT = 20_000
# What a patch never carries: it moves without an event (pictures and polls bring it).
VOLATILE_KEYS = frozenset(
    {
        "live", "last_seen_age_s", "checkpoint_age_s", "work_at_risk_s", "work_at_risk_stored_s", "eta_s", "ettr",
        "productivity", "ettr_basis", "undisturbed_step_s", "learned_step_s", "agent_cpu_ratio", "agent_rss_bytes",
        "ranks_running",
    }
)  # fmt: skip
_RAISE = f'UPDATE "{EventStream._meta.db_table}" SET "seq" = "seq" + %s WHERE "name" = %s RETURNING "seq"'  # noqa: S608
_NAMES = (
    "seq", "job_seq", "kind", "sentence", "job_id", "node_id", "entity", "entity_id", "patch", "data",
)  # fmt: skip
_NEWEST: Prepared[int] = Prepared(
    lambda name: EventStream.objects.filter(name=name).values_list("seq", flat=True)[:1], name=TEXT
)
_OF_KIND: Prepared[int] = Prepared(
    lambda job_id, kind: Event.objects.filter(job_id=job_id, kind=kind).values_list("pk", flat=True)[:1],
    job_id=TEXT, kind=TEXT,
)  # fmt: skip
Patch = dict[str, Any] | Callable[[], dict[str, Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    kind: str
    sentence: str
    job_id: str
    node_id: str
    entity: str
    entity_id: str
    patch: Patch
    data: dict[str, Any] = field(default_factory=dict)


class _Unit:
    """The events of a unit of work so far."""

    def __init__(self) -> None:
        self.drafts: list[_Draft] = []
        self._keys: set[tuple[str, str]] = set()

    def add(self, draft: _Draft) -> None:
        """A mere refresh of a summary is not told twice: the one that is there will carry the newest state."""
        key = (draft.kind, draft.entity_id)
        if not draft.sentence and key in self._keys:
            return
        assert len(self.drafts) < MAX_EVENTS_A_UNIT, "a unit of work this large belongs in several"
        self.drafts.append(draft)
        self._keys.add(key)

    def cut(self, mark: int) -> None:
        """Only the first `mark` of them stay."""
        del self.drafts[mark:]
        self._keys = {(draft.kind, draft.entity_id) for draft in self.drafts}


_unit: ContextVar[_Unit | None] = ContextVar("holdfast_event_unit", default=None)


@contextmanager
def unit_of_work() -> Iterator[None]:
    """One transaction with its events. Nested units join the outer one."""
    if _unit.get() is not None:
        yield
        return
    with transaction.atomic():
        unit = _Unit()
        token = _unit.set(unit)
        try:
            yield
            _write(unit.drafts)
        finally:
            _unit.reset(token)


@contextmanager
def attempt() -> Iterator[None]:
    """A part of a unit that may fail alone: its rows and its events are both undone,
    then the error goes on to the caller."""
    unit = _unit.get()
    assert unit is not None, "attempt() belongs inside unit_of_work()"
    mark = len(unit.drafts)
    try:
        with transaction.atomic():
            yield
    except BaseException:
        unit.cut(mark)
        raise


def told(rows: QuerySet[Event]) -> QuerySet[Event]:
    """Those that say something: without the mere refreshes of summaries (see `publish`)."""
    return rows.exclude(sentence="")


def publish(
    kind: str,
    sentence: str,
    *,
    job_id: str = "",
    node_id: str = "",
    entity: str = "",
    entity_id: str = "",
    patch: Patch = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Record an event in the current unit of work (or in one of its own). An empty sentence
    marks a mere refresh of a summary: told once a unit, not shown as history."""
    draft = _Draft(
        kind=kind,
        sentence=without_secrets(sentence),
        job_id=job_id,
        node_id=node_id,
        entity=entity,
        entity_id=entity_id,
        patch=patch,
        data=data or {},
    )
    with unit_of_work():
        unit = _unit.get()
        assert unit is not None
        unit.add(draft)


def was_told(kind: str, job_id: str) -> bool:
    """The job has such an event, in this unit of work or before."""
    unit = _unit.get()
    drafted = unit is not None and any(draft.kind == kind and draft.job_id == job_id for draft in unit.drafts)
    return drafted or _OF_KIND.first(job_id=job_id, kind=kind) is not None


def newest_seq() -> int:
    """Sequence number of the newest committed event; 0 for none."""
    return _NEWEST.first(name=ALL) or 0


def forgotten_up_to() -> int:
    """Sequence number of the newest event that was removed; 0 for none."""
    return _NEWEST.first(name=FORGOTTEN) or 0


def kept_from(job_id: str = "") -> int:
    """Every event from this sequence number on is kept; with a job, every one of its own."""
    start = forgotten_up_to() + 1
    if not job_id or start == 1:
        return start
    oldest = Event.objects.filter(job_id=job_id).order_by("seq").values_list("job_seq", flat=True).first()
    whole = oldest == 1 or (oldest is None and not EventStream.objects.filter(name=job_id).exists())
    return 1 if whole else start


def forget(job_id: str, *, before: datetime, at_most: int) -> int:
    """Remove that many events of a job that is over, the oldest first; returns how many there
    were. Their numbers are never given again."""
    with transaction.atomic():
        oldest = Event.objects.filter(job_id=job_id, at__lt=before).order_by("seq")
        gone = list(oldest.values_list("seq", flat=True)[:at_most])
        if gone:
            EventStream.objects.get_or_create(name=FORGOTTEN)
            EventStream.objects.filter(name=FORGOTTEN, seq__lt=gone[-1]).update(seq=gone[-1])
            Event.objects.filter(seq__in=gone).delete()
    return len(gone)


def without_volatile(value: Any) -> Any:
    """The same JSON without VOLATILE_KEYS, at every depth."""
    if isinstance(value, dict):
        # Most values hold none: of a thousand nodes a call for each would be most of the cost.
        return {
            k: without_volatile(v) if isinstance(v, dict | list) else v
            for k, v in value.items()
            if k not in VOLATILE_KEYS
        }
    if isinstance(value, list):
        return [without_volatile(item) for item in value]
    return value


def _write(drafts: list[_Draft]) -> None:
    """Number and insert. Job streams are locked in order of id, the global one last."""
    if not drafts:
        return
    patches = _patches(drafts)
    counts = Counter(draft.job_id for draft in drafts if draft.job_id)
    next_of = {job_id: _reserve(job_id, counts[job_id]) for job_id in sorted(counts)}
    seq = _reserve(ALL, len(drafts))
    rows = []
    for offset, (draft, patch) in enumerate(zip(drafts, patches, strict=True)):
        job_seq = next_of.get(draft.job_id)
        if job_seq is not None:
            next_of[draft.job_id] = job_seq + 1
        about = (draft.kind, draft.sentence, draft.job_id, draft.node_id, draft.entity, draft.entity_id)
        rows.append((seq + offset, job_seq, *about, patch, json.dumps(draft.data)))
    bulk.insert(Event, {"at": now()}, _NAMES, rows)
    last = seq + len(rows) - 1
    transaction.on_commit(lambda: bus.wake_readers(last))


def _patches(drafts: list[_Draft]) -> list[str | None]:
    """What each event carries, as JSON. Events of one entity share what the unit leaves of it."""
    made: dict[tuple[str, str], str | None] = {}
    patches = []
    for draft in drafts:
        if not callable(draft.patch):
            patches.append(_json(draft.patch))
            continue
        key = (draft.entity, draft.entity_id)
        if key not in made:
            made[key] = _json(draft.patch())
        patches.append(made[key])
    return patches


def _json(patch: dict[str, Any] | None) -> str | None:
    return None if patch is None else json.dumps(without_volatile(patch))


def _reserve(name: str, count: int) -> int:
    """Take `count` numbers of a stream; returns the first. Holds the row until commit."""
    newest = _raised(name, count)
    if newest is None:
        EventStream.objects.get_or_create(name=name)
        newest = _raised(name, count)
    assert newest is not None, "nobody removes a stream"
    return newest - count + 1


def _raised(name: str, count: int) -> int | None:
    """Its newest number, raised by so many; None where there is no such stream. Each unit of work asks this, twice:
    in one statement, which Django's queries have no words for, where the database has it (SQLite since 3.35)."""
    if not connection.features.can_return_columns_from_insert:
        EventStream.objects.filter(name=name).update(seq=F("seq") + count)
        return EventStream.objects.filter(name=name).values_list("seq", flat=True).first()
    with connection.cursor() as cursor:
        cursor.execute(_RAISE, [count, name])
        found: list[tuple[int]] = cursor.fetchall()
    return found[0][0] if found else None
