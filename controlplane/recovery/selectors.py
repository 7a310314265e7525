"""Reading incidents, decisions and signals."""

from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from controlplane.jobs.models import Job, Rank
from controlplane.policy.fleet import FleetSnapshot
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.diagnostics import FLIGHT_RECORDER, LOG, NOT_GOT
from controlplane.protocol.states import LIVE_INCIDENT, QUEUED_JOB
from controlplane.recovery import course
from controlplane.recovery.incident_evidence import first_failure, stack_groups
from controlplane.recovery.models import Decision, Incident, RankLook, Signal
from controlplane.recovery.present import decision_summaries, incident_summary, look_view, signal_summary
from controlplane.recovery.snapshots import unpacked
from controlplane.runtime import windows
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import NotFound
from controlplane.runtime.events import told
from controlplane.runtime.models import Event

FIRST_EVENTS, LAST_EVENTS = 200, 300
FIRST_LOOKS, LAST_LOOKS = 150, 150
"""Of a longer list the first and the last so many are shown, and a line between them says what is left out."""
NODE_SIGNALS = 100
BEFORE_S = 60.0
"""An incident's events begin so long before it was opened: what led to it."""
LEFT_OUT = "events.left_out"


Only = Callable[..., Q]
"""A filter of rows by the project at a path, see `access.rights.Rights.only`."""


def of_all(path: str, *, none_too: bool = False) -> Q:
    """Every row."""
    return Q()


def incidents(*, state: str | None = None, job_id: str | None = None, q: str = "") -> QuerySet[Incident]:
    """Newest first. `q`: part of the title, or of the name of its job or node, in any case."""
    rows = Incident.objects.select_related("job", "node").order_by("-opened_at", "-id")
    if state:
        rows = rows.filter(state=state)
    if q:
        rows = rows.filter(Q(title__icontains=q) | Q(job__name__icontains=q) | Q(node__name__icontains=q))
    return rows.filter(job_id=job_id) if job_id else rows


def incident(incident_id: str) -> Incident:
    """Raises NotFound."""
    row = Incident.objects.select_related("job", "node").filter(pk=incident_id).first()
    if row is None:
        raise NotFound(f"no incident {incident_id!r}")
    return row


def incident_detail(incident_id: str, only: Only = of_all) -> dict[str, Any]:
    """The summary with its signals, decisions (and their commands), looks, events and parts. One of the fleet can be
    about several jobs: of those that `only` leaves out nothing is told. Raises NotFound."""
    row = incident(incident_id)
    of_seen = only("job__project", none_too=True)
    signals = row.signals.filter(of_seen).select_related("node").order_by("seen_at", "id")
    parts = row.parts.filter(of_seen).select_related("job", "node").order_by("opened_at", "id")
    decisions = row.decisions.filter(of_seen).select_related("job").defer("snapshot", "job__spec").order_by("at", "id")
    return {
        **incident_summary(row),
        "signals": [signal_summary(signal) for signal in signals],
        "decisions": decision_summaries(decisions),
        "stacks": incident_looks(row),
        "findings": row.findings,
        "first_failure": first_failure(row),
        "stack_groups": stack_groups(row),
        "events": incident_events(row, only),
        "parts": [incident_summary(part) for part in parts],
    }


