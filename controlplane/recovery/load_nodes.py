"""Nodes as a job may use them: what `recovery.load` and `recovery.load_candidates` read of the fleet for
`changes.assembly`.

Of few nodes theirs alone are read; of more than `NODES_A_QUERY` all are, and looked through here: no query's text grows
with a job. Reads alone.
"""

from collections.abc import Collection, Mapping
from typing import Any

from django.db.models import Max, Q, QuerySet

from controlplane.changes.assembly import nodes
from controlplane.changes.assembly import rows as rowtypes
from controlplane.changes.assembly.rows import Hosts, Known
from controlplane.dispatch.models import Command
from controlplane.fleet import ends, reservations
from controlplane.fleet.models import Device, KnownEnd, Node
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.policy.snapshot import NodeFact
from controlplane.protocol.states import NodeState
from controlplane.recovery import health_gate, signals
from controlplane.recovery.load_devices import NODES_A_QUERY, devices_of, few
from controlplane.recovery.load_replicas import REPLICAS_A_QUERY, ranks_of
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOMENT, NUMBER, TEXT, Prepared, Several
from controlplane.scheduling.models import SpareReservation
from controlplane.scheduling.selectors import reserved_nodes

MANY_NODES = 10 * NODES_A_QUERY
"""Of more than these all nodes are read."""
_SPARES = Prepared(
    lambda job: SpareReservation.objects.filter(job=job).values_list("device__node_id", flat=True), job=TEXT
)
_RESETS = Prepared(lambda: Device.objects.filter(reset_wanted_at__isnull=False).values_list("node_id", flat=True))


def node_facts(job: Job | None, *, only: Collection[str] | None = None) -> tuple[NodeFact, ...]:
    """The fleet as this job may use it (None: as it is), by node id; `only` these nodes of it."""
    hosts = _hosts(job) if job is not None else Hosts()
    known = Known(hosts=hosts, reserved=_reserved(only), unhealthy=signals.node_checks())
    kept = _kept(job)
    if only is None or len(only) > MANY_NODES:
        return _facts(known, only, kept, ends.first_by_node())
    pieces = batched(sorted(only), NODES_A_QUERY)
    return tuple(node for some in pieces for node in _facts(known, some, kept, ends.first_by_node(some)))


def own_facts(job: Job, named: Collection[str]) -> tuple[NodeFact, ...]:
    """The nodes that matter to the job whatever it asks, by id: these, those where something of it is or was
    warm, its spares, those of which something is wanted or found, those that leave, and those that are reserved."""
    hosts = _hosts(job)
    unhealthy = signals.node_checks()
    spares, resets = _SPARES(job=job.id), _RESETS()
    leaving, kept = ends.first_by_node(), _kept(job)
    only = {*named, *nodes.hosts_up(hosts, now_s()), *hosts.asked, *unhealthy, *spares, *resets, *leaving, *kept}
    return _facts(Known(hosts=hosts, reserved=_reserved(only), unhealthy=unhealthy), only, kept, leaving)


_RESERVED = Prepared(
    lambda nodes: SpareReservation.objects.filter(device__node_id__in=nodes).values_list("device__node_id", "job_id"),
    nodes=Several(TEXT),
)


def _reserved(only: Collection[str] | None) -> Mapping[str, str]:
    """Whose spare a node is, by node id."""
    named = few(only)
    return reserved_nodes() if named is None else dict(_RESERVED(nodes=named))


def _kept(job: Job | None) -> reservations.ByNode:
    """What is reserved for projects, as this job's may know of others; of no job's concern, nothing."""
    return reservations.seen_from(job.project, reservations.by_node()) if job is not None else {}


def _enrolled() -> QuerySet[Node]:
    return Node.objects.filter(revoked_at=None).order_by("id")


_COLUMNS = ("id", "name", "state", "before_deaf", "connected", "disconnected_at", "segment")
_NODES = Prepared(lambda nodes: _enrolled().filter(pk__in=nodes).values_list(*_COLUMNS), nodes=Several(TEXT))


def _facts(
    known: Known, only: Collection[str] | None, kept: reservations.ByNode, known_ends: Mapping[str, KnownEnd]
) -> tuple[NodeFact, ...]:
    """`known_ends`: of these nodes at least."""
    heard, clock = health_gate.silent_by_node() or {}, health_gate.clock_step()
    named = few(only)
    rows = _enrolled().values_list(*_COLUMNS) if named is None else _NODES(nodes=named)
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
        for node_id, name, state, before_deaf, connected, since, segment in rows
        if only is None or node_id in only
    )
    return nodes.nodes_of(found, devices_of(only), known, now_s())


def _homes(rows: QuerySet[Rank], since: object) -> QuerySet[Rank, str]:
    kept = rows.filter(Q(released_at=None) | Q(released_at__gte=since))
    return kept.order_by().values_list("node_id", flat=True).distinct()


def _started(job: object) -> QuerySet[Command, str]:
    rows = Command.objects.filter(job=job, kind="start_ranks", state="succeeded")
    return rows.order_by().values_list("node_id", flat=True).distinct()


def _warmed(job: object) -> QuerySet[Command, Any]:
    """(node id, when one was asked for last, when one was last ready: None, none was)."""
    rows = Command.objects.filter(job=job, kind="warm_host").values("node_id")
    times = {"asked": Max("created_at"), "done": Max("finished_at", filter=Q(state="succeeded"))}
    return rows.annotate(**times).values_list("node_id", *times)


_LIVES = Prepared(
    lambda job: (
        Replica.objects.filter(attempt__job=job).order_by().values_list("pk", flat=True)[: REPLICAS_A_QUERY + 1]
    ),
    job=TEXT,
)
_HOMES = Prepared(
    lambda lives, since: _homes(Rank.objects.filter(replica_id__in=lives), since), lives=Several(NUMBER), since=MOMENT
)
_STARTED, _WARMED = Prepared(_started, job=TEXT), Prepared(_warmed, job=TEXT)


def _used(job: Job) -> Collection[str]:
    """As `load_replicas.ranks_of`: few lives are named."""
    since, lives = ago(nodes.HOST_KEPT_S), _LIVES(job=job.id)
    if len(lives) <= REPLICAS_A_QUERY:
        return _HOMES(lives=lives, since=since)
    return _homes(ranks_of(Replica.objects.filter(attempt__job=job)), since)


def _hosts(job: Job) -> Hosts:
    warmed = _WARMED(job=job.id)
    return Hosts(
        used=set(_used(job)),
        started=set(_STARTED(job=job.id)),
        warmed={node_id: done.timestamp() for node_id, _, done in warmed if done is not None},
        asked={node_id: asked.timestamp() for node_id, asked, _ in warmed},
    )
