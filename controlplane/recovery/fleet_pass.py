"""Load, decide, apply for the fleet's own faults: the twin of `reconcile` without a job.

Called with every sweep (the tick and the sentinel, each second), under the fleet's lock: any
number of callers decide a finding once. A finding about hardware is seen here within seconds,
whether a job runs, waits or was never submitted.
"""

import time
from collections import defaultdict
from functools import partial
from typing import NamedTuple

from django.db.models import Q, QuerySet

from controlplane.changes.acts import carry_out, counted
from controlplane.changes.assembly.snapshot import Fleet, FleetParts, fleet_snapshot_of
from controlplane.changes.turn import Turn
from controlplane.fleet.models import Device
from controlplane.policies import selectors as policies
from controlplane.policies.selectors import InForce
from controlplane.policy import plan
from controlplane.policy.findings import KINDS
from controlplane.policy.fleet import RISK_RULE, FleetSnapshot, HardwareIncident, decide_fleet
from controlplane.protocol.states import IncidentOutcome, IncidentState, Mode
from controlplane.recovery import (
    asked,
    disruption,
    health_gate,
    incidents,
    load,
    load_nodes,
    recommended,
    shared,
    signals,
)
from controlplane.recovery.audited import audit_decision
from controlplane.recovery.commit import commit
from controlplane.recovery.decided import new_row, publish_decision
from controlplane.recovery.load_devices import device_counts
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events, metrics
from controlplane.runtime.clock import now
from controlplane.runtime.isolate import isolated
from controlplane.runtime.locks import lock_fleet
from controlplane.runtime.prepared import Prepared

MAX_FINDINGS = 1000
"""Of each sort, looked at in one pass, oldest first; the next pass takes what follows."""


def reconcile_fleet() -> int:
    """Decide what no job's pass decides; returns how much was new. The first look takes
    no lock: what waits for hardware waits for days, and mostly nothing is new."""
    made = _merge()
    waits = any(rows.first() is not None for rows in _ANY) or asked.drains().exists() or disruption.waits()
    if not waits:
        return made
    config = policies.of_fleet()
    if not _new(decide_fleet(load_fleet(), config)):
        return made
    with events.unit_of_work():
        lock_fleet()
        snapshot, policy = load_fleet(), policies.in_force(None)
        begin = time.monotonic()
        decisions = decide_fleet(snapshot, policy.config)
        decided = Decided(snapshot, policy, time.monotonic() - begin)
        for decision in _new(decisions):
            made += isolated("fleet", decision.key, partial(_attempt, decision, decided))
    return made


def _merge() -> int:
    """Incidents of several jobs that have one cause become parts of one."""
    if not shared.waits():
        return 0
    with events.unit_of_work():
        lock_fleet()
        return shared.merge()


def _new(decisions: tuple[plan.Decision, ...]) -> list[plan.Decision]:
    """Those that were not made before, or not as far as they may go now."""
    keys = [plan.stored_key(decision.key) for decision in decisions]
    taken = set(Decision.objects.filter(job=None, key__in=keys).values_list("key", "mode"))
    new = zip(keys, decisions, strict=True)
    return [each for key, each in new if not any((key, mode) in taken for mode in plan.taken_in(each.mode))]


def load_fleet() -> FleetSnapshot:
    """Open findings about hardware that no living replica is on, and what waits for hardware."""
    owned = load.owned_devices()
    found = [*_hardware()[:MAX_FINDINGS], *_risks()[:MAX_FINDINGS]]
    rows = [row for row in found if (row.node_id, row.device_index) not in owned]
    waiting = [_fact(row) for row in _waiting().prefetch_related("signals")]
    sizes, closed = device_counts(), disruption.closings()
    concerned = {row.node_id or "" for row in rows} | {row.node_id for row in waiting}
    concerned |= {node_id for row in waiting for node_id, _ in row.beside}
    concerned |= set(_resets().values_list("node_id", flat=True))
    drains = asked.facts(asked.drains()[:MAX_FINDINGS])
    concerned |= {fact.node_id or "" for fact in drains}
    parts = FleetParts(
        now_s=now().timestamp(),
        signals=map(signals.fact_of, rows),
        nodes=load_nodes.node_facts(None, only=concerned),
        incidents=tuple(waiting),
        fleet=Fleet(
            acts=disruption.recent_acts(closed),
            named=disruption.suspicions(closed),
            devices=sum(sizes.values()),
            sizes=sizes,
            disruption=disruption.counted_of_fleet(closed),
        ),
        segments=load.segments(),
        drains=drains,
        recommended=recommended.of_fleet(MAX_FINDINGS),
        paused=health_gate.is_blind(),
    )
    return fleet_snapshot_of(parts)


