"""The disruption budget over rows: what is counted, and the breakers (`policy.disruption`, ADR 0048).

Writers: `note` and `open_breaker` for `recovery.commit`, `close_over` for what is over, `close` for a person. A
person's closing is where counting begins anew, so that the same acts and findings do not open it again.
"""

from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import Count, Q

from controlplane.access import audit
from controlplane.changes.assembly.counted import WINDOW_S
from controlplane.changes.assembly.nodes import suspect_devices
from controlplane.jobs.models import Job
from controlplane.jobs.services import wake_job
from controlplane.policy import capabilities, disruption
from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption_facts import Act as Done
from controlplane.policy.disruption_facts import BreakerFact, DisruptionFact
from controlplane.policy.facts import TERMINAL_JOB
from controlplane.policy.plan import Decision
from controlplane.protocol.states import Mode
from controlplane.recovery import counts
from controlplane.recovery.disruption_models import Act, Breaker
from controlplane.recovery.load_devices import device_counts
from controlplane.recovery.present_breakers import breaker_summary
from controlplane.runtime import events, windows
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, NotFound
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_fleet, lock_row
from controlplane.runtime.models import ClockStep

HOUR_S = 3600.0
MAX_CLOSINGS = 50
"""Closings further back than this many are not looked for."""
Closings = dict[str, float]
POLICY = "policy"
"""Who closes a breaker whose correlated failure is over; no person, so that nothing is counted anew."""


def facts(closed: Closings | None = None) -> DisruptionFact:
    """What every pass is told. A handful of rows: nothing here grows with the fleet. `closed`: of `closings`, which who
    asks often reads once."""
    closed = closings() if closed is None else closed
    since_s = closed.get("", HOUR_S)
    fleet, parts = _acts(since_s)
    for segment in closed.keys() & parts.keys():
        parts[segment] = _acts(min(since_s, closed[segment]))[1].get(segment, {})
    return DisruptionFact(acts=fleet, of_segments=parts, breakers=tuple(map(_fact, _open())))


def facts_of_fleet(closed: Closings) -> DisruptionFact:
    """With what only the fleet's own pass asks: breakers that were ever opened, and what is suspected still."""
    told = facts(closed)
    opened = Breaker.objects.order_by().values_list("segment").annotate(number=Count("pk"))
    mine = next((row for row in _open() if not row.segment), None)
    still = _still_suspect(mine.opened_at) if mine is not None else set()
    return DisruptionFact(
        acts=told.acts,
        of_segments=told.of_segments,
        breakers=told.breakers,
        opened=dict(opened),
        still_devices=len(still),
        still_nodes=tuple(sorted({node_id for node_id, _ in still})),
    )


def waits() -> bool:
    """Something is counted or open, so that the fleet's pass has to look at it."""
    recent = windows.within(Act.objects.all(), "at", HOUR_S)
    return Breaker.objects.filter(closed_at=None).exists() or recent.exists() or bool(suspicions())


def recent_acts(closed: Closings | None = None) -> int:
    """Destructive acts of the budget's window, over the whole fleet."""
    return windows.within(counts.acts(), "at", _window_s(closed)).count()


def suspicions(closed: Closings | None = None) -> list[tuple[str, int | None]]:
    """What findings of the budget's window name, as (node id, device index or None)."""
    rows = windows.within(counts.suspicions(), "seen_at", _window_s(closed))
    return [(node_id or "", index) for node_id, index in rows.values_list("node_id", "device_index")]


def guarded(decisions: list[Decision]) -> bool:
    """Whether one of these is bound by a cap. Then the fleet is locked until the commit: what is counted under it is
    all that was done, so that no number of passes at once exceeds a cap."""
    bound = any(d.mode is Mode.ENFORCE and any(not act.proved for act in d.acts) for d in decisions)
    if bound:
        lock_fleet()
    return bound


def check(decision: Decision, config: PolicyConfig) -> None:
    """Raises Conflict where others have used up meanwhile what the pass thought was left. Under the fleet's lock."""
    if decision.mode is Mode.ENFORCE and any(not act.proved for act in decision.acts):
        why = disruption.exceeds(decision.acts, facts(), config)
        if why:
            raise Conflict(f"the disruption budget is met: {why}")


