"""What this fleet has measured of the things that a policy's timeouts bound: for `policy.document`.

The newest rows of the last week, a few thousand of each kind. Reads alone.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from controlplane.changes.assembly.measured import share_within_s
from controlplane.checkpoints.models import Checkpoint
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Replica, StepRecord
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, LOCAL_KIND
from controlplane.policy.document import Ground, Measure
from controlplane.recovery.models import ViewRow
from controlplane.runtime.clock import ago

WINDOW_S = 7 * 86_400.0
NEWEST = 2000
P99 = 0.99


def ground() -> Ground:
    """Everything that a document is checked against."""
    enrolled = Node.objects.filter(revoked_at=None)
    return Ground(
        measured=measured(), nodes=enrolled.count(), devices=Device.objects.filter(node__revoked_at=None).count()
    )


def measured() -> Mapping[str, Measure]:
    """By the field that bounds it; what was never seen is not in it."""
    flushes = list(_flushes())
    found = {
        "lease_s": _measure(_steps(), "a step"),
        "flush_timeout_s": _measure(flushes, "a view until all its members had answered"),
        "flush_limit_s": _measure(flushes, "a view until all its members had answered"),
        "catch_up_limit_s": _measure(_transfers(), "a joiner's transfer of state"),
        "save_first_s": _measure(_saves(), "a save to shared storage"),
    }
    return {name: seen for name, seen in found.items() if seen is not None}


def _measure(seconds: Iterable[float], what: str) -> Measure | None:
    sorted_s = sorted(seconds)
    if not sorted_s:
        return None
    return Measure(p99_s=share_within_s(sorted_s, P99), samples=len(sorted_s), what=what)


def _steps() -> Iterable[float]:
    rows = StepRecord.objects.filter(at__gte=ago(WINDOW_S), step_time_s__gt=0, stall_s=0.0).order_by("-id")
    return (value for value in rows.values_list("step_time_s", flat=True)[:NEWEST] if value is not None)


def _flushes() -> Iterable[float]:
    rows = ViewRow.objects.filter(announced_at__gte=ago(WINDOW_S), ordered_at__isnull=False).order_by("-id")
    return _took(rows.values_list("announced_at", "ordered_at")[:NEWEST])


def _transfers() -> Iterable[float]:
    rows = Replica.objects.filter(created_at__gte=ago(WINDOW_S), caught_up__isnull=False).order_by("-id")
    reports = rows.values_list("caught_up", flat=True)[:NEWEST]
    return (report["fetch_s"] for report in reports if report and report.get("fetch_s", 0.0) > 0.0)


def _saves() -> Iterable[float]:
    rows = Checkpoint.objects.filter(started_at__gte=ago(WINDOW_S), state__in=COMMITTED_CHECKPOINTS, total_s__gt=0)
    newest = rows.exclude(kind=LOCAL_KIND).order_by("-started_at").values_list("total_s", flat=True)[:NEWEST]
    return (value for value in newest if value is not None)


def _took(pairs: Iterable[tuple[datetime, datetime | None]]) -> Iterable[float]:
    """Of a clock that was set meanwhile nothing is known."""
    spans = ((ended - began).total_seconds() for began, ended in pairs if ended is not None)
    return (span for span in spans if span >= 0.0)
