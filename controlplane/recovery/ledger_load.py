"""The ledger's facts of a window, from its rows: a dozen queries, whatever the window. Writes nothing."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db.models import Max, Q, QuerySet

from controlplane.fleet.models import Reservation
from controlplane.jobs.models import Job
from controlplane.jobs.numbers import ENDED, began_s
from controlplane.jobs.several import JobRate, rates
from controlplane.policy.ledger.facts import Cause, Facts, Hold, JobFacts, Reserved, Run, Standing, Turn
from controlplane.protocol.ledger import CauseKind
from controlplane.protocol.states import LIVE_INCIDENT, JobState, RequestKind, RequestState
from controlplane.recovery.ledger_causes import of_request
from controlplane.recovery.ledger_models import LedgerHold, LedgerRun, LedgerStanding, LedgerTurn
from controlplane.recovery.models import Incident, Request
from controlplane.runtime import windows
from controlplane.runtime.clock import from_s
from controlplane.runtime.pieces import batched

A_QUERY = 500
AWAY = (JobState.PREEMPTED, JobState.RESUMING)
_RUN = (
    "job_id", "from_s", "until_s", "kind", "since", "done", "lost", "saved_s", "cause_kind", "cause_id",
    "lost_cause_kind", "lost_cause_id", "preempted", "restated_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose time: of one job, of a project's jobs, of one node ("": all)."""

    job: str = ""
    project: str = ""
    node: str = ""

    def of_jobs(self) -> Q:
        """The jobs themselves."""
        found = Q(pk=self.job) if self.job else Q()
        return found & Q(project=self.project) if self.project else found

    def about(self, column: str = "job") -> Q:
        """Rows that name one of these jobs."""
        found = Q(**{column: self.job}) if self.job else Q()
        return found & Q(**{f"{column}__project": self.project}) if self.project else found

    @property
    def whole(self) -> bool:
        """Also devices that nobody holds."""
        return not self.job and not self.project


def load(scope: Scope, since_s: float, until_s: float, *, judged_s: float) -> Facts:
    """All that touches the window. Of a node's jobs all that they held is there: what is productive is of a whole
    job."""
    there = _during(LedgerHold.objects.filter(scope.about()), since_s, until_s)
    if scope.node:
        here = set(there.filter(node=scope.node).values_list("job_id", flat=True))
        there = there.filter(job__in=here)
    else:
        here = set(there.order_by().values_list("job_id", flat=True).distinct())
    waiting = set() if scope.node else set(_waiting(scope, since_s, until_s))
    runs = _runs(here, since_s, until_s)
    first_s = min((run.from_s for run in runs), default=since_s)
    last_s = max((run.until_s for run in runs), default=until_s)
    holds = _holds(here, min(since_s, first_s), max(until_s, last_s))
    return Facts(
        judged_s=judged_s,
        jobs=tuple(_jobs(here | waiting)),
        runs=tuple(runs),
        holds=tuple(holds),
        turns=_turns({hold.replica for hold in holds}),
        standings=tuple(_standings(scope, holds, since_s, until_s)),
        reserved=tuple(_reserved(scope, since_s, until_s)),
    )


def _during(rows: QuerySet[Any], since_s: float, until_s: float) -> QuerySet[Any]:
    return rows.filter(Q(until_s=None) | Q(until_s__gt=since_s), from_s__lt=until_s)


def _waiting(scope: Scope, since_s: float, until_s: float) -> Iterable[str]:
    """Jobs that were there in the window, also without a device."""
    going_on = Q(finished_at=None) | Q(finished_at__gte=from_s(since_s))
    return Job.objects.filter(scope.of_jobs(), going_on, created_at__lt=from_s(until_s)).values_list("pk", flat=True)


def _runs(jobs: Collection[str], since_s: float, until_s: float) -> list[Run]:
    """Those of the window, and of each job the last before it: with it begins what has no commit yet."""
    found: list[Run] = []
    for some in batched(sorted(jobs), A_QUERY):
        rows = LedgerRun.objects.filter(job__in=some)
        newest = rows.filter(until_s__lte=since_s).order_by().values("job").annotate(at_s=Max("until_s"))
        last = Q()
        for each in newest:
            last |= Q(job=each["job"], until_s=each["at_s"])
        wanted = Q(until_s__gt=since_s, from_s__lt=until_s)
        found += [_run(*row) for row in rows.filter(wanted | last if newest else wanted).values_list(*_RUN)]
    return found