def _hardware() -> QuerySet[Signal]:
    rows = Signal.objects.filter(settled_at=None, node_id__isnull=False, kind__in=KINDS)
    return rows.order_by("seen_at", "id")


def _risks() -> QuerySet[Signal]:
    rows = Signal.objects.filter(settled_at=None, node_id__isnull=False, kind=RISK_RULE, job=None)
    return rows.order_by("seen_at", "id")


def _resets() -> QuerySet[Device]:
    return Device.objects.filter(reset_wanted_at__isnull=False, node__revoked_at=None)


def _waiting() -> QuerySet[Incident]:
    """Incidents that hardware keeps open: those of no job, and those with which their job is done."""
    rows = Incident.objects.exclude(state=IncidentState.RESOLVED).filter(shared="")
    return rows.filter(Q(job=None) | Q(state=IncidentState.MITIGATED)).order_by("id")


_ANY = [
    Prepared(lambda rows=rows: rows().order_by().values_list("pk", flat=True)[:1])
    for rows in (_hardware, _risks, _waiting, _resets)
]
"""The first of each, whichever it is."""


def _fact(row: Incident) -> HardwareIncident:
    found = [signal for signal in row.signals.all() if signal.kind in KINDS]
    named: dict[str, set[int]] = defaultdict(set)
    for signal in found:
        if signal.node_id is not None and signal.device_index is not None:
            named[signal.node_id].add(signal.device_index)
    home = row.node_id if row.node_id in named or not named else min(named)
    return HardwareIncident(
        id=row.id,
        title=row.title,
        state=IncidentState(row.state),
        node_id=home or "",
        devices=tuple(sorted(named.get(home or "", ()))),
        beside=tuple((node_id, tuple(sorted(named[node_id]))) for node_id in sorted(named) if node_id != home),
        out=row.needs_hardware,
        lost=row.outcome == IncidentOutcome.LOST,
        refuted=row.state == IncidentState.OPEN and all(s.settled_at is not None for s in row.signals.all()),
    )


class Decided(NamedTuple):
    """By what a pass decided, and how long that took."""

    snapshot: FleetSnapshot
    policy: InForce
    decide_s: float


def _attempt(decision: plan.Decision, by: Decided) -> None:
    with events.attempt():
        apply_fleet(decision, by)


def apply_fleet(decision: plan.Decision, by: Decided) -> Decision:
    """Record it; carry it out unless its mode only recommends. Raises LostRace, IllegalTransition."""
    row = new_row(None, decision, by.snapshot, by=by.policy, decide_s=by.decide_s)
    acts = decision.mode is Mode.ENFORCE
    closes = [a for a in decision.actions if isinstance(a, plan.ResolveIncident)]
    if closes:
        row.incident = Incident.objects.filter(pk=closes[0].incident_id).first()
    else:
        row.incident = incidents.incident_for(None, decision, row.at)
    row.save(force_insert=True)
    if acts:
        rows = JobRows(None, row.id)
        turn = Turn(decision, rows)
        for action in decision.actions:
            commit(carry_out(turn, action), rows)
        commit(counted(decision), rows)
    publish_decision(row)
    audit_decision(row, {})
    if row.incident is not None and not closes:
        incidents.progress(row.incident_id, acted=acts and bool(decision.actions))
    metrics.DECISIONS.labels(
        action=decision.choice, trigger=decision.reason_code, mode=str(decision.mode), result="ok"
    ).inc()
    return row
