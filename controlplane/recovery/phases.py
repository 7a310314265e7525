"""Phase times of an incident, from the rows that prove them.

fault -> detected -> decided -> view_announced -> all_flushed -> view_installed ->
first_commit -> replica_started -> replica_joined -> caught_up -> full_strength, in the order in
which they happened. The fault is the last sign of progress of what failed, not the moment at
which that was noticed. A person's order has no fault: it begins with `ordered`. A job that goes
on with fewer replicas ends in `smaller_strength`. A phase that did not happen is left out; all
times are the server's.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min

from controlplane.jobs.models import Replica
from controlplane.policy.signals import BY_KIND
from controlplane.recovery.models import Decision, FlushRow, Incident, Signal, ViewRow
from controlplane.runtime.clock import iso
from controlplane.runtime.logs import get

Moments = dict[str, datetime | None]
ORDERED_RULE = "ordered_eviction"
_log = get(__name__)


def compute_phases(incident: Incident) -> list[dict[str, Any]]:
    """[{"name", "at", "since_fault_s"}], earliest first; none lies before the first."""
    found = [(name, at) for name, at in _moments(incident).items() if at is not None]
    start = found[0][1]
    early = [name for name, at in found if at < start]
    if early:
        _log.warning("phases before the fault are left out", incident=incident.id, phases=early)
    told = sorted(((name, at) for name, at in found if at >= start), key=lambda phase: phase[1])
    return [{"name": name, "at": iso(at), "since_fault_s": round((at - start).total_seconds(), 6)} for name, at in told]


def recovery_s(incident: Incident) -> float | None:
    """Seconds from the fault until training was back, whole or smaller; None while it is not, and
    for what never was."""
    ends = [phase for phase in incident.phases if phase["name"] in ("full_strength", "smaller_strength")]
    return float(ends[0]["since_fault_s"]) if ends else None


def began_at(signal: Signal) -> datetime:
    """When the fault began of which the finding tells: for silence and for standing still, that
    is the last word or the last progress; for the rest, when it showed itself."""
    kind = BY_KIND.get(signal.kind)
    told = {**signal.evidence, "threshold": signal.threshold}
    before_s = float(told.get(kind.BEGAN, 0.0)) if kind is not None else 0.0
    return signal.seen_at - timedelta(seconds=before_s)


def _moments(incident: Incident) -> Moments:
    signals = list(Signal.objects.filter(incident=incident))
    decided = Decision.objects.filter(incident=incident, routine=False).order_by("at", "id").first()
    moments: Moments
    if decided is not None and decided.rule == ORDERED_RULE:
        moments = {"ordered": incident.opened_at}
    else:
        moments = {
            "fault": min(_began(incident, signals, decided)),
            "detected": min((signal.created_at for signal in signals), default=None),
        }
    moments["decided"] = decided.at if decided else None
    if decided is not None and incident.job_id:
        moments |= _view_moments(incident, decided)
        moments |= _replica_moments(incident, decided)
    if incident.recovered_at is not None:
        moments["full_strength" if incident.full_strength else "smaller_strength"] = incident.recovered_at
    return moments


def _began(incident: Incident, signals: list[Signal], decided: Decision | None) -> list[datetime]:
    """When the fault may have begun: by each finding, and by the decision that saw it in the ranks'
    own words; at the latest when the incident was opened."""
    began = list(map(began_at, signals))
    if decided is not None and "stood_s" in decided.evidence:
        began.append(decided.at - timedelta(seconds=float(decided.evidence["stood_s"])))
    return began or [incident.opened_at]


def _view_moments(incident: Incident, decided: Decision) -> Moments:
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


def _replica_moments(incident: Incident, decided: Decision) -> Moments:
    """The first incarnation that was started after the decision in a slot that it ended."""
    rows = Replica.objects.filter(attempt__job_id=incident.job_id, created_at__gte=decided.at).order_by("created_at")
    ended = {action["replica"] for action in decided.actions if action["action"] == "stop_replica"}
    replica = (rows.filter(index__in=ended) if ended else rows).first()
    if replica is None:
        return {}
    times = replica.ranks.aggregate(
        of=Count("pk"), started=Count("started_at"), joined=Count("joined_at"),
        last_started=Max("started_at"), last_joined=Max("joined_at"),
    )  # fmt: skip
    return {
        "replica_started": times["last_started"] if times["started"] == times["of"] else None,
        "replica_joined": times["last_joined"] if times["joined"] == times["of"] else None,
        "caught_up": _caught_up_at(replica),
    }


def _caught_up_at(replica: Replica) -> datetime | None:
    told = (replica.caught_up or {}).get("at")
    return datetime.fromisoformat(told) if told else None