def note(acts: tuple[Done, ...], decision_id: str) -> None:
    """What a decision has done."""
    at = now()
    rows = [
        Act(kind=act.kind, segment=segment, lead=not number, proved=act.proved, at=at, decision_id=decision_id)
        for act in acts
        for number, segment in enumerate(act.segments or ("",))
    ]
    Act.objects.bulk_create(rows)


def open_breaker(code: str, segment: str, sentence: str, decision_id: str) -> None:
    """One more; nothing where one is open."""
    try:
        with transaction.atomic():
            row = Breaker.objects.create(
                id=new_id("brk"), code=code, segment=segment, reason=sentence, opened_at=now(), decision_id=decision_id
            )
    except IntegrityError:
        return
    _publish(row, "breaker.opened", f"The breaker is open: {sentence}.")


def close_over(breaker_id: str, reason: str) -> None:
    """What opened it is over."""
    row = Breaker.objects.filter(pk=breaker_id, closed_at=None).first()
    if row is not None:
        _close(row, POLICY, reason)


def close(breaker_id: str, actor: str, reason: str) -> Breaker:
    """A person closes it: automation goes on, and counts anew. Raises NotFound, Conflict."""
    with events.unit_of_work():
        lock_fleet()
        row = lock_row(Breaker, breaker_id)
        if row is None:
            raise NotFound(f"no breaker {breaker_id!r}; `holdfast breaker show` lists them")
        why_not = capabilities.breaker(row.closed_by)["close"]
        if why_not:
            raise Conflict(why_not)
        before = {"closed_at": None}
        _close(row, actor, reason)
        after = {"closed_by": actor, "closed_at": row.closed_at.isoformat() if row.closed_at else None}
        audit.audit(actor, "breaker.close", row.segment or "fleet", reason=reason, before=before, after=after)
        for job_id in Job.objects.exclude(state__in=TERMINAL_JOB).order_by("pk").values_list("pk", flat=True):
            wake_job(job_id)
    return row


def _close(row: Breaker, by: str, reason: str) -> None:
    row.closed_at, row.closed_by, row.close_reason = now(), by, reason
    row.save(update_fields=["closed_at", "closed_by", "close_reason"])
    _publish(row, "breaker.closed", f"The breaker is closed by {by}: {reason}")


def _publish(row: Breaker, kind: str, sentence: str) -> None:
    events.publish(
        kind,
        sentence,
        entity="breaker",
        entity_id=row.id,
        patch=lambda: breaker_summary(Breaker.objects.get(pk=row.pk)),
    )


def _open() -> list[Breaker]:
    return list(Breaker.objects.filter(closed_at=None).order_by("segment"))


def _fact(row: Breaker) -> BreakerFact:
    at_s = row.opened_at.timestamp()
    return BreakerFact(id=row.id, code=row.code, segment=row.segment, opened_s=at_s, sentence=row.reason)


def closings() -> Closings:
    """Seconds since a person last closed one, within the hour, by segment."""
    people = Breaker.objects.exclude(closed_at=None).exclude(closed_by=POLICY).order_by("-id")
    rows = list(people.values_list("segment", "closed_at")[:MAX_CLOSINGS])
    steps = windows.known() if rows else []
    found = [(segment, _age_s(at, steps)) for segment, at in reversed(rows)]
    return {segment: age_s for segment, age_s in found if age_s <= HOUR_S}


def _age_s(at: datetime | None, steps: list[ClockStep]) -> float:
    assert at is not None, "it is closed"
    return max(0.0, windows.age_s(at, steps))


def _window_s(closed: Closings | None) -> float:
    return min(WINDOW_S, (closings() if closed is None else closed).get("", WINDOW_S))


def _acts(within_s: float) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Acts of so many seconds: of the fleet by kind, and by segment and kind."""
    rows = windows.within(Act.objects.all(), "at", min(within_s, HOUR_S)).order_by()
    fleet: dict[str, int] = {}
    parts: dict[str, dict[str, int]] = {}
    found = rows.values_list("kind", "segment").annotate(number=Count("pk"), acts=Count("pk", filter=Q(lead=True)))
    for kind, segment, number, acts in found:
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
