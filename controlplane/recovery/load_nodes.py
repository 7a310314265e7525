"""The fleet as a job may use it: what `recovery.load` reads of nodes and their devices.

A device's row is read as the few columns that a decision asks for. Reads alone.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from django.db.models import Max, Q

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Rank
from controlplane.policy import snapshot as facts
from controlplane.protocol.states import NodeState
from controlplane.recovery import sight, signals
from controlplane.runtime.clock import ago
from controlplane.scheduling.selectors import reserved_nodes

HOST_KEPT_S, WARM_KEPT_S = 900.0, 14_400.0
"""How long agents keep a rank host without ranks, and one that was warmed (agents.core.limits)."""


def node_facts(job: Job | None, *, only: Collection[str] | None = None) -> tuple[facts.NodeFact, ...]:
    """The fleet as this job may use it (None: as it is), by node id; `only` these nodes of it."""
    reserved = reserved_nodes()
    warm, warmed, asked = _warm_nodes(job) if job is not None else (set(), {}, {})
    silent, clock = sight.silent_by_node(), sight.clock_step()
    unhealthy = signals.node_checks()
    devices = _devices(only)
    rows = Node.objects.filter(revoked_at=None).order_by("id")
    rows = rows.only("id", "name", "state", "before_deaf", "connected", "disconnected_at", "segment")
    return tuple(
        facts.NodeFact(
            id=node.id,
            name=node.name,
            state=_state(node),
            connected=node.connected,
            silent_s=sight.silent_s(node, silent, clock),
            devices=tuple(devices[node.id]),
            warm=node.id in warm,
            warmed_s=warmed.get(node.id),
            warm_asked_s=asked.get(node.id),
            reserved_for=reserved.get(node.id),
            unhealthy=unhealthy.get(node.id, ""),
            segment=node.segment,
        )
        for node in (rows if only is None else rows.filter(pk__in=only))
    )


def _state(node: Node) -> NodeState:
    """Quarantined for its missing events alone counts as cordoned: it gets no work, and what is found
    meanwhile may still quarantine it."""
    alone = node.state == NodeState.QUARANTINED and node.before_deaf is not None
    return NodeState.CORDONED if alone else NodeState(node.state)


def _devices(only: Collection[str] | None) -> Mapping[str, list[facts.DeviceFact]]:
    """By node id, in order; those of revoked nodes too. Read without a join: on statistics from before a fleet
    enrolled, PostgreSQL compared each node with each device, past its limit of 15 s at 24,576 devices."""
    held = set(Rank.objects.filter(released_at=None).values_list("device_id", flat=True))
    reserved = set(Device.objects.filter(reservation__isnull=False).values_list("id", flat=True))
    rows = Device.objects.order_by("index")
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
    for row in (rows if only is None else rows.filter(node_id__in=only)).values_list(*columns):
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
