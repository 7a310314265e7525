"""Incidents: one for each cause, opened by the first decision about it, joined by everything
that belongs to it, closed by the policy or by a person, with how it ended.

A job has as many as it has unrelated faults at a time; a fault of the fleet has no job. An
incident that waits for hardware is mitigated until that is back or a person has it.
"""

from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Min, Q, QuerySet

from controlplane.access.actors import in_words
from controlplane.access.services import audit
from controlplane.changes.due.certificates import FIRST_S
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Replica
from controlplane.jobs.services import refresh_job
from controlplane.policies import selectors as policies
from controlplane.policy import causes, plan, requests
from controlplane.policy.faulty import opens_incident
from controlplane.policy.findings import KINDS
from controlplane.policy.rules import common_stall
from controlplane.policy.rules.device_fault import needs_hardware
from controlplane.policy.signals.ranks import RankOverdue
from controlplane.policy.titles import short
from controlplane.protocol.states import LIVE_INCIDENT, IncidentOutcome, IncidentState, ReplicaState
from controlplane.recovery import course, keeping, proof, signals
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.phases import FINDINGS_OF, compute_phases
from controlplane.recovery.present import incident_acts, incident_summary, pending_certificate
from controlplane.recovery.signals import fact_of
from controlplane.recovery.stall import stall_of
from controlplane.runtime import events, guard, metrics
from controlplane.runtime.clock import after, now
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row
from controlplane.runtime.prepared import TEXT, Prepared, Several

BACK = (IncidentOutcome.RECOVERED, IncidentOutcome.MITIGATED)
"""Outcomes after which training went on, so that there is something to prove."""


_INCIDENT: Prepared[Incident] = Prepared(
    lambda incident: Incident.objects.filter(pk=incident).select_related("job", "node"), incident=TEXT
)
_LIVE: Prepared[Incident] = Prepared(
    lambda job: Incident.objects.filter(job=job, state__in=LIVE_INCIDENT).order_by("-opened_at", "-id"), job=TEXT
)


def _loose(signals: Any) -> QuerySet[Signal]:
    # What was found and is not dealt with when its incident is over is of the one that deals with it.
    over = Q(incident__state=IncidentState.RESOLVED, settled_at=None)
    return Signal.objects.filter(Q(incident=None) | over, id__in=signals)


_LOOSE: Prepared[Signal] = Prepared(_loose, signals=Several(TEXT))
_FINDINGS: Prepared[Signal] = Prepared(
    lambda signals: Signal.objects.filter(id__in=signals).select_related("node").order_by("seen_at", "id"),
    signals=Several(TEXT),
)
_SLOTS_OF: Prepared[tuple[int, str]] = Prepared(
    lambda incident: Signal.objects.filter(incident=incident)
    .exclude(replica=None).exclude(kind="outer_error").values_list("replica", "kind"),
    incident=TEXT,
)  # fmt: skip
_ACTS_OF: Prepared[list[dict[str, Any]]] = Prepared(
    lambda incident: Decision.objects.filter(incident=incident).values_list("actions", flat=True), incident=TEXT
)
_BY_RULE: Prepared[str] = Prepared(
    lambda incident, rule: Decision.objects.filter(incident=incident, rule=rule).values_list("pk", flat=True)[:1],
    incident=TEXT, rule=TEXT,
)  # fmt: skip


def live_incidents(job: Job) -> list[Incident]:
    """Those of the job about which something is still done, newest first."""
    return _LIVE(job=job.pk)


def need_attention() -> QuerySet[Incident]:
    """What is not over, and the lost ones that nobody has acknowledged; newest first."""
    unseen = Q(outcome=IncidentOutcome.LOST, acknowledged_at=None)
    rows = Incident.objects.filter(~Q(state=IncidentState.RESOLVED) | unseen)
    return rows.select_related("job", "node").order_by("-opened_at", "-id")


def incident_for(job: Job | None, decision: plan.Decision, at: datetime) -> Incident | None:
    """The incident that has this decision's cause; a new one when the decision is about a fault
    that is in none. Its findings join it. `at`: when it was decided."""
    if decision.rule in requests.RULES:
        return None
    rows = _FINDINGS(signals=set(causes.findings_of(decision)))
    incident = _known(job, decision, rows) if job is not None else _of_devices(rows)
    if incident is None and opens_incident(decision):
        incident = _open(job, decision, rows, at)
        _join(incident, rows)
    elif incident is not None:
        known, ended = tuple(map(fact_of, FINDINGS_OF(incident=incident.pk))), causes.slots_of(decision)
        # Another replica that failed and is answered in the same breath is told here too: a decision has one.
        told = [row for row in rows if row.replica in ended or causes.same_cause(known, (fact_of(row),))]
        _join(incident, told if known else rows)
    return incident


