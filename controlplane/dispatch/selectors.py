"""Reading commands."""

from collections.abc import Collection, Iterator

from django.db.models import Q, QuerySet

from controlplane.changes import outbox
from controlplane.dispatch.models import Command, Unmade
from controlplane.dispatch.statements import body_of, waiting_body
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.states import CommandState
from controlplane.runtime.prepared import TEXT, Prepared

_STOPS: Prepared[Command] = Prepared(
    lambda node: Command.objects.filter(node_id=node, kind=outbox.STOPS, state__in=outbox.LIVE)
    .select_related("shared").order_by("id"),
    node=TEXT,
)  # fmt: skip
_UNMADE: Prepared[Unmade] = Prepared(
    lambda kind: Unmade.objects.filter(kind=kind).select_related("shared").order_by("id"), kind=TEXT
)


def of_decision(decision_id: str) -> QuerySet[Command]:
    """In the order in which they were written."""
    return Command.objects.filter(decision_id=decision_id).select_related("node").order_by("id")


def of_decisions(decision_ids: Collection[str]) -> dict[str, list[Command]]:
    """As `of_decision` of each, by its id."""
    found: dict[str, list[Command]] = {decision_id: [] for decision_id in decision_ids}
    for row in Command.objects.filter(decision_id__in=found).select_related("node").order_by("id"):
        found[row.decision_id].append(row)
    return found


def of_job(job_id: str) -> QuerySet[Command]:
    """Newest first."""
    return Command.objects.filter(job_id=job_id).select_related("node").order_by("-id")


def stops_under_way(node_id: str) -> Iterator[StopRanks]:
    """Commands to stop ranks that this node may still carry out, also those that are not made its own yet."""
    yield from (body for body in map(body_of, _STOPS(node=node_id)) if isinstance(body, StopRanks))
    mine = (row for row in _UNMADE(kind=outbox.STOPS) if isinstance(row.nodes, list) and node_id in row.nodes)
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
