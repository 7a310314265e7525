"""The server's clock was set: what stands in columns and is compared with it is moved with it.

Called by the leading sentinel, which sees a step by the monotonic clock, and when it begins to
lead and finds that the lease before was kept by a clock that was ahead. Rows that say when
something is due, or since when something waits, would else be due an hour late, or all at once:
orders that just went out would expire, and agents would refuse those that were signed before. What
was counted of a job's time is moved too (`policy.stepped`): else its effective time would be wrong for good.

Not moved: what the policy reads, for it moves those times itself (`policy.clock`); and what was
promised to people by the calendar (when tokens, passwords and invitations end).
"""

from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from django.db import models
from django.db.models import F, Q

from controlplane.access.models import SignInGate
from controlplane.changes.outbox import LIVE
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch import broadcasts, statements
from controlplane.dispatch.models import Command
from controlplane.engines.models import EnginePoll, Intent
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, JobPace, Rank
from controlplane.jobs.several import AT_ONCE, first_attempts
from controlplane.policy import stepped
from controlplane.policy.pace import Pace
from controlplane.policy.spent import Spent, begin
from controlplane.policy.stepped import ClockSet
from controlplane.recovery import ledger_rows
from controlplane.recovery.counts import counted
from controlplane.recovery.models import Incident, KeptCheckpoint, MarkedLines, Recomputation, Request
from controlplane.recovery.resumption_models import Resumption
from controlplane.recovery.steps import add_saves
from controlplane.runtime import beats, events, windows
from controlplane.runtime.clock import AHEAD_S, CLOCK_STEP_S, SEEN_WITHIN_S, from_s, now_s
from controlplane.runtime.logs import get
from controlplane.runtime.models import ClockStep
from controlplane.runtime.pieces import batched

MOVED: tuple[tuple[type[models.Model], str], ...] = (
    (Job, "due_at"),
    (Checkpoint, "verify_due_at"),
    (Checkpoint, "heard_at"),
    (Incident, "certificate_due_at"),
    (Resumption, "certificate_due_at"),
    (Recomputation, "due_at"),
    (Recomputation, "ordered_at"),
    (KeptCheckpoint, "due_at"),
    (Request, "asked_at"),
    (Request, "valid_until"),
    (Node, "hold_until"),
    (Node, "asked_at"),
    (Node, "old_key_until"),
    (Node, "connected_at"),
    (SignInGate, "closed_until"),
    (MarkedLines, "told_at"),
    (EnginePoll, "due_at"),
    (Intent, "due_at"),
)
MAX_COUNTED = 10_000
_log = get(__name__)


def move_seen(step_s: float, *, set_s: float, up_s: float) -> None:
    """As `move`, of a step that the leader saw at `up_s` of its boot; unless it took the lead anew meanwhile, and
    found the step by the lease."""
    boot = windows.uptime()[0]
    if not (boot and ClockStep.objects.filter(boot=boot, up_s__gt=up_s).exists()):
        move(step_s, set_s=set_s, up_s=up_s)


def move(step_s: float, *, set_s: float, since_s: float | None = None, up_s: float | None = None) -> int:
    """The clock was set by `step_s`, to `set_s` (server Unix seconds); where nobody watched, at `since_s`
    at the earliest. Returns how many times were moved, and writes the step down for what counts within
    a window. A time that was written since the step, or falls into the seconds before it, may be taken for
    one of the other kind: then it is due at once, which costs a look."""
    since_s = _bound_s(step_s, set_s) if since_s is None else since_s
    bound_s = since_s if step_s > 0.0 else set_s
    step, at = timedelta(seconds=step_s), from_s(bound_s)
    moved = 0
    with events.unit_of_work():
        paces = ClockSet(step_s=step_s, since_s=min(since_s, set_s - SEEN_WITHIN_S), now_s=now_s())
        moved += _move_paces(paces)
        ledger_rows.move(paces)
        _write_down(step_s, since_s, up_s, under_way=_under_way(paces))
        for model, column in MOVED:
            old = Q(**{f"{column}__lt" if step_s > 0.0 else f"{column}__gt": at})
            rows = model._default_manager.filter(old)
            # Locked in the one order in which everybody else locks several.
            mine = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True))
            moved += rows.filter(pk__in=mine).update(**{column: F(column) + step})
        for row in _orders(step_s, bound_s):
            _move_order(row, step)
            moved += 1
    _log.warning("the clock was set: due times are moved with it", step_s=round(step_s, 1), moved=moved)
    return moved


class Unwatched(NamedTuple):
    """A step that no leader saw: it came at `since_s` (by the present clock) or later."""

    step_s: float
    since_s: float


def _move_paces(by: ClockSet) -> int:
    """What was counted of the time of each job that is not over, or ended by the present clock."""
    present = (from_s(by.since_s), from_s(by.now_s))
    going_on = Q(finished_at=None) | Q(finished_at__range=present)
    began = Attempt.objects.values("job_id")
    jobs = Job.objects.filter(going_on, pk__in=began).order_by("pk").select_for_update(no_key=True)
    found = {job.id: job for job in jobs}
    for some in batched(list(found), AT_ONCE):
        rows = {row.job_id: row for row in JobPace.objects.filter(job__in=some).order_by("pk").select_for_update()}
        for row in rows.values():
            _move_pace(found[row.job_id], row, by)
        first = first_attempts([job_id for job_id in some if job_id not in rows])
        new = {job_id: by.moved_s(attempt.started_at.timestamp()) for job_id, attempt in first.items()}
        JobPace.objects.bulk_create([_begun(job_id, at_s) for job_id, at_s in new.items()])
    return len(found)


