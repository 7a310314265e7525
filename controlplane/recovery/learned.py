"""What this job's own rows have measured: times and saves."""

from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, F, Max, OuterRef, Q, QuerySet, Subquery

from controlplane.changes.assembly.measured import RECENT, SAVE_LIMIT_S, Saves, Times
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank, Replica, StepRecord
from controlplane.jobs.numbers import COMMITTED_CHECKPOINTS, LOCAL_KIND, calm_steps, spec_of
from controlplane.policy.timeouts import (
    WARM_UP_STEPS,
    Observed,
    SectionTimeout,
    Seen,
    section_timeouts,
    setup_grows,
    timeout_of,
)
from controlplane.protocol.states import CheckpointState, CommandState, ReplicaState, Section
from controlplane.recovery.models import ViewRow
from controlplane.runtime import windows
from controlplane.runtime.clock import ago
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import MOMENT, TEXT, Prepared, figures_of

RECENT_STEPS = 1000
"""Of a job's millions: what a step takes is read under its lock."""
RECENT_REPLICAS = 1000
"""As many replicas are looked at for how long starts took."""


def _joined() -> QuerySet[Rank]:
    return Rank.objects.filter(replica=OuterRef("pk"), joined_at__isnull=False)


def _caught_up(job: Any) -> QuerySet[Replica, Any]:
    rows = Replica.objects.filter(Exists(_joined()), attempt__job=job).exclude(caught_up=None)
    return rows.values_list("caught_up", flat=True)


def _saved(job: Any) -> QuerySet[Checkpoint, Any]:
    rows = Checkpoint.objects.filter(job=job, state__in=COMMITTED_CHECKPOINTS, total_s__gt=0).exclude(kind=LOCAL_KIND)
    return rows.order_by("-step", "-epoch").values_list("total_s", flat=True)[:RECENT]


_CAUGHT_UP, _SAVED = Prepared(_caught_up, job=TEXT), Prepared(_saved, job=TEXT)


def times_of(job: Job, steps: list[ClockStep] | None = None) -> Times:
    """For `changes.assembly.measured`. `steps`: of `windows.known`."""
    # 0: it was concluded from its steps, and how long it took is not known.
    caught = [row["fetch_s"] for row in _CAUGHT_UP(job=job.id) if row and row["fetch_s"] > 0.0]
    return Times(
        steps=calm_steps(job),
        starts=_starts(job, windows.known() if steps is None else steps),
        transfers=caught,
        saves=_SAVED(job=job.id),
        setup_limit_s=_setup_limit_s(job),
    )


def _started(job: Any, joined: QuerySet[Rank]) -> QuerySet[Replica, Any]:
    last = Subquery(joined.order_by("-joined_at").values("joined_at")[:1])
    replicas = Replica.objects.filter(attempt__job=job).annotate(last=last).exclude(last=None)
    return replicas.order_by("-created_at", "-pk").values_list("created_at", "last")[:RECENT_REPLICAS]


_STARTED = Prepared(lambda job: _started(job, _joined()), job=TEXT)


def _starts(job: Job, steps: list[ClockStep]) -> list[float]:
    """Seconds from a decision until the last rank that it started was in the group, of the newest decisions."""
    if steps:
        whole = windows.whole(_joined(), windows.RANKS, "replica__created_at", "joined_at", steps)
        found = list(_started(job, whole))
    else:
        found = _STARTED(job=job.id)
    moments: dict[datetime, datetime] = {}
    for began, ended in found:
        if began not in moments and len(moments) == RECENT:
            break
        moments[began] = max(ended, moments.get(began, ended))
    return [(ended - began).total_seconds() for began, ended in moments.items()]


def _forming(job: Any) -> QuerySet[Replica, Any]:
    return Replica.objects.filter(attempt__job=job, state=ReplicaState.FORMING).values_list("pk", flat=True)[:1]


_FORMING = Prepared(_forming, job=TEXT)


def _setup_limit_s(job: Job) -> float | None:
    """Asked only while a replica is being set up."""
    wanted = spec_of(job).spec.resiliency.timeouts
    if not setup_grows(wanted) or not _FORMING(job=job.id):
        return None
    return timeout_of(
        section_timeouts(wanted, Observed(setups=_setups(job), transfer_s=_transfer_s(job))), Section.SETUP
    )


def _newest_saves(job: Any, since: Any) -> QuerySet[Any, tuple[Any, ...]]:
    # The local tier saves all the time and outlives less: it puts off no emergency save.
    return figures_of(
        Checkpoint.objects.filter(job=job).exclude(kind=LOCAL_KIND),
        started=Max("started_at"),
        committed=Max("committed_at", filter=Q(state__in=COMMITTED_CHECKPOINTS)),
        writing=Count("pk", filter=Q(state=CheckpointState.WRITING, started_at__gte=since)),
    )


