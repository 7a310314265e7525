"""What the write side's core asks of the database, each query's SQL worked out once (`runtime.prepared`).

Asked by `recovery.rows`, and by what tells whose rank an event is. Those without an argument for a job are of a node or
of an incident. Writes nothing.
"""

from typing import Any

from django.db.models import Count, Max, QuerySet

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Rank, Replica
from controlplane.protocol.states import LIVE_INCIDENT, AttemptState, CommandState
from controlplane.recovery.models import LIVE, Decision, FlushRow, Incident, MarkedLines, Request, Signal, ViewRow
from controlplane.runtime.prepared import NUMBER, TEXT, Prepared, Several, figures_of

NEWEST_NUMBER: Prepared[int] = Prepared(
    lambda job: Attempt.objects.filter(job=job).order_by("-number").values_list("number", flat=True)[:1], job=TEXT
)
ATTEMPT: Prepared[Attempt] = Prepared(
    lambda job, number: Attempt.objects.filter(job=job, number=number).order_by("-number")[:1], job=TEXT, number=NUMBER
)
UNENDED_ATTEMPTS: Prepared[Attempt] = Prepared(
    lambda job: Attempt.objects.filter(job=job).exclude(state=AttemptState.ENDED).order_by("number"), job=TEXT
)


def _replicas(**which: Any) -> "QuerySet[Replica]":
    return Replica.objects.filter(**which).select_related("attempt__job")


REPLICAS: Prepared[Replica] = Prepared(
    lambda job, attempt: _replicas(attempt__job=job, attempt__number=attempt).order_by("index", "incarnation"),
    job=TEXT, attempt=NUMBER,
)  # fmt: skip
INCARNATION: Prepared[Replica] = Prepared(
    lambda job, attempt, index, incarnation: _replicas(
        attempt__job=job, attempt__number=attempt, index=index, incarnation=incarnation
    )[:1],
    job=TEXT, attempt=NUMBER, index=NUMBER, incarnation=NUMBER,
)  # fmt: skip
INCARNATION_OF_NEWEST: Prepared[Replica] = Prepared(
    lambda job, index, incarnation: _replicas(attempt__job=job, index=index, incarnation=incarnation)
    .order_by("-attempt__number")[:1],
    job=TEXT, index=NUMBER, incarnation=NUMBER,
)  # fmt: skip
NEWEST_INCARNATIONS: Prepared[tuple[int, int]] = Prepared(
    lambda job: Replica.objects.filter(attempt__job=job)
    .order_by().values_list("index").annotate(newest=Max("incarnation")),
    job=TEXT,
)  # fmt: skip
NEWEST_ON: Prepared[tuple[int, int]] = Prepared(
    lambda job, node, attempt: Replica.objects.filter(
        attempt__job=job,
        index__in=Rank.objects.filter(
            node_id=node, replica__attempt__job=job, replica__attempt__number=attempt
        ).values("replica__index"),
    ).order_by().values_list("index").annotate(newest=Max("incarnation")),
    job=TEXT, node=TEXT, attempt=NUMBER,
)  # fmt: skip


def _ranks(**which: Any) -> "QuerySet[Rank]":
    return Rank.objects.filter(**which).select_related("replica__attempt__job", "node", "device")


def _ranks_of(*, on_node: bool, of_one: bool) -> Prepared[Rank]:
    """Of an attempt, by replica and rank; those on a node, or of an incarnation, alone."""
    named: dict[str, Any] = {"replica__attempt__job": TEXT, "replica__attempt__number": NUMBER}
    named |= {"node_id": TEXT} if on_node else {}
    named |= {"replica__index": NUMBER, "replica__incarnation": NUMBER} if of_one else {}
    ordered = ("replica__index", "replica__incarnation", "rank")
    return Prepared(lambda **which: _ranks(**which).order_by(*ordered), **named)