def _known(job: Job, decision: plan.Decision, rows: list[Signal]) -> Incident | None:
    live = live_incidents(job)
    found, slots = tuple(map(fact_of, rows)), causes.slots_of(decision)
    for incident in live:
        known = tuple(map(fact_of, FINDINGS_OF(incident=incident.pk)))
        if _is_shared(incident):
            # Of what all of them share only that is told here which rests on it, not another fault of one of them.
            rests_on_it = bool(decision.signal_ids) and {row.id for row in known} >= set(decision.signal_ids)
            same = decision.rule == common_stall.RULE or rests_on_it
        else:
            same = causes.same_cause(known, found)
        if same:
            return incident
    for of_slots in (slots, causes.joined_by(decision)):
        of_them = next((incident for incident in live if of_slots & slots_of(incident)), None) if of_slots else None
        if of_them is not None:
            return of_them
    alone = decision.signal_ids or slots or opens_incident(decision)
    return None if alone else next(iter(live), None)


def _of_devices(rows: list[Signal]) -> Incident | None:
    """The unresolved incident, of a job or of none, that has a finding about one of these devices."""
    for row in (row for row in rows if row.kind in KINDS):
        same = Signal.objects.filter(node_id=row.node_id, device_index=row.device_index, kind__in=KINDS)
        open_still = same.exclude(incident=None).exclude(incident__state=IncidentState.RESOLVED)
        known = open_still.select_related("incident").order_by("-incident__opened_at").first()
        if known is not None:
            return known.incident
    return None


def slots_of(incident: Incident) -> frozenset[int]:
    """The replica slots of its job that it is about: of a stall that they share none that is only late."""
    late = (RankOverdue.KIND,) if _is_shared(incident) else ()
    told = {replica for replica, kind in _SLOTS_OF(incident=incident.pk) if kind not in late}
    acts = (action for actions in _ACTS_OF(incident=incident.pk) for action in actions)
    ended = {
        a["replica"] for a in acts if a["action"] in ("stop_replica", "start_replica", "relieve") or _leaves_out(a)
    }
    return frozenset(ended | told)


def _is_shared(incident: Incident) -> bool:
    """It is a stall of most of the job."""
    return _BY_RULE.first(incident=incident.pk, rule=common_stall.RULE) is not None


def _leaves_out(action: dict[str, Any]) -> bool:
    return bool(action["action"] == "set_replica_state" and action["to"] == ReplicaState.SUSPECT)


def _join(incident: Incident, rows: list[Signal]) -> None:
    new = _LOOSE(signals=[row.pk for row in rows])
    if not new:
        return
    Signal.objects.filter(id__in=[row.pk for row in new]).update(incident=incident)
    config = policies.of_fleet() if not incident.needs_hardware else None
    if config is not None and any(needs_hardware(fact_of(row), config) for row in new):
        Incident.objects.filter(pk=incident.pk).update(needs_hardware=True)
        incident.needs_hardware = True


def _open(job: Job | None, decision: plan.Decision, rows: list[Signal], at: datetime) -> Incident:
    first = rows[0] if rows else None
    opened_at = _ordered_at(job, decision) or (first.seen_at if first else at)
    incident = Incident.objects.create(
        id=new_id("inc"),
        job=job,
        node=_machine(decision, rows),
        title=decision.title or short(decision.sentence),
        opened_at=opened_at,
        began=course.mark(job, opened_at) if job is not None else None,
    )
    publish_incident(incident, "incident.opened", decision.sentence)
    if job is not None:
        keeping.need(incident)
        transaction.on_commit(lambda: proof.pin(incident))
    return incident


def _machine(decision: plan.Decision, rows: list[Signal]) -> Node | None:
    """Where what failed ran: a survivor's broken exchange is often told first, and is nobody's machine but its own."""
    slots = causes.slots_of(decision)
    hit = [row for row in rows if row.replica in slots] or rows
    of_itself = [row for row in hit if row.kind != "outer_error"] or hit
    return of_itself[0].node if of_itself else None


def _ordered_at(job: Job | None, decision: plan.Decision) -> datetime | None:
    """When the person's order was given that this decision carries out; None for any other."""
    ordered = [a for a in decision.actions if isinstance(a, (plan.StopReplica, plan.Relieve))]
    if decision.rule != "ordered_eviction" or not ordered:
        return None
    lives = Q()
    for act in ordered:
        lives |= Q(index=act.replica, incarnation=act.incarnation)
    rows = Replica.objects.filter(lives, attempt__job=job)
    moment: datetime | None = rows.aggregate(at=Min("ordered_at"))["at"]
    return moment


def progress(incident_id: str | None, *, acted: bool) -> None:
    """Refresh the phases; the first act moves a job's incident to recovering, and one of the
    fleet, whose node takes no new work now, to mitigated."""
    incident = _INCIDENT.first(incident=incident_id) if incident_id is not None else None
    if incident is None:
        return
    if acted and incident.state == IncidentState.OPEN:
        to = IncidentState.RECOVERING if incident.job_id else IncidentState.MITIGATED
        guard.move(incident, "incident", to)
        publish_incident(incident, f"incident.{to}", f"Acting on: {incident.title}")
    refresh_phases(incident)


