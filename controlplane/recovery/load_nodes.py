"""Nodes as a job may use them: what `recovery.load` and `recovery.load_candidates` read of the fleet.

A device's row is read as the few columns that a decision asks for. Of few nodes theirs alone are read; of more
than `NODES_A_QUERY` all are, and looked through here: no query's text grows with a job. Reads alone.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeVar

from django.db.models import Max, Model, Q, QuerySet

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.policy import snapshot as facts
from controlplane.protocol.states import NodeState
from controlplane.recovery import health_gate, signals
from controlplane.runtime.clock import ago
from controlplane.scheduling.models import SpareReservation
from controlplane.scheduling.selectors import reserved_nodes

M = TypeVar("M", bound=Model)
NODES_A_QUERY = 500

HOST_KEPT_S, WARM_KEPT_S = 900.0, 14_400.0
"""How long agents keep a rank host without ranks, and one that was warmed (agents.core.limits)."""


class _Known(NamedTuple):
    """What is known of nodes beside their rows, by id: where this job's rank host is up, when it was last warmed
    as a spare and last asked for, whose spare a node is, and which of its checks fail."""

    up: Collection[str]
    warmed: Mapping[str, float]
    asked: Mapping[str, float]
    reserved: Mapping[str, str]
    unhealthy: Mapping[str, str]


def node_facts(job: Job | None, *, only: Collection[str] | None = None) -> tuple[facts.NodeFact, ...]:
    """The fleet as this job may use it (None: as it is), by node id; `only` these nodes of it."""
    up, warmed, asked = _warm_nodes(job) if job is not None else (set(), {}, {})
    known = _Known(up, warmed, asked, _reserved(only), signals.node_checks())
    return _facts(known, only)


def own_facts(job: Job, named: Collection[str]) -> tuple[facts.NodeFact, ...]:
    """The nodes that matter to the job whatever it asks, by id: these, those where something of it is or was
    warm, its spares, and those of which something is wanted or found."""
    up, warmed, asked = _warm_nodes(job)
    unhealthy = signals.node_checks()
    spares = set(SpareReservation.objects.filter(job=job).values_list("device__node_id", flat=True))
    resets = set(Device.objects.filter(reset_wanted_at__isnull=False).values_list("node_id", flat=True))
    only = {*named, *up, *asked, *unhealthy, *spares, *resets}
    return _facts(_Known(up, warmed, asked, _reserved(only), unhealthy), only)


def of_nodes(rows: QuerySet[M], field: str, only: Collection[str] | None) -> QuerySet[M]:
    """Those of the rows whose `field` names one of the nodes; all of them where that would be a long text."""
    return rows if only is None or len(only) > NODES_A_QUERY else rows.filter(**{f"{field}__in": sorted(only)})


def _reserved(only: Collection[str] | None) -> Mapping[str, str]:
    """Whose spare a node is, by node id."""
    if only is None or len(only) > NODES_A_QUERY:
        return reserved_nodes()
    rows = of_nodes(SpareReservation.objects.all(), "device__node_id", only)
    return dict(rows.values_list("device__node_id", "job_id"))


def _facts(known: _Known, only: Collection[str] | None) -> tuple[facts.NodeFact, ...]:
    silent, clock = health_gate.silent_by_node(), health_gate.clock_step()
    devices = _devices(only)
    rows = of_nodes(Node.objects.filter(revoked_at=None).order_by("id"), "pk", only)
    rows = rows.only("id", "name", "state", "before_deaf", "connected", "disconnected_at", "segment")
    return tuple(
        facts.NodeFact(
            id=node.id,
            name=node.name,
            state=_state(node),
            connected=node.connected,
            silent_s=health_gate.silent_s(node, silent, clock),
            devices=tuple(devices[node.id]),
            warm=node.id in known.up,
            warmed_s=known.warmed.get(node.id),
            warm_asked_s=known.asked.get(node.id),
            reserved_for=known.reserved.get(node.id),
            unhealthy=known.unhealthy.get(node.id, ""),
            segment=node.segment,
        )
        for node in rows
        if only is None or node.id in only
    )


def _state(node: Node) -> NodeState:
    """Quarantined for its missing events alone counts as cordoned: it gets no work, and what is found
    meanwhile may still quarantine it."""
    alone = node.state == NodeState.QUARANTINED and node.before_deaf is not None
    return NodeState.CORDONED if alone else NodeState(node.state)


def _devices(only: Collection[str] | None) -> Mapping[str, list[facts.DeviceFact]]:
    """By node id, in order; those of revoked nodes too. Read without a join: on statistics from before a fleet
    enrolled, PostgreSQL compared each node with each device, past its limit of 15 s at 24,576 devices."""
    unreleased = of_nodes(Rank.objects.filter(released_at=None), "node_id", only)
    held = set(unreleased.values_list("device_id", flat=True))
    kept = of_nodes(SpareReservation.objects.all(), "device__node_id", only)
    reserved = set(kept.values_list("device_id", flat=True))
    rows = of_nodes(Device.objects.order_by("index"), "node_id", only)
    columns = (
        "node_id",
        "id",
        "index",
        "uuid",
        "healthy",
        "present",
        "risk",
        "memory_bytes",
        "model",
        "reset_wanted_at",
    )
    found: dict[str, list[facts.DeviceFact]] = defaultdict(list)
    for row in rows.values_list(*columns):
        if only is not None and row[0] not in only:
            continue
        node_id, device_id, index, uuid, healthy, present, risk, memory_bytes, model, reset_wanted_at = row
        found[node_id].append(
            facts.DeviceFact(
                index=index,
                uuid=uuid,
                free=device_id not in held and device_id not in reserved,
                held=device_id in held,
                healthy=healthy and present,
                risk=risk,
                memory_bytes=memory_bytes,
                model=model,
                reset_wanted_s=reset_wanted_at.timestamp() if reset_wanted_at else None,
            )
        )
    return found


def _warm_nodes(job: Job) -> tuple[set[str], dict[str, float], dict[str, float]]:
    """(Where this job's rank host is up, as far as agents keep one; when it was last warmed as a
    spare, and last asked for, by node id)."""
    ranks = Rank.objects.filter(Q(released_at=None) | Q(released_at__gte=ago(HOST_KEPT_S)), replica__attempt__job=job)
    started = Command.objects.filter(job=job, kind="start_ranks", state="succeeded")
    up = set(ranks.values_list("node_id", flat=True)) & set(started.values_list("node_id", flat=True))
    asked = Command.objects.filter(job=job, kind="warm_host").values("node_id")
    done = asked.filter(state="succeeded").annotate(at=Max("finished_at")).values_list("node_id", "at")
    warmed = {node_id: at.timestamp() for node_id, at in done if at is not None}
    up |= {node_id for node_id, at_s in warmed.items() if at_s >= ago(WARM_KEPT_S).timestamp()}
    times = asked.annotate(at=Max("created_at")).values_list("node_id", "at")
    return up, warmed, {node_id: at.timestamp() for node_id, at in times}
