"""The disruption budget over rows: what is counted, and the breakers (`policy.disruption`, ADR 0048).

Reads, and checks under the fleet's lock; `breaker_rows` writes. A person's closing is where counting begins again, from
zero, so that the same acts and findings do not open it again.
"""

from datetime import datetime
from typing import Any

from django.db.models import Count, Q, QuerySet

from controlplane.changes.assembly.counted import WINDOW_S
from controlplane.changes.assembly.nodes import suspect_devices
from controlplane.policy import disruption
from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption_counts import ActKind, DisruptionCounts, OpenedBreaker
from controlplane.policy.plan import Decision
from controlplane.protocol.states import Mode
from controlplane.recovery import counts
from controlplane.recovery.disruption_models import POLICY, Act, Breaker
from controlplane.recovery.load_devices import device_counts
from controlplane.runtime import windows
from controlplane.runtime.errors import Conflict
from controlplane.runtime.locks import lock_fleet
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import Prepared, figures_of

HOUR_S = 3600.0
MAX_CLOSINGS = 50
"""Closings further back than this many are not looked for."""
Closings = dict[str, float]


def counted(closed: Closings | None = None, steps: list[ClockStep] | None = None) -> DisruptionCounts:
    """What every pass is told. A handful of rows: nothing here grows with the fleet. `closed`: of `closings`, and
    `steps`: of `windows.known`, which who asks often reads once."""
    steps = windows.known() if steps is None else steps
    closed = closings(steps) if closed is None else closed
    since_s = closed.get("", HOUR_S)
    fleet, parts = _acts(since_s, steps)
    for segment in closed.keys() & parts.keys():
        parts[segment] = _acts(min(since_s, closed[segment]), steps)[1].get(segment, {})
    return DisruptionCounts(acts=fleet, of_segments=parts, breakers=tuple(map(_opened, _open())))


def counted_of_fleet(closed: Closings) -> DisruptionCounts:
    """With what only the fleet's own pass asks: breakers that were ever opened, and what is suspected still."""
    mine = counted(closed)
    opened = Breaker.objects.order_by().values_list("segment").annotate(number=Count("pk"))
    of_fleet = next((row for row in _open() if not row.segment), None)
    still = _still_suspect(of_fleet.opened_at) if of_fleet is not None else set()
    return DisruptionCounts(
        acts=mine.acts,
        of_segments=mine.of_segments,
        breakers=mine.breakers,
        opened=dict(opened),
        still_devices=len(still),
        still_nodes=tuple(sorted({node_id for node_id, _ in still})),
    )


def waits() -> bool:
    """Something is counted or open, so that the fleet's pass has to look at it."""
    recent = windows.within(Act.objects.all(), "at", HOUR_S)
    return Breaker.objects.filter(closed_at=None).exists() or recent.exists() or bool(suspicions())


_ACT_NUMBER = windows.Within(counts.acts, "at", lambda rows: figures_of(rows, number=Count("pk")))
_SUSPICIONS = windows.Within(counts.suspicions, "seen_at", lambda rows: rows.values_list("node_id", "device_index"))


def recent_acts(closed: Closings | None = None, steps: list[ClockStep] | None = None) -> int:
    """Destructive acts of the budget's window, over the whole fleet. `closed`, `steps`: as `counted`."""
    steps = windows.known() if steps is None else steps
    return int(_ACT_NUMBER(_window_s(closed, steps), steps)[0][0])


def suspicions(closed: Closings | None = None, steps: list[ClockStep] | None = None) -> list[tuple[str, int | None]]:
    """What findings of the window name, as (node id, device index or None). `closed`, `steps`: as `counted`."""
    steps = windows.known() if steps is None else steps
    return [(node_id or "", index) for node_id, index in _SUSPICIONS(_window_s(closed, steps), steps)]


def guarded(decisions: list[Decision]) -> bool:
    """Whether one of these is bound by a cap. Then the fleet is locked until the commit: what is counted under it is
    all that was done, so that no number of passes at once exceeds a cap."""
    bound = any(d.mode is Mode.ENFORCE and any(not act.proved for act in d.acts) for d in decisions)
    if bound:
        lock_fleet()
    return bound


def check(decision: Decision, config: PolicyConfig) -> None:
    """Raises Conflict where others have used up meanwhile what the pass thought was left. Under the fleet's lock."""
    bound = [act for act in decision.acts if not act.proved]
    if decision.mode is Mode.ENFORCE and bound:
        why = disruption.exceeds(decision.acts, counted(), config)
        if not why and any(act.kind is not ActKind.SAVE for act in bound) and recent_acts() >= config.max_acts:
            why = f"{config.max_acts} destructive acts within the window: `max_acts`"
        if why:
            raise Conflict(f"the disruption budget is met: {why}")


def _closed() -> QuerySet[Breaker, tuple[str, datetime | None]]:
    rows = Breaker.objects.exclude(closed_at=None).exclude(closed_by=POLICY).order_by("-id")
    return rows.values_list("segment", "closed_at")[:MAX_CLOSINGS]


_OPEN = Prepared(lambda: Breaker.objects.filter(closed_at=None).order_by("segment"))
_CLOSED = Prepared(_closed)


def _open() -> list[Breaker]:
    return _OPEN()


def _opened(row: Breaker) -> OpenedBreaker:
    at_s = row.opened_at.timestamp()
    return OpenedBreaker(id=row.id, code=row.code, segment=row.segment, opened_s=at_s, sentence=row.reason)


def closings(steps: list[ClockStep] | None = None) -> Closings:
    """Seconds since a person last closed one, within the hour, by segment. `steps`: as `counted`."""
    rows = _CLOSED()
    steps = windows.known() if rows and steps is None else steps or []
    found = [(segment, _age_s(at, steps)) for segment, at in reversed(rows)]
    return {segment: age_s for segment, age_s in found if age_s <= HOUR_S}


def _age_s(at: datetime | None, steps: list[ClockStep]) -> float:
    assert at is not None, "it is closed"
    return max(0.0, windows.age_s(at, steps))


def _window_s(closed: Closings | None, steps: list[ClockStep]) -> float:
    return min(WINDOW_S, (closings(steps) if closed is None else closed).get("", WINDOW_S))


def _by_place(rows: QuerySet[Any]) -> QuerySet[Any, tuple[str, str, int, int]]:
    placed = rows.order_by().values_list("kind", "segment")
    return placed.annotate(number=Count("pk"), acts=Count("pk", filter=Q(lead=True)))


_ACTS = windows.Within(Act.objects.all, "at", _by_place)


def _acts(within_s: float, steps: list[ClockStep]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Acts of so many seconds: of the fleet by kind, and by segment and kind."""
    fleet: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    for kind, segment, number, acts in _ACTS(min(within_s, HOUR_S), steps):
        fleet[kind] = fleet.get(kind, 0) + acts
        if segment:
            parts.setdefault(segment, {})[kind] = number
    return dict(sorted(fleet.items())), {name: dict(sorted(parts[name].items())) for name in sorted(parts)}


def _still_suspect(opened_at: datetime) -> set[tuple[str, int]]:
    """Devices that findings name which came since a minute before `opened_at`, and are open."""
    since_s = max(0.0, windows.age_s(opened_at)) + WINDOW_S
    rows = windows.within(counts.suspicions().filter(settled_at=None), "seen_at", since_s)
    named = [(node_id or "", index) for node_id, index in rows.values_list("node_id", "device_index")]
    whole = {node_id for node_id, index in named if index is None}
    return suspect_devices(named, device_counts(whole)) if named else set()