def _begun(job_id: str, at_s: float) -> JobPace:
    """Of a job that has committed nothing: when it began would not be known later."""
    pace = msgspec.to_builtins(Pace(), str_keys=True)
    return JobPace(job_id=job_id, pace=pace, spent=msgspec.to_builtins(begin(at_s)))


def _move_pace(job: Job, row: JobPace, by: ClockSet) -> None:
    pace = msgspec.convert(row.pace, Pace, str_keys=True)
    spent = msgspec.convert(row.spent, Spent) if row.spent else None
    at_s = spent.at_s if spent is not None else 0.0
    went_on = stepped.move(pace, spent, by)
    if spent is not None and (went_on or spent.at_s != at_s) and not (went_on and by.step_s > 0.0):
        until_s = by.now_s if by.step_s > 0.0 else spent.saves_until_s + by.step_s
        add_saves(job, spent, all_until_s=until_s)
    row.pace = msgspec.to_builtins(pace, str_keys=True)
    row.spent = msgspec.to_builtins(spent) if spent is not None else None
    row.save(update_fields=["pace", "spent"])


def unwatched() -> Unwatched | None:
    """Asked before the lead is taken: by how much the clock was set while nobody led. What the boot of the machine
    of the leader before says beside the clock tells it, where we or another process of ours is on it too; else only
    that it was set back, as the lease then lies ahead. None: it was not, or that is not known."""
    lease = beats.lease_clock(beats.SENTINEL)
    there = None if lease is None else beats.boot_clock(lease.boot)
    if lease is None or there is None or there.up_s < lease.up_s:
        step_s = -beats.ahead_s(beats.SENTINEL)
        return Unwatched(step_s, now_s()) if step_s < -AHEAD_S else None
    later_s = sum(ClockStep.objects.filter(boot=lease.boot, up_s__gt=lease.up_s).values_list("step_s", flat=True))
    step_s = (there.wall_s - lease.wall_s) - (there.up_s - lease.up_s) - later_s
    return Unwatched(step_s, lease.wall_s + later_s + step_s) if abs(step_s) >= CLOCK_STEP_S else None


def _under_way(by: ClockSet) -> dict[str, list[Any]]:
    """Setups of ranks and orders between whose two times the clock was set: their difference is no length of time."""
    present = (from_s(by.since_s), from_s(by.now_s))
    ranks = Rank.objects.filter(Q(joined_at=None) | Q(joined_at__range=present), started_at__isnull=False)
    ranks = ranks.exclude(started_at__range=present).filter(Q(released_at=None) | Q(joined_at__isnull=False))
    commands = Command.objects.filter(Q(state__in=LIVE) | Q(finished_at__range=present), acknowledged_at__isnull=False)
    commands = commands.exclude(acknowledged_at__range=present)
    return {
        name: list(rows.order_by("-pk").values_list("pk", flat=True)[:MAX_COUNTED])
        for name, rows in ((windows.RANKS, ranks), (windows.COMMANDS, commands))
    }


def _write_down(
    step_s: float, since_s: float, seen_up_s: float | None = None, *, under_way: dict[str, list[Any]] | None = None
) -> None:
    """For `runtime.windows`: with the rows that would be counted twice, as the clock shows their times again."""
    boot, up_s = windows.uptime()
    up_s = up_s if seen_up_s is None else seen_up_s
    older = under_way or {}
    if step_s < 0.0:
        again = (from_s(since_s), from_s(since_s - step_s + AHEAD_S))
        for rows, column in counted():
            found = rows.filter(**{f"{column}__range": again}).order_by(f"-{column}")
            older[rows.model._meta.label] = list(found.values_list("pk", flat=True)[:MAX_COUNTED])
    ClockStep.objects.create(set_at=from_s(since_s), step_s=step_s, boot=boot, up_s=up_s, older=older)


def _bound_s(step_s: float, set_s: float) -> float:
    """Which times are of the clock before: it was seen a little later that it was set ahead."""
    return set_s - min(step_s, SEEN_WITHIN_S) if step_s > 0.0 else set_s


def _orders(step_s: float, bound_s: float) -> models.QuerySet[Command]:
    """Live ones that were given before the step, each node's own."""
    broadcasts.make_all()
    live = Command.objects.filter(state__in=LIVE).order_by("pk").select_for_update().prefetch_related("shared")
    if step_s > 0.0:
        return live.filter(created_at__lt=from_s(bound_s))
    return live.filter(created_at__gt=from_s(bound_s + AHEAD_S))


def _move_order(row: Command, step: timedelta) -> None:
    """An order says when it was given and for how long it holds, and that is signed."""
    genuine = statements.is_genuine(row)
    row.created_at, row.due_at = row.created_at + step, row.due_at + step
    row.send_due_at = row.send_due_at + step if row.send_due_at else None
    if genuine:
        # What was not signed by us before is not signed now.
        statements.sign_again(row)
    row.save(
        update_fields=["created_at", "due_at", "send_due_at", "body", "shared", "statement", "key_id", "signature"]
    )
