"""Findings of detectors as rows: raised once while open, settled by decisions or refuted."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from controlplane.changes.due.findings import DECIDED
from controlplane.fleet.publish import refresh_node, refresh_nodes
from controlplane.jobs.models import Rank
from controlplane.jobs.services import refresh_job
from controlplane.policy.signals.base import Finding, Trait
from controlplane.policy.signals.nodes import NodeSilent, NodeUnfit
from controlplane.policy.snapshot import SignalFact
from controlplane.recovery.models import Signal
from controlplane.recovery.phases import began_before_s
from controlplane.recovery.present import signal_summary
from controlplane.runtime import events, metrics
from controlplane.runtime.clock import now
from controlplane.runtime.ids import new_id
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOST, TEXT, Prepared


def raise_signal(found: Finding, *, seen_at: datetime | None = None) -> Signal | None:
    """Record a finding unless one with its key is open (then None; one for people lasts from its repetition).
    `seen_at`: when the fault showed itself, by the server's clock; now unless told."""
    with events.unit_of_work():
        again = Signal.objects.filter(key=found.key, settled_at=None)
        if again.exists():
            if Trait.PEOPLE in found.TRAITS:
                again.update(seen_at=seen_at or now())
            return None
        row = Signal.objects.create(
            id=new_id("sig"),
            kind=found.KIND,
            key=found.key[:160],
            **found.place,
            value=found.value,
            threshold=found.threshold,
            evidence=found.evidence,
            seen_at=seen_at or now(),
        )
        publish_signal(row, f"signal.{found.KIND}", found.sentence)
        _count_detection(row)
    return row


def fact_of(row: Signal) -> SignalFact:
    """As the policy sees it."""
    return SignalFact(
        id=row.id,
        kind=row.kind,
        seen_s=row.seen_at.timestamp(),
        came_s=row.created_at.timestamp(),
        renewed_s=None if row.renewed_at is None else row.renewed_at.timestamp(),
        replica=row.replica,
        incarnation=row.incarnation,
        rank=row.rank,
        node_id=row.node_id,
        device_index=row.device_index,
        value=row.value,
        threshold=row.threshold,
        evidence=row.evidence,
        incident_id=row.incident_id,
    )


def _count_detection(row: Signal) -> None:
    """Since the fault began, as the phases of its incident have it. A wall clock that was set back since the
    evidence says nothing about the time that it took."""
    since_evidence_s = (row.created_at - row.seen_at).total_seconds()
    if since_evidence_s >= 0.0:
        took_s = since_evidence_s + began_before_s(row)
        transaction.on_commit(lambda: metrics.DETECTION.observe(took_s))


def place_of(row: Rank) -> dict[str, Any]:
    """Where a finding about this rank is: the fields that every finding has."""
    replica = row.replica
    return {
        "job_id": replica.attempt.job_id,
        "node_id": row.node_id,
        "replica": replica.index,
        "incarnation": replica.incarnation,
        "rank": row.rank,
        "device_index": row.device.index,
    }


def amend(row: Signal, evidence: dict[str, Any], sentence: str, *, value: float | None = None) -> None:
    """An open finding says something else now, of another `value` where there is one; a `sentence` tells of it
    where that is news."""
    kept = row.value if value is None else value
    Signal.objects.filter(pk=row.pk, settled_at=None).update(evidence=evidence, value=kept)
    publish_signal(row, f"signal.{row.kind}" if sentence else "signal.refreshed", sentence)


def renew(row: Signal) -> None:
    """An open finding was found so again just now."""
    Signal.objects.filter(pk=row.pk, settled_at=None).update(renewed_at=now())


def settle(rows: list[Signal], why: str) -> None:
    """They are dealt with, or refuted."""
    for row in rows:
        if Signal.objects.filter(pk=row.pk, settled_at=None).update(settled_at=now()):
            publish_signal(row, "signal.settled", f"{row.kind}: {why}")


def settle_together(reasons: Sequence[tuple[Signal, str]]) -> None:
    """As `settle` of each, with what it says of it; in as many statements for a thousand as for ten."""
    summaries: dict[str, dict[str, Any]] = {}
    rows = {row.pk: (row, why) for row, why in reasons}
    for some in batched(list(rows), MOST):
        found = Signal.objects.filter(pk__in=some, settled_at=None).select_for_update(no_key=True).order_by("pk")
        mine = list(found.values_list("pk", flat=True))
        Signal.objects.filter(pk__in=mine).update(settled_at=now())
        for row in Signal.objects.filter(pk__in=mine).select_related("node"):
            summaries[row.pk] = signal_summary(row)
    of = [rows[pk] for pk in rows if pk in summaries]
    for row, why in of:
        _publish(row, "signal.settled", f"{row.kind}: {why}", partial(summaries.__getitem__, row.pk))
    silent = [row for row, _ in of if row.kind == NodeSilent.KIND and row.job_id and row.node_id]
    for job_id in dict.fromkeys(row.job_id for row in silent):
        refresh_job(str(job_id))
    refresh_nodes(dict.fromkeys(str(row.node_id) for row in silent))


def settle_keys(prefix: str, why: str) -> list[Signal]:
    """Every open finding whose key begins so; returns them."""
    rows = list(Signal.objects.filter(key__startswith=prefix, settled_at=None))
    with events.unit_of_work():
        settle(rows, why)
    return rows


def _open_for(job: Any) -> QuerySet[Signal]:
    mine = Q(job=job) | Q(job_id=None, node__isnull=False, node__revoked_at=None)
    return Signal.objects.filter(mine, settled_at=None, kind__in=DECIDED).order_by("id")


def _node_checks() -> QuerySet[Signal, tuple[str | None, Any]]:
    rows = Signal.objects.filter(kind=NodeUnfit.KIND, settled_at=None).exclude(node_id=None)
    return rows.values_list("node_id", "evidence")


_OPEN_FOR, _NODE_CHECKS = Prepared(_open_for, job=TEXT), Prepared(_node_checks)


def open_for(job_id: str) -> list[Signal]:
    """Open findings about the job, or about a node it may use, by id."""
    return _OPEN_FOR(job=job_id)


def node_checks() -> dict[str, str]:
    """Node id to which of its own checks fail, in one line."""
    return {str(node_id): str(evidence.get("detail", "")) for node_id, evidence in _NODE_CHECKS()}


def publish_signal(row: Signal, kind: str, sentence: str) -> None:
    """An event with the finding's summary as this unit of work leaves it. Of a node that is not heard,
    or is heard again, the summaries of its job and of the node tell too."""
    _publish(row, kind, sentence, lambda: signal_summary(Signal.objects.select_related("node").get(pk=row.pk)))
    if row.kind == NodeSilent.KIND and row.job_id and row.node_id:
        tell_silence(row.job_id, row.node_id)


def _publish(row: Signal, kind: str, sentence: str, patch: Callable[[], dict[str, Any]]) -> None:
    about = {"job_id": row.job_id or "", "node_id": row.node_id or "", "entity": "signal", "entity_id": row.id}
    events.publish(kind, sentence, patch=patch, **about)


def tell_silence(job_id: str, node_id: str) -> None:
    """What is told of a silent node on its job and on itself has changed."""
    refresh_job(job_id)
    refresh_node(node_id)
