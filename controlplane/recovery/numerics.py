"""What ranks say of the numbers they compute: refused results to findings, steps computed
twice to rows."""

from datetime import datetime
from typing import Any

from controlplane.jobs.models import Job, Rank, RankDeterminism
from controlplane.jobs.numbers import spec_of
from controlplane.policy.numerics import KIND, TRANSIENT
from controlplane.policy.signals.numbers import RefusedResult
from controlplane.protocol.rank import DeterminismReport, NumericsReport
from controlplane.recovery import signals
from controlplane.recovery.models import Signal
from controlplane.recovery.present import signal_summary
from controlplane.runtime.clock import iso

Json = dict[str, Any]
MAX_FINDINGS = 100


def take(job: Job, rank: Rank, said: NumericsReport, at: datetime) -> None:
    """Raise the finding; a report that is told twice raises it once, settled or not."""
    before = Signal.objects.filter(
        kind=KIND, node_id=rank.node_id, device_index=rank.device.index, evidence__diagnosis=TRANSIENT
    )
    found = RefusedResult(
        **signals.place_of(rank),
        attempt=rank.replica.attempt.number,
        check=said.check,
        diagnosis=said.diagnosis,
        first_result=said.first_result,
        second_result=said.second_result,
        step=said.step,
        epoch=said.epoch,
        earlier_transients=before.count(),
    )
    if not Signal.objects.filter(key=found.key).exists():
        signals.raise_signal(found, seen_at=at)


def count_steps(rank: Rank, said: DeterminismReport, at: datetime) -> None:
    """The newest count replaces the one before: it counts from the rank's beginning."""
    told = {
        "steps": said.steps,
        "identical_steps": said.identical_steps,
        "largest_difference": said.largest_difference,
        "reported_at": at,
    }
    RankDeterminism.objects.update_or_create(rank=rank, defaults=told)


def job_numerics(job: Job) -> Json:
    """What was refused, newest first, and how many steps were the same when computed twice."""
    wanted = spec_of(job).spec.training.numerics
    found = Signal.objects.filter(job=job, kind=KIND).select_related("node").order_by("-seen_at", "-id")
    rows = RankDeterminism.objects.filter(rank__replica__attempt__job=job).select_related("rank__replica__attempt")
    ranks = [_line(row) for row in rows.order_by("-reported_at", "pk")]
    return {
        "mode": wanted.rerun,
        "findings": [signal_summary(row) for row in found[:MAX_FINDINGS]],
        "steps": sum(line["steps"] for line in ranks),
        "identical_steps": sum(line["identical_steps"] for line in ranks),
        "ranks": ranks,
    }


def _line(row: RankDeterminism) -> Json:
    replica = row.rank.replica
    return {
        "attempt": replica.attempt.number,
        "replica": replica.index,
        "incarnation": replica.incarnation,
        "rank": row.rank.rank,
        "steps": row.steps,
        "identical_steps": row.identical_steps,
        "largest_difference": row.largest_difference,
        "at": iso(row.reported_at),
    }
