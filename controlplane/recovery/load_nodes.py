"""Nodes as a job may use them: what `recovery.load` and `recovery.load_candidates` read of the fleet.

Of few nodes theirs alone are read; of more than `NODES_A_QUERY` all are, and looked through here: no query's text grows
with a job. Reads alone.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from django.db.models import Max, Q

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.policy import snapshot as facts
from controlplane.protocol.states import NodeState
from controlplane.recovery import sight, signals
from controlplane.recovery.load_devices import NODES_A_QUERY, devices_of, of_nodes
from controlplane.runtime.clock import ago
from controlplane.runtime.pieces import batched
from controlplane.scheduling.models import SpareReservation
from controlplane.scheduling.selectors import reserved_nodes

MANY_NODES = 10 * NODES_A_QUERY
"""Of more than these all nodes are read."""

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
    if only is None or len(only) > MANY_NODES:
        return _facts(known, only)
    return tuple(node for some in batched(sorted(only), NODES_A_QUERY) for node in _facts(known, some))


def own_facts(job: Job, named: Collection[str]) -> tuple[facts.NodeFact, ...]:
    """The nodes that matter to the job whatever it asks, by id: these, those where something of it is or was
    warm, its spares, and those of which something is wanted or found."""
    up, warmed, asked = _warm_nodes(job)
    unhealthy = signals.node_checks()
    spares = set(SpareReservation.objects.filter(job=job).values_list("device__node_id", flat=True))
    resets = set(Device.objects.filter(reset_wanted_at__isnull=False).values_list("node_id", flat=True))
    only = {*named, *up, *asked, *unhealthy, *spares, *resets}
    return _facts(_Known(up, warmed, asked, _reserved(only), unhealthy), only)


def _reserved(only: Collection[str] | None) -> Mapping[str, str]:
    """Whose spare a node is, by node id."""
    if only is None or len(only) > NODES_A_QUERY:
        return reserved_nodes()
    rows = of_nodes(SpareReservation.objects.all(), "device__node_id", only)
    return dict(rows.values_list("device__node_id", "job_id"))


def _facts(known: _Known, only: Collection[str] | None) -> tuple[facts.NodeFact, ...]:
    silent, clock = sight.silent_by_node(), sight.clock_step()
    devices = devices_of(only)
    rows = of_nodes(Node.objects.filter(revoked_at=None).order_by("id"), "pk", only)
    columns = ("id", "name", "state", "before_deaf", "connected", "disconnected_at", "segment")
    return tuple(
        facts.NodeFact(
            id=node.id,
            name=node.name,
            state=_state(node),
            connected=node.connected,
            silent_s=sight.silent_s(node, silent, clock),
            devices=tuple(devices.get(node.id, ())),
            warm=node.id in known.up,
            warmed_s=known.warmed.get(node.id),
            warm_asked_s=known.asked.get(node.id),
            reserved_for=known.reserved.get(node.id),
            unhealthy=known.unhealthy.get(node.id, ""),
            segment=node.segment,
        )
        for node in rows.values_list(*columns, named=True)
        if only is None or node.id in only
    )


def _state(node: Any) -> NodeState:
    """Quarantined for its missing events alone counts as cordoned: it gets no work, and what is found
    meanwhile may still quarantine it."""
    alone = node.state == NodeState.QUARANTINED and node.before_deaf is not None
    return NodeState.CORDONED if alone else NodeState(node.state)


def _warm_nodes(job: Job) -> tuple[set[str], dict[str, float], dict[str, float]]:
    """(Where this job's rank host is up, as far as agents keep one; when it was last warmed as a
    spare, and last asked for, by node id)."""
    ranks = Rank.objects.filter(Q(released_at=None) | Q(released_at__gte=ago(HOST_KEPT_S)), replica__attempt__job=job)
    started = Command.objects.filter(job=job, kind="start_ranks", state="succeeded")
    homes = ranks.order_by().values_list("node_id", flat=True).distinct()
    up = set(homes) & set(started.order_by().values_list("node_id", flat=True).distinct())
    asked = Command.objects.filter(job=job, kind="warm_host").values("node_id")
    done = asked.filter(state="succeeded").annotate(at=Max("finished_at")).values_list("node_id", "at")
    warmed = {node_id: at.timestamp() for node_id, at in done if at is not None}
    up |= {node_id for node_id, at_s in warmed.items() if at_s >= ago(WARM_KEPT_S).timestamp()}
    times = asked.annotate(at=Max("created_at")).values_list("node_id", "at")
    return up, warmed, {node_id: at.timestamp() for node_id, at in times}