def incident_events(row: Incident, only: Only = of_all) -> list[dict[str, Any]]:
    """From `BEFORE_S` before it was opened until it was resolved, in order: those of its job and of the
    nodes that its signals name, less what other jobs did there; of one of the fleet less what jobs did that
    `only` leaves out. Where there are too many, a line of kind
    `LEFT_OUT` stands in the place of those in the middle; its data say how many, of how many, and which."""
    named = row.signals.exclude(node_id=None).order_by().values_list("node_id", flat=True).distinct()
    nodes = sorted({*named, *([row.node_id] if row.node_id else [])})
    of = Q(job_id=row.job_id) | Q(node_id__in=nodes, job_id="") if row.job_id else Q(node_id__in=nodes)
    if not row.job_id and (seen := only("project")):
        of &= ~Q(job_id__in=Job.objects.exclude(seen).values("pk"))
    happened = told(Event.objects.filter(of).filter(_of_its_time(row))).order_by("seq")
    total = happened.count()
    left = total - FIRST_EVENTS - LAST_EVENTS
    if left <= 0:
        return [event_view(event) for event in happened[: FIRST_EVENTS + LAST_EVENTS]]
    head = list(happened[:FIRST_EVENTS])
    tail = list(happened.reverse()[:LAST_EVENTS])[::-1]
    between = happened.filter(seq__gt=head[-1].seq, seq__lt=tail[0].seq)
    first, last = between.first(), between.last()
    shown = [event_view(event) for event in head]
    if first and last:
        said = f"{left} of {total} events are left out here, numbers {first.seq} to {last.seq}: the event log has them."
        data = {"left_out": left, "total": total, "first_seq": first.seq, "last_seq": last.seq}
        shown.append(event_view(Event(seq=first.seq, at=first.at, kind=LEFT_OUT, sentence=said, data=data)))
    return shown + [event_view(event) for event in tail]


def _of_its_time(row: Incident) -> Q:
    """Events by their numbers: whatever the clock was set to, they follow one another; those that led to it by times
    besides, each by the clock of then. Where its own are gone, by times alone."""
    since = row.opened_at - timedelta(seconds=BEFORE_S)
    mine = Event.objects.filter(entity="incident", entity_id=row.id, job_id=row.job_id or "").order_by("seq")
    first = mine.filter(kind="incident.opened").first()
    if first is None:
        return Q(at__gte=since, at__lte=row.resolved_at) if row.resolved_at else Q(at__gte=since)
    steps, open_s = course.clock_before(row, first.at)
    before = [Q(at__range=piece) for piece in windows.pieces(steps, BEFORE_S + open_s, until=first.at)]
    bounds = Q(seq__gte=first.seq) | Q(reduce(or_, before), seq__lt=first.seq)
    last = mine.filter(kind="incident.resolved").last() if row.resolved_at else None
    if last is not None:
        return bounds & Q(seq__lte=last.seq)
    return bounds & Q(at__lte=row.resolved_at) if row.resolved_at else bounds


def incident_looks(row: Incident) -> list[dict[str, Any]]:
    """What the Flight Recorders say first, then each look that kept a text, those at what hung before
    those at the others, in the order of arrival; of too many the first and the last, with a line between."""
    told = [
        {"rank": f"{f['replica']}.{f['incarnation']}", "diagnostic": "finding", "method": "Flight Recorder finding",
         "text": f["sentence"] + (f"\n\nSecond opinion: {f['second_opinion']}." if f.get("second_opinion") else ""),
         "at": f["at"], "id": "", "command_id": ""}
        for f in row.findings
    ]  # fmt: skip
    hung = Exists(
        row.looks.filter(replica=OuterRef("replica"), incarnation=OuterRef("incarnation"), look=FLIGHT_RECORDER)
    )
    looks = row.looks.exclude(text="").annotate(hung=hung).order_by("-hung", "at", "id")
    total = looks.count()
    left = total - FIRST_LOOKS - LAST_LOOKS
    if left <= 0:
        return told + [look_view(look) for look in looks[: FIRST_LOOKS + LAST_LOOKS]]
    said = f"{left} of {total} diagnostics are left out here"
    mark = {
        "rank": "-", "diagnostic": "left_out", "method": said,
        "text": f"{said}: the job's list of diagnostics has them.",
        "at": iso(row.opened_at), "id": "", "command_id": "",
    }  # fmt: skip
    head, tail = looks[:FIRST_LOOKS], list(looks.reverse()[:LAST_LOOKS])[::-1]
    return [*told, *map(look_view, head), mark, *map(look_view, tail)]


