"""Findings of detectors as rows: raised once while open, settled by decisions or refuted."""

from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q

from controlplane.fleet.publish import refresh_node
from controlplane.jobs.models import Rank
from controlplane.jobs.services import refresh_job
from controlplane.policy.snapshot import SignalFact
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.recovery.models import Signal
from controlplane.recovery.present import signal_summary
from controlplane.runtime import events, metrics
from controlplane.runtime.clock import ago, now
from controlplane.runtime.ids import new_id

NODE_CHECK = "node_check"
NODE_SILENT = "node_silent"
# Told to people; nothing is decided by them. Settled when they were not repeated for so long.
FOR_PEOPLE = (SIGNATURE_REJECTED,)
FOR_PEOPLE_S = 3600.0


def raise_signal(
    kind: str,
    key: str,
    *,
    sentence: str,
    job_id: str | None = None,
    node_id: str | None = None,
    replica: int | None = None,
    incarnation: int | None = None,
    rank: int | None = None,
    device_index: int | None = None,
    value: float = 0.0,
    threshold: float = 0.0,
    evidence: dict[str, Any] | None = None,
    seen_at: datetime | None = None,
) -> Signal | None:
    """Record a finding unless one with this `key` is open (then None). `seen_at`: when the
    fault showed itself, by the server's clock; now unless told."""
    with events.unit_of_work():
        if Signal.objects.filter(key=key, settled_at=None).exists():
            return None
        row = Signal.objects.create(
            id=new_id("sig"),
            kind=kind,
            key=key[:160],
            job_id=job_id,
            node_id=node_id,
            replica=replica,
            incarnation=incarnation,
            rank=rank,
            device_index=device_index,
            value=value,
            threshold=threshold,
            evidence=evidence or {},
            seen_at=seen_at or now(),
        )
        publish_signal(row, f"signal.{kind}", sentence)
        _count_detection(row)
    return row


def fact_of(row: Signal, *, of_fleet: bool = False) -> SignalFact:
    """As the policy sees it."""
    return SignalFact(
        id=row.id,
        kind=row.kind,
        seen_s=row.seen_at.timestamp(),
        replica=row.replica,
        incarnation=row.incarnation,
        rank=row.rank,
        node_id=row.node_id,
        device_index=row.device_index,
        value=row.value,
        threshold=row.threshold,
        evidence=row.evidence,
        incident_id=row.incident_id,
        of_fleet=of_fleet,
    )


def _count_detection(row: Signal) -> None:
    """A wall clock that was set back since the evidence says nothing about the time that it took."""
    took_s = (row.created_at - row.seen_at).total_seconds()
    if took_s >= 0.0:
        transaction.on_commit(lambda: metrics.DETECTION.observe(took_s))


def raise_exit(
    row: Rank, *, code: int | None, sentence: str, known: dict[str, Any], seen_at: datetime | None = None
) -> Signal | None:
    """The finding that a rank is gone. `code` None: nobody saw how; `known`: what else is."""
    replica = row.replica
    job_id = replica.attempt.job_id
    return raise_signal(
        "rank_exit",
        f"rank_exit:{job_id}:{replica.attempt.number}:{replica.index}:{replica.incarnation}:{row.rank}",
        sentence=sentence,
        job_id=job_id,
        node_id=row.node_id,
        replica=replica.index,
        incarnation=replica.incarnation,
        rank=row.rank,
        device_index=row.device.index,
        value=float(code if code is not None else -1),
        evidence={"node": row.node.name, "told": code is not None, **known},
        seen_at=seen_at,
    )


def amend(row: Signal, evidence: dict[str, Any], sentence: str) -> None:
    """An open finding says something else now; a `sentence` tells of it where that is news."""
    Signal.objects.filter(pk=row.pk, settled_at=None).update(evidence=evidence)
    publish_signal(row, f"signal.{row.kind}" if sentence else "signal.refreshed", sentence)


def settle(rows: list[Signal], why: str) -> None:
    """They are dealt with, or refuted."""
    for row in rows:
        if Signal.objects.filter(pk=row.pk, settled_at=None).update(settled_at=now()):
            publish_signal(row, "signal.settled", f"{row.kind}: {why}")


def settle_keys(prefix: str, why: str) -> list[Signal]:
    """Every open finding whose key begins so; returns them."""
    rows = list(Signal.objects.filter(key__startswith=prefix, settled_at=None))
    with events.unit_of_work():
        settle(rows, why)
    return rows


def open_for(job_id: str) -> list[Signal]:
    """Open findings about the job, or about a node it may use, by id."""
    mine = Q(job_id=job_id) | Q(job_id=None, node__isnull=False, node__revoked_at=None)
    return list(Signal.objects.filter(mine, settled_at=None).exclude(kind__in=FOR_PEOPLE).order_by("id"))


def settle_old() -> None:
    """Findings for people that did not come again."""
    rows = list(Signal.objects.filter(kind__in=FOR_PEOPLE, settled_at=None, seen_at__lt=ago(FOR_PEOPLE_S)))
    if rows:
        with events.unit_of_work():
            settle(rows, "not repeated for an hour")


def node_checks() -> dict[str, str]:
    """Node id to which of its own checks fail, in one line."""
    rows = Signal.objects.filter(kind=NODE_CHECK, settled_at=None).exclude(node_id=None)
    found = rows.values_list("node_id", "evidence")
    return {str(node_id): str(evidence.get("detail", "")) for node_id, evidence in found}


def publish_signal(row: Signal, kind: str, sentence: str) -> None:
    """An event with the finding's summary as this unit of work leaves it. Of a node that is not heard,
    or is heard again, the summaries of its job and of the node tell too."""
    events.publish(
        kind,
        sentence,
        job_id=row.job_id or "",
        node_id=row.node_id or "",
        entity="signal",
        entity_id=row.id,
        patch=lambda: signal_summary(Signal.objects.select_related("node").get(pk=row.pk)),
    )
    if row.kind == NODE_SILENT and row.job_id and row.node_id:
        tell_silence(row.job_id, row.node_id)


def tell_silence(job_id: str, node_id: str) -> None:
    """What is told of a silent node on its job and on itself has changed."""
    refresh_job(job_id)
    refresh_node(node_id)