def _run(
    job: str, at_s: float, until_s: float, kind: str, since: int, done: int, lost: int, saved_s: float, *rest: Any
) -> Run:
    cause_kind, cause_id, lost_kind, lost_id, preempted, restated_at = rest
    return Run(
        job=job, from_s=at_s, until_s=until_s, kind=kind, steps=done - since - lost, lost_steps=lost,
        saved_s=saved_s, cause=_cause(cause_kind, cause_id), lost_cause=_cause(lost_kind, lost_id),
        preempted=preempted, restated=restated_at is not None,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _cause(kind: str, name: str) -> Cause:
    """One object for all runs that it is the cause of."""
    return Cause(kind, name)


def _holds(jobs: Collection[str], since_s: float, until_s: float) -> list[Hold]:
    found: list[Hold] = []
    names = ("job_id", "node_id", "replica_id", "from_s", "until_s", "devices")
    for some in batched(sorted(jobs), A_QUERY):
        rows = _during(LedgerHold.objects.filter(job__in=some), since_s, until_s)
        found += [
            Hold(job=job, node=node, replica=replica, from_s=at_s, until_s=end_s, devices=devices)
            for job, node, replica, at_s, end_s, devices in rows.values_list(*names)
        ]
    return found


def _turns(replicas: Collection[int]) -> dict[int, tuple[Turn, ...]]:
    found = defaultdict[int, list[Turn]](list)
    for some in batched(sorted(replicas), A_QUERY):
        rows = LedgerTurn.objects.filter(replica__in=some).order_by("pk")
        for replica, at_s, role in rows.values_list("replica_id", "from_s", "role"):
            found[replica].append(Turn(at_s, role))
    return {replica: tuple(turns) for replica, turns in found.items()}


def _standings(scope: Scope, holds: Iterable[Hold], since_s: float, until_s: float) -> Iterable[Standing]:
    """Also of a job's nodes: a replica that left holds nothing of a node that is down."""
    nodes = None if scope.whole and not scope.node else {scope.node} if scope.node else {hold.node for hold in holds}
    names = ("node_id", "from_s", "until_s", "devices", "down", "cordoned", "spare", "unseen", "cause_kind", "cause_id")
    rows = _during(LedgerStanding.objects.all(), since_s, until_s)
    for node, at_s, end_s, devices, down, cordoned, spare, unseen, *cause in rows.values_list(*names):
        if nodes is not None and node not in nodes:
            continue
        yield Standing(
            node=node, from_s=at_s, until_s=end_s, devices=devices, down=down, cordoned=cordoned, spare=spare,
            unseen=unseen, cause=_cause(*cause),
        )  # fmt: skip


def _reserved(scope: Scope, since_s: float, until_s: float) -> Iterable[Reserved]:
    """Of each node that was reserved, from when that was set until it was over."""
    if not scope.whole:
        return
    rows = Reservation.nodes.through.objects.filter(reservation__starts_at__lt=from_s(until_s))
    rows = rows.filter(reservation__ends_at__gt=from_s(since_s), **({"node": scope.node} if scope.node else {}))
    times = ("starts_at", "ends_at", "said_at", "over_at")
    names = ("node_id", "reservation_id", *(f"reservation__{name}" for name in times))
    steps: list[Any] | None = None
    for node, pk, starts_at, ends_at, said_at, over_at in rows.values_list(*names):
        steps = windows.known() if steps is None else steps
        first_s = max(starts_at.timestamp(), windows.present(said_at, steps).timestamp())
        over_s = math.inf if over_at is None else windows.present(over_at, steps).timestamp()
        yield Reserved(node, first_s, max(first_s, min(ends_at.timestamp(), over_s)), pk)


def _jobs(ids: Collection[str]) -> Iterable[JobFacts]:
    steps = windows.known()
    for some in batched(sorted(ids), A_QUERY):
        incidents = Incident.objects.filter(job__in=some, state__in=LIVE_INCIDENT).order_by("-opened_at")
        blamed = dict(incidents.values_list("job_id", "pk"))
        asked = Request.objects.filter(job__in=some, kind=RequestKind.PREEMPT, gives=[]).exclude(taken_at=None)
        newest = {row.job_id: row for row in asked.order_by("taken_at")}
        for rate in rates(Job.objects.filter(pk__in=some)):
            yield _job(rate, blamed.get(rate.job.id), newest.get(rate.job.id), steps)


def _job(rate: JobRate, incident: str | None, asked: Request | None, steps: list[Any]) -> JobFacts:
    job = rate.job
    yields = asked is not None and (job.state in AWAY or asked.state == RequestState.TAKEN)
    tail = of_request(asked) if yields and asked is not None else Cause(CauseKind.INCIDENT, incident or "")
    finished = None if job.finished_at is None else windows.present(job.finished_at, steps).timestamp()
    return JobFacts(
        id=job.id,
        project=job.project,
        gpus=rate.gpus,
        step_s=None if rate.undisturbed is None else rate.undisturbed.step_s,
        created_s=windows.present(job.created_at, steps).timestamp(),
        began_s=None if rate.first is None else began_s(rate.first, rate.spent),
        finished_s=finished,
        training=job.state in (JobState.RUNNING, *ENDED),
        tail=tail if tail.id else Cause(),
        yields=yields,
    )
