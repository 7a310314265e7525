"""Liveness of our own processes, and who leads.

A beat is a row, so it says that the process and the database both work. Leadership is
a row with a term: a leader that loses it finds out by its term, before it writes.
"""

import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, close_old_connections
from django.db.models import Max, QuerySet

from controlplane.changes.due.sessions import WEB_STALE_S
from controlplane.runtime import windows
from controlplane.runtime.clock import after, age_s, ago, now, now_s
from controlplane.runtime.logs import get
from controlplane.runtime.models import ProcessBeat

STALE_S = 10.0
FORGET_S = 3600.0
# Several workers share the canaries: each finishes one only now and then.
EXPORTER_STALE_S = 60.0
SENTINEL = "sentinel"
"""The role of the one process of which one leads."""
EXPORTERS = (SENTINEL, "worker", "beat", "store")
"""Roles that serve their figures on a port of their own (`runtime.exporter`, `trainer.store.exporter`)."""
_log = get(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatView:
    """`beat_age_s` None: no such process was ever seen, or its beat is dated ahead."""

    ok: bool
    detail: str
    beat_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootClock:
    """The clock (Unix seconds) beside the seconds since that boot of a machine."""

    boot: str
    up_s: float
    wall_s: float


def process_name(role: str) -> str:
    """Unique on this machine while the process lives."""
    return machine_name(role, str(os.getpid()))


def machine_name(role: str, mark: str) -> str:
    """Of a process that is known by something else than its number."""
    return f"{role}:{socket.gethostname()[:30]}:{mark}"


def beat(role: str, name: str, detail: dict[str, Any] | None = None) -> None:
    """Say that this process is alive, and what its machine's clock tells beside its uptime."""
    moment = now()
    fields = {"role": role, "pid": os.getpid(), "beat_at": moment, "detail": {**(detail or {}), "clock": _clock()}}
    ProcessBeat.objects.update_or_create(name=name, defaults=fields, create_defaults={**fields, "started_at": moment})


def keep_beating(role: str, detail: dict[str, Any], every_s: float = STALE_S / 3) -> None:
    """For ever, in a thread of its own: the row of a process that otherwise writes none."""
    name = process_name(role)
    while True:
        try:
            beat(role, name, detail)
        except DatabaseError as error:
            _log.warning("the database is away", error=str(error))
        finally:
            close_old_connections()
        time.sleep(every_s)


def newest(role: str) -> ProcessBeat | None:
    """The most recent beat of that role. One far in the future was written before the clock was set
    back: how old it is, is not known, and its process has beaten anew since if it lives."""
    return ProcessBeat.objects.filter(role=role, beat_at__lte=_fresh(STALE_S)[1]).order_by("-beat_at").first()


def view(role: str) -> BeatView:
    """Health of a role for people."""
    row = newest(role)
    if row is None:
        ahead = ProcessBeat.objects.filter(role=role).exists()
        detail = "its last beat is ahead of the clock, which was set back" if ahead else "never started"
        return BeatView(ok=False, detail=detail, beat_age_s=None)
    age = age_s(row.beat_at) or 0.0
    ok = age <= STALE_S
    return BeatView(ok=ok, detail=row.name if ok else f"{row.name} is silent", beat_age_s=age)


def live(role: str) -> QuerySet[ProcessBeat]:
    """Processes of that role whose beat is fresh, the newest first."""
    return ProcessBeat.objects.filter(role=role, beat_at__range=_fresh(STALE_S)).order_by("-beat_at")


def live_web(within_s: float = WEB_STALE_S) -> set[str]:
    """Names of the web processes that live, as the ids of their sessions begin."""
    fresh = ProcessBeat.objects.filter(role="web", beat_at__range=_fresh(within_s)).values_list("name", flat=True)
    return {name.removeprefix("web:") for name in fresh}


def sessions_per_s(otherwise: float) -> float:
    """How many agents' sessions the web processes that live open in a second, as they measure it."""
    details = live("web").values_list("detail", flat=True)
    return sum(float(detail.get("sessions_per_s", otherwise)) for detail in details) or otherwise


def _fresh(within_s: float) -> tuple[datetime, datetime]:
    """The oldest and the newest beat of a process that lives. The clock of its machine may be ahead by as
    much as it may be silent; what is further ahead was written before the clock was set back."""
    return ago(within_s), after(within_s)


def forget_old() -> int:
    """Delete beats of processes long gone, but for the newest of each role, which says since when it has none;
    returns how many."""
    roles = ProcessBeat.objects.order_by().values_list("role").annotate(at=Max("beat_at"))
    kept = [name for role, at in roles for name in _names(role=role, beat_at=at)]
    return (
        ProcessBeat.objects.filter(beat_at__lt=ago(FORGET_S)).exclude(role="lease").exclude(name__in=kept).delete()[0]
    )


def _names(**of: Any) -> list[str]:
    return list(ProcessBeat.objects.filter(**of).values_list("name", flat=True)[:1])


def lease_name(shard: int = 0, role: str = SENTINEL) -> str:
    """Of the row that says who leads. The first shard's is the one of what is done once for the whole fleet."""
    return f"lease:{role}.{shard}" if shard else f"lease:{role}"


def lease_of(owner: str, **more: Any) -> dict[str, Any]:
    """What a lease's row says."""
    return {"owner": owner, **more, **_clock()}


def _clock() -> dict[str, Any]:
    boot, up_s = windows.uptime()
    return {"boot": boot, "up_s": up_s, "wall_s": now_s()}


def led_since(role: str = SENTINEL) -> datetime | None:
    """Since when the process leads that leads now; None: none ever has."""
    return ProcessBeat.objects.filter(name=f"lease:{role}").values_list("started_at", flat=True).first()


def lease_clock(role: str) -> BootClock | None:
    """What the clocks told when the lease was last kept; None: that is not known."""
    row = ProcessBeat.objects.filter(name=f"lease:{role}").first()
    return None if row is None else _told_by(row.detail)


def boot_clock(boot: str) -> BootClock | None:
    """What the clocks of the machine with that boot tell: of this one now, of another one as a process of ours that
    lives there said last. None: it has started anew, or nobody says."""
    here, up_s = windows.uptime()
    if here == boot:
        return BootClock(boot=boot, up_s=up_s, wall_s=now_s())
    rows = ProcessBeat.objects.filter(beat_at__range=_fresh(STALE_S)).exclude(role="lease")
    told = (_told_by(row.detail.get("clock") or {}) for row in rows)
    return max((each for each in told if each and each.boot == boot), key=lambda each: each.up_s, default=None)


def _told_by(detail: dict[str, Any]) -> BootClock | None:
    if not detail.get("boot"):
        return None
    return BootClock(boot=detail["boot"], up_s=float(detail["up_s"]), wall_s=float(detail["wall_s"]))


def ahead_s(role: str) -> float:
    """Seconds by which the newest beat of the lease lies in the future; 0.0: it does not."""
    row = ProcessBeat.objects.filter(name=f"lease:{role}").first()
    return 0.0 if row is None else max(0.0, (row.beat_at - now()).total_seconds())


def metrics_addresses() -> dict[str, list[str]]:
    """Where each process that was lately alive serves its figures, by role; a web process does on its own port."""
    rows = ProcessBeat.objects.filter(beat_at__range=_fresh(EXPORTER_STALE_S), role__in=EXPORTERS).order_by(
        "role", "name"
    )
    found: dict[str, list[str]] = {role: [] for role in EXPORTERS}
    for row in rows:
        if row.detail.get("metrics"):
            found[row.role].append(str(row.detail["metrics"]))
    return found