def refresh_phases(incident: Incident) -> None:
    """Recompute the phase times and the stall; publish if they changed."""
    stall = stall_of(incident)
    found: dict[str, Any] = {
        "phases": compute_phases(incident),
        "stall_s": stall.own_s if stall is not None else None,
        "stall_others_s": stall.others_s if stall is not None else None,
    }
    if all(getattr(incident, name) == value for name, value in found.items()):
        return
    Incident.objects.filter(pk=incident.pk).update(**found)
    for name, value in found.items():
        setattr(incident, name, value)
    publish_incident(incident, "incident.phases", "")


def resolve(job: Job, note: str, outcome: IncidentOutcome) -> None:
    """Close what is open for the job, as it ended. Where training went on, a certificate is due
    shortly after, when the last reports are in; where hardware is out still, it stays mitigated."""
    for incident in live_incidents(job):
        _end(incident, note, outcome, step=job.committed_step)


def _end(incident: Incident, note: str, outcome: IncidentOutcome, *, step: int) -> None:
    moment = now()
    waits = incident.needs_hardware
    to = IncidentState.MITIGATED if waits else IncidentState.RESOLVED
    kept = outcome
    if outcome is IncidentOutcome.RECOVERED and incident.signals.filter(kind__in=KINDS).exists():
        # The job is as it was; the hardware is not.
        kept = IncidentOutcome.MITIGATED
    columns: dict[str, object] = {"outcome": kept, "resolved_at": None if waits else moment}
    columns["resolution"] = f"{note} The hardware is out still." if waits else note
    if outcome in BACK:
        columns |= {
            "recovered_at": moment,
            "ended": asdict(course.here(incident.job)) if incident.job is not None else None,
            "full_strength": outcome is IncidentOutcome.RECOVERED,
            "certificate_due_at": after(FIRST_S),
            "certificate": pending_certificate(step),
        }
    else:
        keeping.let_go(incident)
        transaction.on_commit(partial(proof.clear, incident))
    guard.move(incident, "incident", to, **columns)
    incident.refresh_from_db()
    refresh_phases(incident)
    publish_incident(incident, f"incident.{to}", incident.resolution)


def close(incident_id: str, note: str, outcome: IncidentOutcome) -> None:
    """The hardware is back, gone for good, or was never at fault: nothing is waited for any more."""
    incident = lock_row(Incident, incident_id)
    if incident is None or incident.state == IncidentState.RESOLVED:
        return
    kept = IncidentOutcome.LOST if incident.outcome == IncidentOutcome.LOST else outcome
    _hand_back(incident, note, kept)


def _hand_back(incident: Incident, note: str, outcome: str) -> None:
    told = incident.resolution.removesuffix(" The hardware is out still.")
    guard.move(
        incident,
        "incident",
        IncidentState.RESOLVED,
        resolved_at=now(),
        outcome=outcome,
        resolution=f"{told} {note}".strip(),
    )
    incident.refresh_from_db()
    signals.settle(list(incident.signals.filter(settled_at=None)), note)
    refresh_phases(incident)
    publish_incident(incident, "incident.resolved", note)


def count_phases(phases: list[dict[str, Any]]) -> None:
    """Once, when its certificate is first judged: by then a step of the clock that came before its end is known. A
    phase before the fault is a clock that was set: not counted."""
    for phase in phases:
        if phase["since_fault_s"] >= 0.0:
            metrics.RECOVERY.labels(phase=phase["name"]).observe(phase["since_fault_s"])


def acknowledge(incident_id: str, *, actor: str, reason: str, request_id: str = "") -> Incident:
    """A person has seen it and takes it on. One that waits for hardware is handed over to them,
    and so resolved. Raises NotFound, and Conflict where somebody was first or it waits for nobody."""
    with events.unit_of_work():
        incident = lock_row(Incident, incident_id)
        if incident is None:
            raise NotFound(f"no incident {incident_id!r}")
        refuse(incident_acts(incident)["acknowledge"])
        audit(
            actor, "incident.acknowledge", incident_id, reason=reason, request_id=request_id,
            before={"state": incident.state, "acknowledged": False},
            after={
                "state": IncidentState.RESOLVED if incident.state == IncidentState.MITIGATED else incident.state,
                "acknowledged": True,
            },
        )  # fmt: skip
        Incident.objects.filter(pk=incident_id).update(
            acknowledged_at=now(), acknowledged_by=in_words(actor), acknowledgement=reason
        )
        incident.refresh_from_db()
        who = incident.acknowledged_by
        publish_incident(incident, "incident.acknowledged", f"{who} acknowledged: {incident.title} ({reason})")
        if incident.state == IncidentState.MITIGATED:
            outcome = incident.outcome or IncidentOutcome.MITIGATED
            _hand_back(incident, f"{who} has it now: {reason}", outcome)
    return incident


def publish_incident(incident: Incident, kind: str, sentence: str) -> None:
    """An event with the incident's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        job_id=incident.job_id or "",
        node_id=incident.node_id or "",
        entity="incident",
        entity_id=incident.id,
        patch=lambda: incident_summary(_INCIDENT.get(incident=incident.pk)),
    )
    if incident.job_id:
        refresh_job(incident.job_id)