def _emergency(job: Any) -> QuerySet[Any, tuple[Any, ...]]:
    asked = Command.objects.filter(job=job, kind="request_save", body__save_kind="emergency")
    return figures_of(asked, at=Max("created_at"))


_NEWEST_SAVES, _EMERGENCY = Prepared(_newest_saves, job=TEXT, since=MOMENT), Prepared(_emergency, job=TEXT)


def saves_of(job: Job) -> Saves:
    """The newest of each kind."""
    started, committed, writing = _NEWEST_SAVES(job=job.id, since=ago(SAVE_LIMIT_S))[0]
    asked = _EMERGENCY(job=job.id)[0][0]
    return Saves(
        started_s=started.timestamp() if started else None,
        committed_s=committed.timestamp() if committed else None,
        emergency_s=asked.timestamp() if asked else None,
        writing=writing > 0,
    )


def timeouts_of(job: Job, *, loads: str | None = None) -> tuple[SectionTimeout, ...]:
    """The section timeouts of the next launch; `loads`: as in `observed`."""
    return section_timeouts(spec_of(job).spec.resiliency.timeouts, observed(job, loads=loads))


def observed(job: Job, *, loads: str | None = None) -> Observed:
    """What the job's rows tell of each section's length, by the conditions of policy.timeouts. `loads`: the
    checkpoint of an attempt that has no row yet; None: that of the newest."""
    saves = job.checkpoints.filter(state__in=COMMITTED_CHECKPOINTS, blocking_s__gt=0).exclude(kind=LOCAL_KIND)
    closes = Rank.objects.filter(replica__attempt__job=job, out_of_section_s__isnull=False)
    return Observed(
        steps=_steps(job),
        setups=_setups(job),
        saves=_longest(saves, "blocking_s"),
        closes=_longest(closes, "out_of_section_s"),
        blocking_saves=not spec_of(job).spec.checkpoint.asynchronous,
        transfer_s=_transfer_s(job, loads),
    )


def _transfer_s(job: Job, loads: str | None = None) -> float | None:
    """Seconds in which the checkpoint that an attempt loads (see `observed`) was written, or read back by a node
    or by the server's own machine, whichever took longest; None: it loads none of the persistent tier."""
    newest = job.attempts.order_by("-number").values_list("resume_path", flat=True)
    path = newest.first() if loads is None else loads
    row = job.checkpoints.filter(path=path).exclude(kind=LOCAL_KIND).first() if path else None
    if row is None:
        return None
    looks = job.commands.filter(kind="verify_checkpoint", state=CommandState.SUCCEEDED, body__path=path)
    whole = windows.whole(looks.exclude(acknowledged_at=None), windows.COMMANDS, "acknowledged_at", "finished_at")
    read = whole.aggregate(took=Max(F("finished_at") - F("acknowledged_at")))["took"]
    measured = (row.total_s, row.read_s, read.total_seconds() if read else None)
    return max((seconds for seconds in measured if seconds is not None), default=None)


def _longest(rows: QuerySet[Any], column: str) -> Seen:
    found = rows.aggregate(n=Count("pk"), longest=Max(column))
    return Seen(longest_s=found["longest"], samples=found["n"])


def _setups(job: Job) -> Seen:
    """Setups that loaded a persistent checkpoint: of replicas that began before their attempt
    had a view, because later ones have their state from a peer."""
    joined = Rank.objects.filter(replica__attempt__job=job, joined_at__gt=F("started_at"))
    loaded = joined.exclude(replica__attempt__resume_path="").exclude(
        replica__attempt__resume_path__startswith=f"{LOCAL_KIND}:"
    )
    earlier_view = ViewRow.objects.filter(
        job=job, attempt=OuterRef("replica__attempt__number"), announced_at__lt=OuterRef("replica__created_at")
    )
    loaded = windows.whole(loaded, windows.RANKS, "started_at", "joined_at")
    rows = loaded.filter(~Exists(earlier_view)).annotate(took=F("joined_at") - F("started_at"))
    found = rows.aggregate(n=Count("pk"), longest=Max("took"))
    return Seen(longest_s=found["longest"].total_seconds() if found["longest"] else None, samples=found["n"])


def _steps(job: Job) -> Seen:
    """The newest RECENT_STEPS that tell how long a step takes: not those with a view change in
    them, nor the first ones of an epoch of membership, which pay for what was built."""
    rows = job.steps.filter(step_time_s__gt=0, stall_s=0.0)
    before = StepRecord.objects.filter(
        job=job, attempt=OuterRef("attempt"), epoch=OuterRef("epoch"), step=OuterRef("step") - WARM_UP_STEPS
    )
    return _longest(rows.filter(Exists(before)).order_by("-id")[:RECENT_STEPS], "step_time_s")
