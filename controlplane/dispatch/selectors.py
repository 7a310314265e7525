"""Reading commands."""

from collections.abc import Iterator

from django.db.models import Q, QuerySet

from controlplane.changes import outbox
from controlplane.dispatch.models import Command, Unmade
from controlplane.dispatch.statements import body_of, waiting_body
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.states import CommandState


def of_decision(decision_id: str) -> QuerySet[Command]:
    """In the order in which they were written."""
    return Command.objects.filter(decision_id=decision_id).select_related("node").order_by("id")


def of_job(job_id: str) -> QuerySet[Command]:
    """Newest first."""
    return Command.objects.filter(job_id=job_id).select_related("node").order_by("-id")


def stops_under_way(node_id: str) -> Iterator[StopRanks]:
    """Commands to stop ranks that this node may still carry out, also those that are not made its own yet."""
    rows = Command.objects.filter(node_id=node_id, kind=outbox.STOPS, state__in=outbox.LIVE).select_related("shared")
    yield from (body for body in map(body_of, rows.order_by("id")) if isinstance(body, StopRanks))
    waiting = Unmade.objects.filter(kind=outbox.STOPS).select_related("shared").order_by("id")
    mine = (row for row in waiting if isinstance(row.nodes, list) and node_id in row.nodes)
    yield from (body for body in map(waiting_body, mine) if isinstance(body, StopRanks))


def stop_stands(job_id: str, *, attempt: int, replica: int, incarnation: int) -> bool:
    """A decision's command to stop the incarnation has neither failed nor expired, on some node."""
    said = Q(shared__body__replica=replica, shared__body__incarnation=incarnation)
    mine = {"kind": outbox.STOPS, "job_id": job_id, "attempt": attempt}
    rows = Command.objects.filter(said | Q(body__replica=replica, body__incarnation=incarnation), **mine)
    over = (CommandState.FAILED, CommandState.EXPIRED)
    if rows.exclude(decision_id="").exclude(state__in=over).exists():
        return True
    return Unmade.objects.filter(said, **mine).exclude(decision_id="").exists()
