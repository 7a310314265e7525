"""Reading incidents, decisions and signals."""

from typing import Any

import msgspec
import zstandard
from django.db.models import QuerySet

from controlplane.policy.snapshot import JobSnapshot
from controlplane.recovery.models import Decision, Incident, RankLook, Signal
from controlplane.recovery.present import decision_summary, incident_summary, look_view, signal_summary
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import NotFound
from controlplane.runtime.events import told
from controlplane.runtime.models import Event

MAX_EVENTS = 500
MAX_LOOKS = 200


def incidents(*, state: str | None = None, job_id: str | None = None) -> QuerySet[Incident]:
    """Newest first."""
    rows = Incident.objects.select_related("job").order_by("-opened_at", "-id")
    if state:
        rows = rows.filter(state=state)
    return rows.filter(job_id=job_id) if job_id else rows


def incident_detail(incident_id: str) -> dict[str, Any]:
    """The summary with its signals, decisions (and their commands), looks and events.
    Raises NotFound."""
    row = Incident.objects.select_related("job").filter(pk=incident_id).first()
    if row is None:
        raise NotFound(f"no incident {incident_id!r}")
    signals = row.signals.select_related("node").order_by("seen_at", "id")
    decisions = row.decisions.defer("snapshot").order_by("at", "id")
    happened = told(Event.objects.filter(job_id=row.job_id or "", at__gte=row.opened_at))
    if row.resolved_at:
        happened = happened.filter(at__lte=row.resolved_at)
    return {
        **incident_summary(row),
        "signals": [signal_summary(signal) for signal in signals],
        "decisions": [decision_summary(decision) for decision in decisions],
        "stacks": incident_looks(row),
        "findings": row.findings,
        "events": [event_view(event) for event in happened.order_by("seq")[:MAX_EVENTS]],
    }


def incident_looks(row: Incident) -> list[dict[str, Any]]:
    """What the Flight Recorders say first, then each look, in the order of arrival."""
    told = [
        {"rank": f"{f['replica']}.{f['incarnation']}", "look": "finding", "method": "Flight Recorder finding",
         "text": f["sentence"], "at": f["at"], "id": "", "command_id": ""}
        for f in row.findings
    ]  # fmt: skip
    return told + [look_view(look) for look in row.looks.order_by("at", "id")[:MAX_LOOKS]]


def looks(job_id: str, *, command_id: str | None = None) -> QuerySet[RankLook]:
    """Looks at ranks of a job, newest first; those of one order only."""
    rows = RankLook.objects.filter(job_id=job_id).order_by("-at", "-id")
    return rows.filter(command_id=command_id) if command_id else rows


def event_view(event: Event) -> dict[str, Any]:
    """A line of the event log, without its patch."""
    return {
        "seq": event.seq,
        "at": iso(event.at),
        "kind": event.kind,
        "sentence": event.sentence,
        "job_id": event.job_id or None,
        "job_seq": event.job_seq,
        "node_id": event.node_id or None,
        "entity": event.entity,
        "entity_id": event.entity_id,
        "data": event.data,
    }


def decisions(*, job_id: str | None = None, routine: bool | None = None) -> QuerySet[Decision]:
    """Newest first, without their snapshots."""
    rows = Decision.objects.defer("snapshot").order_by("-at", "-id")
    if job_id:
        rows = rows.filter(job_id=job_id)
    return rows if routine is None else rows.filter(routine=routine)


def decision(decision_id: str) -> Decision:
    """Raises NotFound."""
    row = Decision.objects.filter(pk=decision_id).first()
    if row is None:
        raise NotFound(f"no decision {decision_id!r}")
    return row


def snapshot_of(row: Decision) -> JobSnapshot:
    """What the policy saw, for replay. Raises NotFound for a look on schedule, which keeps none."""
    if not row.snapshot:
        raise NotFound(f"decision {row.id!r} keeps no snapshot: it ordered a look on schedule")
    return msgspec.msgpack.decode(zstandard.decompress(bytes(row.snapshot)), type=JobSnapshot)


def signals_of_node(node_id: str) -> list[dict[str, Any]]:
    """Open findings about the node, then the newest settled ones."""
    rows = Signal.objects.filter(node_id=node_id).select_related("node").order_by("settled_at", "-seen_at")
    return [signal_summary(row) for row in rows[:100]]
