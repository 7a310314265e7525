"""The server's clock was set: what stands in columns and is compared with it is moved with it.

Called by the leading sentinel, which sees a step by the monotonic clock, and when it begins to
lead and finds that the lease before was kept by a clock that was ahead. Rows that say when
something is due, or since when something waits, would else be due an hour late, or all at once:
orders that just went out would expire, and agents would refuse those that were signed before.

Not moved: what the policy reads, for it moves those times itself (`policy.clock`); and what was
promised to people by the calendar (when tokens, passwords and invitations end).
"""

from datetime import timedelta

from django.db import models
from django.db.models import F, Q

from controlplane.access.models import SignInGate
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.recovery.models import Incident, KeptCheckpoint, MarkedLines, Recomputation, Request
from controlplane.runtime import events
from controlplane.runtime.clock import AHEAD_S, from_s
from controlplane.runtime.logs import get

MOVED: tuple[tuple[type[models.Model], str], ...] = (
    (Job, "due_at"),
    (Checkpoint, "verify_due_at"),
    (Checkpoint, "heard_at"),
    (Incident, "certificate_due_at"),
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
)
SEEN_WITHIN_S = 2.0
"""A sentinel's turn is shorter."""
_log = get(__name__)


def move(step_s: float, *, set_s: float) -> int:
    """The clock was set by `step_s`, to `set_s` (server Unix seconds). Returns how many times were
    moved. A time that was written since the step, or falls into the seconds before it, may be taken for
    one of the other kind: then it is due at once, which costs a look."""
    step, at = timedelta(seconds=step_s), from_s(_bound_s(step_s, set_s))
    moved = 0
    with events.unit_of_work():
        for model, column in MOVED:
            old = Q(**{f"{column}__lt" if step_s > 0.0 else f"{column}__gt": at})
            rows = model._default_manager.filter(old)
            # Locked in the one order in which everybody else locks several.
            mine = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True))
            moved += rows.filter(pk__in=mine).update(**{column: F(column) + step})
        for row in _orders(step_s, set_s):
            _move_order(row, step)
            moved += 1
    _log.warning("the clock was set: due times are moved with it", step_s=round(step_s, 1), moved=moved)
    return moved


def _bound_s(step_s: float, set_s: float) -> float:
    """Which times are of the clock before: it was seen a little later that it was set ahead."""
    return set_s - min(step_s, SEEN_WITHIN_S) if step_s > 0.0 else set_s


def _orders(step_s: float, set_s: float) -> models.QuerySet[Command]:
    """Live ones that were given before the step."""
    live = Command.objects.filter(state__in=dispatch.LIVE).order_by("pk").select_for_update()
    if step_s > 0.0:
        return live.filter(created_at__lt=from_s(_bound_s(step_s, set_s)))
    return live.filter(created_at__gt=from_s(set_s + AHEAD_S))


def _move_order(row: Command, step: timedelta) -> None:
    """An order says when it was given and for how long it holds, and that is signed."""
    genuine = dispatch.is_genuine(row)
    row.created_at, row.due_at = row.created_at + step, row.due_at + step
    row.send_due_at = row.send_due_at + step if row.send_due_at else None
    if genuine:
        # What was not signed by us before is not signed now.
        dispatch.sign_again(row)
    row.save(update_fields=["created_at", "due_at", "send_due_at", "body", "statement", "key_id", "signature"])
