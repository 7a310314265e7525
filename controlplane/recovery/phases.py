"""Phase times of an incident, from the rows that prove them.

fault -> detected -> decided -> view_announced -> all_flushed -> view_installed ->
first_commit -> replica_started -> replica_joined -> caught_up -> full_strength. A phase
that did not happen is left out; all times are the server's.
"""

from datetime import datetime
from typing import Any

from django.db.models import Min

from controlplane.jobs.models import Replica
from controlplane.jobs.numbers import ENDED
from controlplane.recovery.models import Decision, FlushRow, Incident, Signal, ViewRow
from controlplane.runtime.clock import iso


def compute_phases(incident: Incident) -> list[dict[str, Any]]:
    """[{"name", "at", "since_fault_s"}] in order of the protocol."""
    found = _moments(incident)
    fault = found.get("fault") or incident.opened_at
    return [
        {"name": name, "at": iso(at), "since_fault_s": round((at - fault).total_seconds(), 6)}
        for name, at in found.items()
        if at is not None
    ]


def _moments(incident: Incident) -> dict[str, datetime | None]:
    signal = Signal.objects.filter(incident=incident).order_by("seen_at").first()
    decided = Decision.objects.filter(incident=incident, routine=False).order_by("at", "id").first()
    moments: dict[str, datetime | None] = {
        "fault": signal.seen_at if signal else incident.opened_at,
        "detected": signal.created_at if signal else incident.opened_at,
        "decided": decided.at if decided else None,
    }
    if decided is not None and incident.job_id:
        moments |= _view_moments(incident, decided)
        moments |= _replica_moments(incident, decided)
    if incident.resolved_at and incident.job and incident.job.state not in ENDED:
        moments["full_strength"] = incident.resolved_at
    return moments


def _view_moments(incident: Incident, decided: Decision) -> dict[str, datetime | None]:
    """The first view that the decision led to and that was installed (else the first). The step
    that training went on with may be of the next one, when a joiner was quicker than the step."""
    views = ViewRow.objects.filter(job_id=incident.job_id, epoch__gt=decided.epoch_before).order_by("epoch")
    view = views.exclude(installed_at=None).first() or views.first()
    if view is None:
        return {}
    flushed = FlushRow.objects.filter(view=view).order_by("-at").first() if view.install else None
    return {
        "view_announced": view.announced_at,
        "all_flushed": flushed.at if flushed else None,
        "view_installed": view.installed_at,
        "first_commit": views.aggregate(at=Min("resumed_at"))["at"],
    }


def _replica_moments(incident: Incident, decided: Decision) -> dict[str, datetime | None]:
    """The first incarnation that was started after the decision."""
    rows = Replica.objects.filter(attempt__job_id=incident.job_id, created_at__gte=decided.at).order_by("created_at")
    replica = rows.first()
    if replica is None:
        return {}
    ranks = list(replica.ranks.all())
    started = [rank.started_at for rank in ranks if rank.started_at]
    joined = [rank.joined_at for rank in ranks if rank.joined_at]
    return {
        "replica_started": max(started) if started and len(started) == len(ranks) else None,
        "replica_joined": max(joined) if joined and len(joined) == len(ranks) else None,
        "caught_up": _caught_up_at(replica),
    }


def _caught_up_at(replica: Replica) -> datetime | None:
    told = (replica.caught_up or {}).get("at")
    return datetime.fromisoformat(told) if told else None