RANKS = {
    (on_node, of_one): _ranks_of(on_node=on_node, of_one=of_one)
    for on_node in (False, True)
    for of_one in (False, True)
}
"""By whether a node, and whether an incarnation is named."""
RANK: Prepared[Rank] = Prepared(
    lambda job, attempt, replica, incarnation, rank: _ranks(
        rank=rank,
        replica__index=replica,
        replica__incarnation=incarnation,
        replica__attempt__number=attempt,
        replica__attempt__job_id=job,
    ).order_by("pk")[:1],
    job=TEXT, attempt=NUMBER, replica=NUMBER, incarnation=NUMBER, rank=NUMBER,
)  # fmt: skip
UNRELEASED_ON: Prepared[Rank] = Prepared(
    lambda node: Rank.objects.filter(node_id=node, released_at=None).select_related("replica__attempt", "device"),
    node=TEXT,
)
"""Without their node and jobs, which are at hand."""
HELD_ON: Prepared[Rank] = Prepared(
    lambda job, node: _ranks(replica__attempt__job=job, node_id=node, released_at=None).order_by("pk"),
    job=TEXT, node=TEXT,
)  # fmt: skip
JOBS_ON: Prepared[str] = Prepared(
    lambda node: Rank.objects.filter(node_id=node, released_at=None)
    .values_list("replica__attempt__job_id", flat=True),
    node=TEXT,
)  # fmt: skip
RANK_OF_ON: Prepared[int] = Prepared(
    lambda replica, node: Rank.objects.filter(replica=replica, node_id=node).values_list("pk", flat=True)[:1],
    replica=NUMBER, node=TEXT,
)  # fmt: skip
RANK_ON: Prepared[int] = Prepared(
    lambda job, node: Rank.objects.filter(node_id=node, replica__attempt__job=job).values_list("pk", flat=True)[:1],
    job=TEXT, node=TEXT,
)  # fmt: skip
RESERVED_ON: Prepared[str] = Prepared(
    lambda job, node: Device.objects.filter(node_id=node, reservation__job=job).values_list("pk", flat=True)[:1],
    job=TEXT, node=TEXT,
)  # fmt: skip
REACHED: Prepared[int] = Prepared(
    lambda job, attempt: Rank.objects.filter(
        replica__attempt__job=job, replica__attempt__number=attempt, released_at=None, node__connected=True
    ).values_list("pk", flat=True)[:1],
    job=TEXT, attempt=NUMBER,
)  # fmt: skip

VIEW: Prepared[ViewRow] = Prepared(
    lambda job, epoch: ViewRow.objects.filter(job=job, epoch=epoch)[:1], job=TEXT, epoch=NUMBER
)
VIEWS_SINCE: Prepared[dict[str, Any]] = Prepared(
    lambda job, epoch: ViewRow.objects.filter(job=job, epoch__gt=epoch).values_list("view", flat=True),
    job=TEXT, epoch=NUMBER,
)  # fmt: skip
VIEW_OF: Prepared[int] = Prepared(
    lambda job, attempt: ViewRow.objects.filter(job=job, attempt=attempt).values_list("pk", flat=True)[:1],
    job=TEXT, attempt=NUMBER,
)  # fmt: skip
FLUSHES_BESIDE: Prepared[tuple[int]] = Prepared(
    lambda job, epoch, replica, rank: figures_of(
        FlushRow.objects.filter(view__job=job, view__epoch=epoch).exclude(replica=replica, rank=rank),
        number_of=Count("pk"),
    ),
    job=TEXT, epoch=NUMBER, replica=NUMBER, rank=NUMBER,
)  # fmt: skip

ACKNOWLEDGED: Prepared[Command] = Prepared(
    lambda job, node: Command.objects.filter(node_id=node, job=job, state=CommandState.ACKNOWLEDGED)
    .select_related("node").order_by("id"),
    job=TEXT, node=TEXT,
)  # fmt: skip
COMMAND: Prepared[Command] = Prepared(lambda command: Command.objects.filter(pk=command), command=TEXT)
DECIDED_BY: Prepared[tuple[str, str | None]] = Prepared(
    lambda decision: Decision.objects.filter(pk=decision).values_list("rule", "incident_id"), decision=TEXT
)
NODE_NAME: Prepared[str] = Prepared(lambda node: Node.objects.filter(pk=node).values_list("name", flat=True), node=TEXT)
DEVICE: Prepared[Device] = Prepared(
    lambda node, index: Device.objects.filter(node_id=node, index=index).order_by("pk")[:1], node=TEXT, index=NUMBER
)
DEVICE_THERE: Prepared[Device] = Prepared(
    lambda node, index: Device.objects.filter(node_id=node, index=index).select_related("node"), node=TEXT, index=NUMBER
)
"""With its node."""
HOLDER: Prepared[str] = Prepared(
    lambda device: Rank.objects.filter(device=device, released_at=None)
    .order_by("pk").values_list("replica__attempt__job_id", flat=True)[:1],
    device=TEXT,
)  # fmt: skip

OPEN_INCIDENT: Prepared[str] = Prepared(
    lambda job: Incident.objects.filter(job=job, state__in=LIVE_INCIDENT)
    .order_by("-opened_at").values_list("id", flat=True)[:1],
    job=TEXT,
)  # fmt: skip
FINDING: Prepared[Signal] = Prepared(
    lambda key: Signal.objects.filter(key=key, settled_at=None).order_by("pk")[:1], key=TEXT
)
FINDINGS: Prepared[tuple[str, str]] = Prepared(
    lambda job: Signal.objects.filter(job=job, settled_at=None).order_by("id").values_list("id", "kind"), job=TEXT
)
FINDINGS_NAMED: Prepared[Signal] = Prepared(
    lambda signals: Signal.objects.filter(id__in=signals), signals=Several(TEXT)
)
REQUESTS: Prepared[Request] = Prepared(lambda job: Request.objects.filter(LIVE, job=job).order_by("id"), job=TEXT)
MARKED: Prepared[MarkedLines] = Prepared(
    lambda job, marker: MarkedLines.objects.filter(job=job, marker=marker).order_by("pk")[:1], job=TEXT, marker=TEXT
)
