"""Liveness of our own processes, and who leads.

A beat is a row, so it says that the process and the database both work. Leadership is
a row with a term: a leader that loses it finds out by its term, before it writes.
"""

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet

from controlplane.runtime.clock import age_s, ago, now
from controlplane.runtime.models import ProcessBeat

LEASE_S = 5.0
STALE_S = 10.0
WEB_STALE_S = 15.0
FORGET_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatView:
    """`beat_age_s` None: no such process was ever seen."""

    ok: bool
    detail: str
    beat_age_s: float | None


def process_name(role: str) -> str:
    """Unique on this machine while the process lives."""
    return f"{role}:{socket.gethostname()[:30]}:{os.getpid()}"


def beat(role: str, name: str, detail: dict[str, Any] | None = None) -> None:
    """Say that this process is alive."""
    moment = now()
    fields = {"role": role, "pid": os.getpid(), "beat_at": moment, "detail": detail or {}}
    ProcessBeat.objects.update_or_create(name=name, defaults=fields, create_defaults={**fields, "started_at": moment})


def newest(role: str) -> ProcessBeat | None:
    """The most recent beat of that role."""
    return ProcessBeat.objects.filter(role=role).order_by("-beat_at").first()


def view(role: str) -> BeatView:
    """Health of a role for people."""
    row = newest(role)
    if row is None:
        return BeatView(ok=False, detail="never started", beat_age_s=None)
    age = age_s(row.beat_at) or 0.0
    ok = age <= STALE_S
    return BeatView(ok=ok, detail=row.name if ok else f"{row.name} is silent", beat_age_s=age)


def live(role: str) -> QuerySet[ProcessBeat]:
    """Processes of that role whose beat is fresh, the newest first."""
    return ProcessBeat.objects.filter(role=role, beat_at__gte=ago(STALE_S)).order_by("-beat_at")


def live_web(within_s: float = WEB_STALE_S) -> set[str]:
    """Names of the web processes that live, as the ids of their sessions begin."""
    fresh = ProcessBeat.objects.filter(role="web", beat_at__gte=ago(within_s)).values_list("name", flat=True)
    return {name.removeprefix("web:") for name in fresh}


def forget_old() -> int:
    """Delete beats of processes long gone; returns how many."""
    return ProcessBeat.objects.filter(beat_at__lt=ago(FORGET_S)).exclude(role="lease").delete()[0]


def take_lead(role: str, owner: str) -> int | None:
    """Take or keep the lease of `role`. Returns its term, None while another leads.
    A new owner raises the term, so the old one's writes can be told apart."""
    name, moment = f"lease:{role}", now()
    with transaction.atomic():
        row, made = ProcessBeat.objects.select_for_update().get_or_create(
            name=name,
            defaults={
                "role": "lease",
                "pid": os.getpid(),
                "started_at": moment,
                "beat_at": moment,
                "term": 1,
                "detail": {"owner": owner},
            },
        )
        if made:
            return row.term
        mine = row.detail.get("owner") == owner
        if not mine and (age_s(row.beat_at) or 0.0) <= LEASE_S:
            return None
        changes: dict[str, Any] = {"beat_at": moment, "pid": os.getpid(), "detail": {"owner": owner}}
        if not mine:
            changes |= {"term": F("term") + 1, "started_at": moment}
        ProcessBeat.objects.filter(name=name).update(**changes)
        row.refresh_from_db()
        return row.term


def release_lead(role: str, owner: str) -> None:
    """Give the lease back at once, for a clean shutdown."""
    row = ProcessBeat.objects.filter(name=f"lease:{role}").first()
    if row is not None and row.detail.get("owner") == owner:
        ProcessBeat.objects.filter(name=row.name, term=row.term).update(beat_at=ago(LEASE_S * 2), detail={"owner": ""})


def lead_since(role: str) -> datetime | None:
    """Since when the present leader leads."""
    row = ProcessBeat.objects.filter(name=f"lease:{role}").first()
    return None if row is None else row.started_at