def log_of(job_id: str, rank: Rank, *, tail: int) -> dict[str, Any]:
    """The last `tail` lines of one life of a rank: as kept at its end, else as last looked at."""
    life = rank.replica
    text, source, at = rank.log_tail, "exit", None
    if not text:
        rows = RankLook.objects.filter(
            job_id=job_id, replica=life.index, incarnation=life.incarnation, rank=rank.rank, look=LOG
        )
        newest = rows.exclude(method=NOT_GOT).order_by("-at", "-id").first()
        text, source, at = (newest.text, "live", iso(newest.at)) if newest else ("", "none", None)
    lines = text.splitlines()
    return {
        "text": "\n".join(lines[-tail:]),
        "truncated": len(lines) > tail,
        "attempt": life.attempt.number,
        "incarnation": life.incarnation,
        "replica": life.index,
        "rank": rank.rank,
        "state": rank.state,
        "source": source,
        "at": at,
    }


def diagnostics(job_id: str, *, command_id: str | None = None) -> QuerySet[RankLook]:
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
    rows = Decision.objects.select_related("job").defer("snapshot", "job__spec").order_by("-at", "-id")
    if job_id:
        rows = rows.filter(job_id=job_id)
    return rows if routine is None else rows.filter(routine=routine)


def waits_for(job: Job) -> str:
    """What a job that is not placed lacks, as its newest decision said it; "" where it waits for nothing."""
    if job.state not in QUEUED_JOB:
        return ""
    newest = Decision.objects.filter(job=job).order_by("-at", "-id").values("choice", "sentence").first()
    return str(newest["sentence"]) if newest and newest["choice"] == "wait" else ""


def held_by(job: Job) -> str:
    """The sentence of its newest decision where that is to hold, or only a recommendation, and the incident that it
    is about is not over; else ""."""
    rows = Decision.objects.defer("snapshot").filter(job=job, routine=False).select_related("incident")
    newest = rows.order_by("-at", "-id").first()
    if newest is None or newest.incident is None or newest.incident.state not in LIVE_INCIDENT:
        return ""
    if newest.choice == "hold":
        return newest.sentence
    return "" if newest.applied else f"Recommended, and left to a person: {newest.sentence}"


def decision(decision_id: str) -> Decision:
    """Raises NotFound."""
    row = Decision.objects.select_related("job").filter(pk=decision_id).first()
    if row is None:
        raise NotFound(f"no decision {decision_id!r}")
    return row


def snapshot_of(row: Decision) -> JobSnapshot:
    """What the policy saw of the job, for replay. Raises NotFound for a look on schedule, which
    keeps none, and for a decision of the fleet (`fleet_snapshot_of`)."""
    if row.job_id is None:
        raise NotFound(f"decision {row.id!r} is the fleet's: it saw no job")
    if not row.snapshot:
        raise NotFound(f"decision {row.id!r} keeps no snapshot: it started a scheduled diagnostic")
    return unpacked(bytes(row.snapshot), JobSnapshot)


def signals_of_node(node_id: str, only: Only = of_all) -> tuple[list[dict[str, Any]], int]:
    """(open findings about the node, newest first, then the newest settled ones; how many older ones are left out)."""
    rows = Signal.objects.filter(only("job__project", none_too=True), node_id=node_id).select_related("node")
    newest = rows.order_by(F("settled_at").desc(nulls_first=True), "-seen_at", "-id")[:NODE_SIGNALS]
    return [signal_summary(row) for row in newest], max(0, rows.count() - NODE_SIGNALS)


def fleet_snapshot_of(row: Decision) -> FleetSnapshot:
    """What the policy saw of the fleet, for replay. Raises NotFound for a decision about a job."""
    if row.job_id is not None:
        raise NotFound(f"decision {row.id!r} is about job {row.job_id}")
    return unpacked(bytes(row.snapshot), FleetSnapshot)
