"""Findings of detectors as rows: raised once while open, settled by decisions or refuted."""

from datetime import datetime
from typing import Any

from django.db.models import Q

from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.recovery.models import Signal
from controlplane.recovery.present import signal_summary
from controlplane.runtime import events
from controlplane.runtime.clock import ago, now
from controlplane.runtime.ids import new_id

NODE_CHECK = "node_check"
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
    return row


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


def open_for(job_id: str, node_ids: list[str]) -> list[Signal]:
    """Open findings about the job, or about a node it may use, by id."""
    mine = Q(job_id=job_id) | Q(job_id=None, node_id__in=node_ids)
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
    """An event with the finding's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        job_id=row.job_id or "",
        node_id=row.node_id or "",
        entity="signal",
        entity_id=row.id,
        patch=lambda: signal_summary(Signal.objects.select_related("node").get(pk=row.pk)),
    )
