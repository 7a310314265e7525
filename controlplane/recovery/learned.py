"""What this job's own rows have measured: times and saves."""

from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, F, Max, OuterRef, QuerySet, Subquery

from controlplane.changes.assembly.measured import RECENT, SAVE_LIMIT_S, Saves, Times
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

RECENT_STEPS = 1000
"""Of a job's millions: what a step takes is read under its lock."""
RECENT_REPLICAS = 1000
"""As many replicas are looked at for how long starts took."""


def times_of(job: Job) -> Times:
    """For `changes.assembly.measured`."""
    joined = Exists(Rank.objects.filter(replica=OuterRef("pk"), joined_at__isnull=False))
    caught_up = Replica.objects.filter(joined, attempt__job=job).exclude(caught_up=None)
    # 0: it was concluded from its steps, and how long it took is not known.
    caught = [row["fetch_s"] for row in caught_up.values_list("caught_up", flat=True) if row and row["fetch_s"] > 0.0]
    saves = job.checkpoints.filter(state__in=COMMITTED_CHECKPOINTS, total_s__gt=0).exclude(kind=LOCAL_KIND)
    saved = list(saves.order_by("-step", "-epoch").values_list("total_s", flat=True)[:RECENT])
    return Times(
        steps=calm_steps(job), starts=_starts(job), transfers=caught, saves=saved, setup_limit_s=_setup_limit_s(job)
    )


def _starts(job: Job) -> list[float]:
    """Seconds from a decision until the last rank that it started was in the group, of the newest decisions."""
    joined = Rank.objects.filter(replica=OuterRef("pk"), joined_at__isnull=False)
    ranks = windows.whole(joined, windows.RANKS, "replica__created_at", "joined_at")
    last = Subquery(ranks.order_by("-joined_at").values("joined_at")[:1])
    replicas = Replica.objects.filter(attempt__job=job).annotate(last=last).exclude(last=None)
    moments: dict[datetime, datetime] = {}
    for began, ended in replicas.order_by("-created_at", "-pk").values_list("created_at", "last")[:RECENT_REPLICAS]:
        if began not in moments and len(moments) == RECENT:
            break
        moments[began] = max(ended, moments.get(began, ended))
    return [(ended - began).total_seconds() for began, ended in moments.items()]


def _setup_limit_s(job: Job) -> float | None:
    """Asked only while a replica is being set up."""
    wanted = spec_of(job).spec.resiliency.timeouts
    if not setup_grows(wanted) or not Replica.objects.filter(attempt__job=job, state=ReplicaState.FORMING).exists():
        return None
    return timeout_of(
        section_timeouts(wanted, Observed(setups=_setups(job), transfer_s=_transfer_s(job))), Section.SETUP
    )


def saves_of(job: Job) -> Saves:
    """The newest of each kind."""
    # The local tier saves all the time and outlives less: it puts off no emergency save.
    rows = job.checkpoints.exclude(kind=LOCAL_KIND).order_by("-started_at")
    started = rows.values_list("started_at", flat=True).first()
    committed = rows.filter(state__in=COMMITTED_CHECKPOINTS).aggregate(at=Max("committed_at"))["at"]
    asked = job.commands.filter(kind="request_save", body__save_kind="emergency").aggregate(at=Max("created_at"))["at"]
    return Saves(
        started_s=started.timestamp() if started else None,
        committed_s=committed.timestamp() if committed else None,
        emergency_s=asked.timestamp() if asked else None,
        writing=rows.filter(state=CheckpointState.WRITING, started_at__gte=ago(SAVE_LIMIT_S)).exists(),
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
