"""Gauges of the fleet that are read from rows: refreshed by each web process, as any of them is scraped."""

from collections import defaultdict

from django.conf import settings
from django.db.models import Count, Q
from prometheus_client import Gauge

from controlplane.changes.assembly.nodes import suspect_devices
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.services import outbox_numbers
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Node
from controlplane.jobs import selectors as jobs
from controlplane.jobs.models import Job
from controlplane.jobs.numbers import ENDED, Stored, checkpoint_age_s, in_storage
from controlplane.jobs.several import AT_ONCE, JobRate, rates
from controlplane.policies import selectors as policies
from controlplane.policy.facts import correlated_failure_of
from controlplane.policy.fleet import FleetSnapshot
from controlplane.protocol.states import IncidentState, JobState
from controlplane.recovery import deadletter
from controlplane.recovery.disruption import closings, recent_acts, suspicions
from controlplane.recovery.disruption_models import Breaker
from controlplane.recovery.load import segments
from controlplane.recovery.models import Incident
from controlplane.runtime import metrics, windows
from controlplane.runtime.clock import now_s
from controlplane.runtime.pieces import batched

SUSPECTS, ACTS, OPEN = "suspect_devices", "recent_acts", "open"
"""Scopes of the breaker: which of the two limits is passed now, and whether one is open."""


def refresh() -> None:
    """A dozen queries; called every few seconds."""
    replace(metrics.JOBS, jobs.counts_by_state())
    replace(metrics.NODES, fleet.counts_by_state())
    replace(metrics.GPUS, fleet.device_counts())
    replace(metrics.BREAKER, breaker())
    pending, oldest_s = outbox_numbers()
    metrics.OUTBOX_PENDING.set(pending)
    metrics.OUTBOX_OLDEST.set(oldest_s or 0.0)
    metrics.DEAD_LETTERS_WAITING.set(deadletter.waiting_count())
    # A job that a person preempted saves nothing and commits nothing, and that is no alarm.
    parked = Q(state=JobState.PREEMPTED) & ~Q(parked_by="")
    found = list(rates(Job.objects.exclude(state__in=ENDED).exclude(parked)))
    replace(metrics.EFFECTIVE, {rate.job.id: rate.ettr for rate in found})
    replace(metrics.PRODUCTIVITY, {rate.job.id: rate.productivity for rate in found})
    replace(metrics.CHECKPOINT_AGE, checkpoint_ages_s(found))
    metrics.CHECKPOINT_LIMIT.set(settings.CHECKPOINT_OLD_S)
    metrics.REFRESHED.set(now_s())
    metrics.SINCE_REFRESH.note()


def refresh_incidents() -> None:
    """Two queries; called each second, as many recoveries take only a few."""
    steps = windows.known()
    opened = Incident.objects.exclude(state=IncidentState.RESOLVED).values_list("opened_at", flat=True)
    ages_s = [windows.age_s(at, steps) for at in opened]
    metrics.INCIDENTS.set(len(ages_s))
    metrics.INCIDENT_OLDEST.set(max(ages_s, default=0.0))


def breaker() -> dict[str, float]:
    """1 for each limit over which nothing destructive is done on silence, by the rule that decides (`policy.facts`)."""
    sizes = dict(Node.objects.filter(revoked_at=None).annotate(n=Count("devices")).values_list("id", "n"))
    closed = closings()
    named = suspect_devices(suspicions(closed), sizes)
    found = FleetSnapshot(
        now_s=now_s(),
        fleet_devices=sum(sizes.values()),
        suspect_devices=len(named),
        suspect_nodes=tuple(sorted({node_id for node_id, _ in named})),
        segments=segments(),
    )
    config = policies.of_fleet()
    standing = Breaker.objects.filter(closed_at=None).exists()
    return {
        SUSPECTS: float(correlated_failure_of(found, config)),
        ACTS: float(recent_acts(closed) >= config.max_acts),
        OPEN: float(standing),
    }


def checkpoint_ages_s(found: list[JobRate]) -> dict[str, float | None]:
    """By job, `jobs.numbers.checkpoint_age_s`; two queries for `AT_ONCE` jobs."""
    steps, stored = windows.known(), defaultdict[str, list[Stored]](list)
    for some in batched([rate.job.id for rate in found], AT_ONCE):
        rows = in_storage(Checkpoint.objects.filter(job__in=some)).values_list("job_id", "step", "committed_at")
        for job_id, step, at in rows:
            stored[job_id].append((step, at))
    return {rate.job.id: checkpoint_age_s(stored[rate.job.id], rate.first, steps) for rate in found}


def replace(gauge: Gauge, values: dict[str, float | None] | dict[str, int] | dict[str, float]) -> None:
    """Set each series of a gauge with one label; those that are not named, or None, end. One by one: a
    scrape in between finds the others."""
    known = {name: value for name, value in values.items() if value is not None}
    for name, value in known.items():
        gauge.labels(name).set(value)
    told = {next(iter(sample.labels.values())) for metric in gauge.collect() for sample in metric.samples}
    for name in told - known.keys():
        gauge.remove(name)
