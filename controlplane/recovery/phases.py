"""Phase times of an incident, from the rows that prove them.

fault -> detected -> decided -> view_announced -> all_flushed -> view_installed ->
first_commit -> replica_started -> replica_joined -> caught_up -> full_strength, in the order in
which they happened. The fault is the last sign of progress of what failed, not the moment at
which that was noticed. A person's order has no fault: it begins with `ordered`. A job that goes
on with fewer replicas ends in `smaller_strength`. A phase that did not happen is left out; all
times are the server's. `at` is what its clock told then, for people; the order of the phases and the
seconds between them do not follow it where it was set in the course of the incident.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, QuerySet

from controlplane.jobs.models import Rank, Replica
from controlplane.policy.signals import BY_KIND
from controlplane.recovery import course
from controlplane.recovery.models import Decision, FlushRow, Incident, Signal, ViewRow
from controlplane.runtime import windows
from controlplane.runtime.clock import iso, now
from controlplane.runtime.logs import get
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared, figures_of

ORDERED_RULE = "ordered_eviction"
MEMBERSHIP = frozenset(
    {
        "announce_view", "end_attempt", "order_out", "place_attempt", "relieve", "set_replica_state", "start_replica",
        "stop_replica",
    }
)  # fmt: skip
"""Acts that change who trains."""
MAX_ROWS = 100
"""Of views and incarnations after a decision, only the first matter."""
FINDINGS_OF: Prepared[Signal] = Prepared(lambda incident: Signal.objects.filter(incident=incident), incident=TEXT)
_DECISIONS: Prepared[Decision] = Prepared(
    lambda incident: Decision.objects.filter(incident=incident, routine=False).defer("snapshot").order_by("at", "id"),
    incident=TEXT,
)


def _since(job: Any, epoch: Any) -> QuerySet[ViewRow]:
    return ViewRow.objects.filter(job_id=job, epoch__gt=epoch).order_by("epoch")


_VIEW_SINCE: Prepared[ViewRow] = Prepared(lambda job, epoch: _since(job, epoch)[:1], job=TEXT, epoch=NUMBER)
_INSTALLED_SINCE: Prepared[ViewRow] = Prepared(
    lambda job, epoch: _since(job, epoch).exclude(installed_at=None)[:1], job=TEXT, epoch=NUMBER
)
_RESUMED_SINCE: Prepared[datetime] = Prepared(
    lambda job, epoch: _since(job, epoch).exclude(resumed_at=None).values_list("resumed_at", flat=True)[:MAX_ROWS],
    job=TEXT, epoch=NUMBER,
)  # fmt: skip
_CAME_UP: Prepared[Any] = Prepared(
    lambda replica: figures_of(
        Rank.objects.filter(replica=replica),
        of=Count("pk"),
        started=Count("started_at"), started_last=Max("started_at"),
        joined=Count("joined_at"), joined_last=Max("joined_at"),
    ),
    replica=NUMBER,
)  # fmt: skip
_log = get(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    """What the clock told, and when that was by the clock as the incident left it."""

    at: datetime
    real: datetime


Moments = dict[str, Moment | None]


@dataclass(frozen=True, slots=True)
class Clock:
    """By how much it was set in the course of an incident, the newest step first, whose last moment is `until`."""

    steps: list[ClockStep]
    until: datetime

    def moment(self, at: datetime, *, before_s: float = 0.0) -> Moment:
        """So many seconds before `at`."""
        earlier = timedelta(seconds=before_s)
        return Moment(at - earlier, windows.present(at, self.steps, until=self.until) - earlier)

    def first(self, ats: Iterable[datetime | None]) -> Moment | None:
        """Whatever the clock told; None: there is none."""
        return min((self.moment(at) for at in ats if at), key=lambda moment: moment.real, default=None)

    def last(self, rows: QuerySet[Any], column: str) -> Moment | None:
        """Of these rows; None where there are none, or one has not come yet. While the clock was not set the database
        says it, of as many as there are ranks."""
        if not self.steps:
            told = rows.aggregate(of=Count("pk"), come=Count(column), at=Max(column))
            return self.first([told["at"]]) if told["come"] == told["of"] else None
        ats = list(rows.values_list(column, flat=True))
        if None in ats:
            return None
        return max(map(self.moment, ats), key=lambda moment: moment.real, default=None)


def compute_phases(incident: Incident) -> list[dict[str, Any]]:
    """[{"name", "at", "since_fault_s"}], earliest first; none lies before the first."""
    clock = Clock(course.clock_steps(incident), incident.ended_at or now())
    found = [(name, moment) for name, moment in _moments(incident, clock).items() if moment is not None]
    start = found[0][1].real
    early = [name for name, moment in found if moment.real < start]
    if early:
        _log.warning("phases before the fault are left out", incident=incident.id, phases=early)
    told = sorted((phase for phase in found if phase[1].real >= start), key=lambda phase: phase[1].real)
    return [
        {"name": name, "at": iso(moment.at), "since_fault_s": round((moment.real - start).total_seconds(), 6)}
        for name, moment in told
    ]


def recovery_s(incident: Incident) -> float | None:
    """Seconds from the fault until training was back, whole or smaller; None while it is not, and
    for what never was."""
    ends = [phase for phase in incident.phases if phase["name"] in ("full_strength", "smaller_strength")]
    return float(ends[0]["since_fault_s"]) if ends else None


def began_before_s(signal: Signal) -> float:
    """How long before the finding showed itself the fault began of which it tells: for silence and for standing
    still, since the last word or the last progress; for the rest 0."""
    kind = BY_KIND.get(signal.kind)
    told = {**signal.evidence, "threshold": signal.threshold}
    return float(told.get(kind.BEGAN, 0.0)) if kind is not None else 0.0


def _moments(incident: Incident, clock: Clock) -> Moments:
    signals, decisions = FINDINGS_OF(incident=incident.pk), _DECISIONS(incident=incident.pk)
    decided = min(decisions, key=lambda row: clock.moment(row.at).real, default=None)
    moments: Moments
    if decided is not None and decided.rule == ORDERED_RULE:
        moments = {"ordered": clock.moment(incident.opened_at)}
    else:
        moments = {
            "fault": min(_began(incident, signals, decided, clock), key=lambda moment: moment.real),
            "detected": clock.first(signal.created_at for signal in signals),
        }
    moments["decided"] = clock.moment(decided.at) if decided else None
    if decided is not None and incident.job_id and _moves_members(decisions):
        moments |= _view_moments(incident, decided, clock)
        moments |= _replica_moments(incident, decided, clock)
    if incident.recovered_at is not None:
        back = "full_strength" if incident.full_strength else "smaller_strength"
        moments[back] = clock.moment(incident.recovered_at)
    return moments


def _moves_members(decisions: Iterable[Decision]) -> bool:
    """Views and incarnations that follow are of this incident. Where nothing was done but to save, to keep work from
    a node or to ask, they are of another one, however soon or late that comes."""
    return any(action["action"] in MEMBERSHIP for decision in decisions for action in decision.actions)


def _began(incident: Incident, signals: list[Signal], decided: Decision | None, clock: Clock) -> list[Moment]:
    """When the fault may have begun: by each finding, and by the decision that saw it in the ranks'
    own words; at the latest when the incident was opened."""
    began = [clock.moment(signal.seen_at, before_s=began_before_s(signal)) for signal in signals]
    if decided is not None and "stood_s" in decided.evidence:
        began.append(clock.moment(decided.at, before_s=float(decided.evidence["stood_s"])))
    return began or [clock.moment(incident.opened_at)]


def _view_moments(incident: Incident, decided: Decision, clock: Clock) -> Moments:
    """The first view that the decision led to and that was installed (else the first). The step
    that training went on with may be of the next one, when a joiner was quicker than the step."""
    since = {"job": incident.job_id, "epoch": decided.epoch_before}
    view = _INSTALLED_SINCE.first(**since) or _VIEW_SINCE.first(**since)
    if view is None:
        return {}
    flushed = FlushRow.objects.filter(view=view) if view.install else FlushRow.objects.none()
    return {
        "view_announced": clock.moment(view.announced_at),
        "all_flushed": clock.last(flushed, "at"),
        "view_installed": clock.first([view.installed_at]),
        "first_commit": clock.first(_RESUMED_SINCE(**since)),
    }


def _replica_moments(incident: Incident, decided: Decision, clock: Clock) -> Moments:
    """The first incarnation that was started after the decision in a slot that it ended."""
    rows = Replica.objects.filter(attempt__job_id=incident.job_id).order_by("pk")
    ended = {action["replica"] for action in decided.actions if action["action"] == "stop_replica"}
    rows = rows.filter(index__in=ended) if ended else rows
    if clock.steps:
        # From the newest on: a time does not say whether it lies after another one.
        after = clock.moment(decided.at).real
        late = [row for row in rows.reverse()[:MAX_ROWS] if clock.moment(row.created_at).real >= after]
        replica = late[-1] if late else None
    else:
        replica = rows.filter(created_at__gte=decided.at).order_by("created_at").first()
    if replica is None:
        return {}
    started, joined = _came_up(replica, clock)
    return {"replica_started": started, "replica_joined": joined, "caught_up": clock.first([_caught_up_at(replica)])}


def _came_up(replica: Replica, clock: Clock) -> tuple[Moment | None, Moment | None]:
    """When the last of its ranks was started, and when the last joined."""
    if clock.steps:
        rows = Rank.objects.filter(replica=replica)
        return clock.last(rows, "started_at"), clock.last(rows, "joined_at")
    of, started, started_at, joined, joined_at = _CAME_UP.first(replica=replica.pk) or (0, 0, None, 0, None)
    return (clock.first([started_at]) if started == of else None), (clock.first([joined_at]) if joined == of else None)


def _caught_up_at(replica: Replica) -> datetime | None:
    told = (replica.caught_up or {}).get("at")
    return datetime.fromisoformat(told) if told else None
