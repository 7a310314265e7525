"""Nodes as a job may use them: what `recovery.load` and `recovery.load_candidates` read of the fleet for
`changes.assembly`.

Of few nodes theirs alone are read; of more than `NODES_A_QUERY` all are, and looked through here: no query's text grows
with a job. Reads alone.
"""

from collections.abc import Collection, Mapping

from django.db.models import Max, Q

from controlplane.changes.assembly import nodes
from controlplane.changes.assembly import rows as rowtypes
from controlplane.changes.assembly.rows import Hosts, Known
from controlplane.dispatch.models import Command
from controlplane.fleet import ends, reservations
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Job, Replica
from controlplane.policy.snapshot import NodeFact
from controlplane.protocol.states import NodeState
from controlplane.recovery import health_gate, signals
from controlplane.recovery.load_devices import NODES_A_QUERY, devices_of, of_nodes
from controlplane.recovery.load_replicas import ranks_of
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.pieces import batched
from controlplane.scheduling.models import SpareReservation
from controlplane.scheduling.selectors import reserved_nodes

MANY_NODES = 10 * NODES_A_QUERY
"""Of more than these all nodes are read."""


def node_facts(job: Job | None, *, only: Collection[str] | None = None) -> tuple[NodeFact, ...]:
    """The fleet as this job may use it (None: as it is), by node id; `only` these nodes of it."""
    hosts = _hosts(job) if job is not None else Hosts()
    known = Known(hosts=hosts, reserved=_reserved(only), unhealthy=signals.node_checks())
    kept = _kept(job)
    if only is None or len(only) > MANY_NODES:
        return _facts(known, only, kept)
    return tuple(node for some in batched(sorted(only), NODES_A_QUERY) for node in _facts(known, some, kept))


def own_facts(job: Job, named: Collection[str]) -> tuple[NodeFact, ...]:
    """The nodes that matter to the job whatever it asks, by id: these, those where something of it is or was
    warm, its spares, those of which something is wanted or found, those that leave, and those that are reserved."""
    hosts = _hosts(job)
    unhealthy = signals.node_checks()
    spares = set(SpareReservation.objects.filter(job=job).values_list("device__node_id", flat=True))
    resets = set(Device.objects.filter(reset_wanted_at__isnull=False).values_list("node_id", flat=True))
    leaving, kept = ends.first_by_node(), _kept(job)
    only = {*named, *nodes.hosts_up(hosts, now_s()), *hosts.asked, *unhealthy, *spares, *resets, *leaving, *kept}
    return _facts(Known(hosts=hosts, reserved=_reserved(only), unhealthy=unhealthy), only, kept)


def _reserved(only: Collection[str] | None) -> Mapping[str, str]:
    """Whose spare a node is, by node id."""
    if only is None or len(only) > NODES_A_QUERY:
        return reserved_nodes()
    rows = of_nodes(SpareReservation.objects.all(), "device__node_id", only)
    return dict(rows.values_list("device__node_id", "job_id"))


def _kept(job: Job | None) -> reservations.ByNode:
    """What is reserved for projects, as this job's may know of others; of no job's concern, nothing."""
    return reservations.seen_from(job.project, reservations.by_node()) if job is not None else {}


def _facts(known: Known, only: Collection[str] | None, kept: reservations.ByNode) -> tuple[NodeFact, ...]:
    known_ends = ends.first_by_node(only if only is None or len(only) <= NODES_A_QUERY else None)
    heard, clock = health_gate.silent_by_node() or {}, health_gate.clock_step()
    rows = of_nodes(Node.objects.filter(revoked_at=None).order_by("id"), "pk", only)
    columns = ("id", "name", "state", "before_deaf", "connected", "disconnected_at", "segment")
    found = (
        rowtypes.Node(
            id=node_id,
            name=name,
            state=NodeState(state),
            connected=connected,
            unheard_s=heard.get(node_id),
            closed_s=health_gate.closed_s(connected, since, clock),
            misses_events=before_deaf is not None,
            segment=segment,
            end=ends.known(known_ends[node_id]) if node_id in known_ends else None,
            reservations=kept.get(node_id, ()),
        )
        for node_id, name, state, before_deaf, connected, since, segment in rows.values_list(*columns)
        if only is None or node_id in only
    )
    return nodes.nodes_of(found, devices_of(only), known, now_s())


def _hosts(job: Job) -> Hosts:
    kept = Q(released_at=None) | Q(released_at__gte=ago(nodes.HOST_KEPT_S))
    ranks = ranks_of(Replica.objects.filter(attempt__job=job)).filter(kept)
    used = ranks.order_by().values_list("node_id", flat=True).distinct()
    succeeded = Command.objects.filter(job=job, kind="start_ranks", state="succeeded")
    started = succeeded.order_by().values_list("node_id", flat=True).distinct()
    asked = Command.objects.filter(job=job, kind="warm_host").values("node_id")
    done = asked.filter(state="succeeded").annotate(at=Max("finished_at")).values_list("node_id", "at")
    times = asked.annotate(at=Max("created_at")).values_list("node_id", "at")
    return Hosts(
        used=set(used),
        started=set(started),
        warmed={node_id: at.timestamp() for node_id, at in done if at is not None},
        asked={node_id: at.timestamp() for node_id, at in times},
    )
