"""The fleet on one page, and the control plane's own health."""

from collections import Counter
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, connection
from django.db.models import Q

from controlplane.access.rights import Rights
from controlplane.dispatch.services import outbox_numbers
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Node
from controlplane.jobs import selectors as jobs
from controlplane.jobs.models import Job
from controlplane.jobs.several import Goodput, goodput
from controlplane.policies import selectors as policies
from controlplane.policy.rules.registry import REMEDIAL, ceiling
from controlplane.protocol.states import LIVE_INCIDENT, IncidentOutcome, IncidentState, JobState, Mode
from controlplane.recovery import deadletter, health_gate
from controlplane.recovery.incidents import need_attention
from controlplane.recovery.models import Decision, Incident
from controlplane.recovery.present import decision_summaries, incident_summary
from controlplane.recovery.present_breakers import open_ones
from controlplane.runtime import beats, bus, seal
from controlplane.runtime.clock import iso, now
from controlplane.runtime.events import newest_seq

RECENT = 10
DAY = timedelta(hours=24)
HOUR = timedelta(hours=1)


def overview(rights: Rights) -> dict[str, Any]:
    """All of GET /overview, as whoever has these rights sees it."""
    seq, moment = newest_seq(), now()
    seen, of_seen = rights.only("project"), rights.only("job__project", none_too=True)
    effective = _goodput(seen)
    incidents = Incident.objects.filter(of_seen).select_related("job", "node").order_by("-id")
    decisions = Decision.objects.filter(of_seen, routine=False).select_related("job").defer("snapshot", "job__spec")
    decisions = decisions.order_by("-id")
    return {
        "as_of_seq": seq,
        "now": iso(moment),
        "jobs": jobs.counts_by_state(seen),
        "nodes": fleet.counts_by_state(),
        "devices": fleet.device_counts(),
        "open_incidents": incidents.exclude(state=IncidentState.RESOLVED).count(),
        "attention": attention(of_seen),
        "decisions_last_hour": decisions.filter(at__gte=moment - HOUR).count(),
        "goodput_24h": effective.ratio,
        "goodput_estimated": effective.estimated,
        "goodput_unjudged": effective.unjudged,
        "recent_incidents": [incident_summary(row) for row in incidents[:RECENT]],
        "recent_decisions": decision_summaries(decisions[:RECENT]),
        "health": health(),
        "breakers": open_ones(),
    }


def attention(of_seen: Q) -> dict[str, Any]:
    """What is not over, and each lost job until somebody has acknowledged it."""
    rows = need_attention().filter(of_seen)
    lost = rows.filter(outcome=IncidentOutcome.LOST, acknowledged_at=None).exclude(job=None)
    return {
        "live": rows.filter(state__in=LIVE_INCIDENT).count(),
        "lost": lost.order_by().values("job").distinct().count(),
        "hardware": rows.filter(needs_hardware=True).exclude(state=IncidentState.RESOLVED).count(),
        "incidents": [incident_summary(row) for row in rows[:RECENT]],
    }


def _goodput(seen: Q) -> Goodput:
    """Effective training time of the jobs of the last 24 h, by their devices."""
    since = now() - DAY
    recent = Q(finished_at=None) | Q(finished_at__gte=since)
    rows = Job.objects.filter(recent, seen).exclude(state=JobState.PENDING, attempts=None).iterator()
    return goodput(rows, since=since)


def health() -> dict[str, Any]:
    """Each part of the control plane; tells, never raises."""
    database_ok = _database_ok()
    redis_ok = bus.ping()
    foreign = seal.foreign() if database_ok else ""
    pending, oldest_s = outbox_numbers()
    return {
        "database": {"ok": database_ok, "detail": connection.vendor if database_ok else "does not answer"},
        "redis": {"ok": redis_ok and not foreign, "detail": foreign or _redis_detail(redis_ok)},
        "sentinel": _sentinel(),
        "worker": _beat("worker"),
        "agents_connected": Node.objects.filter(connected=True).count(),
        "agents_total": Node.objects.filter(revoked_at=None).count(),
        "outbox_pending": pending,
        "outbox_oldest_s": oldest_s,
        "dead_letters": deadletter.waiting_count(),
        "metrics": beats.metrics_addresses(),
        **_automation(),
    }


def _automation() -> dict[str, Any]:
    """How far the fleet's policy lets its rules go; jobs and projects may narrow it."""
    fleet_policy = policies.of_fleet()
    modes = Counter(ceiling(fleet_policy, rule) for rule in REMEDIAL)
    held = len(REMEDIAL) - modes[Mode.ENFORCE]
    alike = next((mode for mode, rules in modes.items() if rules == len(REMEDIAL)), Mode.ENFORCE)
    return {"mode": str(alike), "rules_held": held if alike is Mode.ENFORCE else 0}


def _redis_detail(redis_ok: bool) -> str:
    return "answers" if redis_ok else "away: everything works, later"


def _beat(role: str) -> dict[str, Any]:
    view = beats.view(role)
    return {"ok": view.ok, "detail": view.detail, "beat_age_s": view.beat_age_s}


def _sentinel() -> dict[str, Any]:
    """Alive is not enough: while its detection is paused, it finds no silent node."""
    view = _beat("sentinel")
    why = health_gate.blind_reason() if view["ok"] else ""
    if why:
        view |= {"ok": False, "detail": f"detection paused: {why}"}
    return view


def _database_ok() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return False
    return True
