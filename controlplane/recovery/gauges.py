"""Gauges of the fleet that are read from rows: refreshed by each web process, as any of them is scraped."""

from django.conf import settings
from django.db.models import Count, Min
from prometheus_client import Gauge

from controlplane.changes.assembly.nodes import suspect_devices
from controlplane.dispatch.services import outbox_numbers
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Node
from controlplane.jobs import selectors as jobs
from controlplane.jobs.models import Job
from controlplane.jobs.numbers import ENDED, JobNumbers, numbers_of
from controlplane.policy.facts import correlated_failure_of
from controlplane.policy.fleet import FleetSnapshot
from controlplane.protocol.states import IncidentState
from controlplane.recovery import deadletter
from controlplane.recovery.load import recent_acts, segments, suspicions
from controlplane.recovery.models import Incident
from controlplane.recovery.reconcile import CONFIG
from controlplane.runtime import metrics
from controlplane.runtime.clock import age_s, now_s

MAX_JOBS = 50
SUSPECTS, ACTS = "suspect_devices", "recent_acts"
"""Scopes of the breaker: which of the two limits is passed."""


def refresh() -> None:
    """A dozen queries; called every few seconds."""
    _replace(metrics.JOBS, jobs.counts_by_state())
    _replace(metrics.NODES, fleet.counts_by_state())
    _replace(metrics.GPUS, fleet.device_counts())
    _replace(metrics.BREAKER, breaker())
    pending, oldest_s = outbox_numbers()
    metrics.OUTBOX_PENDING.set(pending)
    metrics.OUTBOX_OLDEST.set(oldest_s or 0.0)
    metrics.DEAD_LETTERS_WAITING.set(deadletter.waiting_count())
    rows = Job.objects.exclude(state__in=ENDED).order_by("-created_at")[:MAX_JOBS]
    numbers = {row.id: numbers_of(row) for row in rows}
    _replace(metrics.EFFECTIVE, {job_id: found.ettr for job_id, found in numbers.items()})
    _replace(metrics.PRODUCTIVITY, {job_id: found.productivity for job_id, found in numbers.items()})
    _replace(metrics.CHECKPOINT_AGE, {row.id: _unsaved_s(row, numbers[row.id]) for row in rows})
    metrics.CHECKPOINT_LIMIT.set(settings.CHECKPOINT_OLD_S)
    metrics.REFRESHED.set(now_s())


def refresh_incidents() -> None:
    """One query; called each second, as many recoveries take only a few."""
    live = Incident.objects.exclude(state=IncidentState.RESOLVED).aggregate(n=Count("pk"), first=Min("opened_at"))
    metrics.INCIDENTS.set(live["n"])
    metrics.INCIDENT_OLDEST.set(age_s(live["first"]) or 0.0)


def breaker() -> dict[str, float]:
    """1 for each limit over which nothing destructive is done on silence, by the rule that decides (`policy.facts`)."""
    sizes = dict(Node.objects.filter(revoked_at=None).annotate(n=Count("devices")).values_list("id", "n"))
    named = suspect_devices(suspicions(), sizes)
    found = FleetSnapshot(
        now_s=now_s(),
        fleet_devices=sum(sizes.values()),
        suspect_devices=len(named),
        suspect_nodes=tuple(sorted({node_id for node_id, _ in named})),
        segments=segments(),
    )
    return {SUSPECTS: float(correlated_failure_of(found, CONFIG)), ACTS: float(recent_acts() >= CONFIG.max_acts)}


def _unsaved_s(row: Job, found: JobNumbers) -> float | None:
    """Since its newest good checkpoint; of a job that has none, since its first attempt began: all of that
    would be repeated. None before that."""
    if found.last_checkpoint_age_s is not None:
        return found.last_checkpoint_age_s
    first = row.attempts.order_by("number").first()
    return age_s(first.started_at) if first else None


def _replace(gauge: Gauge, values: dict[str, float | None] | dict[str, int] | dict[str, float]) -> None:
    """Set each series of a gauge with one label; those that are not named, or None, end. One by one: a
    scrape in between finds the others."""
    known = {name: value for name, value in values.items() if value is not None}
    for name, value in known.items():
        gauge.labels(name).set(value)
    told = {next(iter(sample.labels.values())) for metric in gauge.collect() for sample in metric.samples}
    for name in told - known.keys():
        gauge.remove(name)
