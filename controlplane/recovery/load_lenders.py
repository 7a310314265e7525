"""What each node lends to the queue: grouped by node, so that no row of a device is an object here; devices are read
only of nodes in part in use and of those that a finding names. Called by `load_queue`. Reads alone.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db.models import Count, Q, QuerySet

from controlplane.changes.assembly.queue import usable_and_free
from controlplane.fleet.models import Device, Node
from controlplane.fleet.reservations import ByNode
from controlplane.policies import selectors as policies
from controlplane.policy import findings
from controlplane.policy.known_end import KnownEnd
from controlplane.policy.leaving import is_away
from controlplane.policy.placement import PLACEABLE
from controlplane.policy.queue import until
from controlplane.policy.queue.rows import Lender
from controlplane.policy.snapshot import DeviceFact
from controlplane.recovery import signals
from controlplane.recovery.load_devices import NODES_A_QUERY, devices_of
from controlplane.recovery.models import Signal
from controlplane.runtime.clock import now_s
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import Prepared

SILENT = "node_silent"


def _open_nodes() -> QuerySet[Node, tuple[str, bool]]:
    rows = Node.objects.filter(revoked_at=None, state__in=[str(state) for state in PLACEABLE])
    return rows.order_by("id").values_list("id", "connected")


def _by_model() -> QuerySet[Device, tuple[str, str, int, int]]:
    good = Count("pk", filter=Q(healthy=True, present=True))
    return Device.objects.order_by().values_list("node_id", "model").annotate(number=Count("pk"), good=good)


def _accusing() -> QuerySet[Signal]:
    return Signal.objects.filter(job=None, settled_at=None, node__isnull=False, kind__in=[SILENT, *findings.KINDS])


_OPEN_NODES, _BY_MODEL, _ACCUSING = Prepared(_open_nodes), Prepared(_by_model), Prepared(_accusing)


def lenders(
    used: Mapping[str, int], reserved: Mapping[str, str], leave: Mapping[str, KnownEnd], kept: ByNode
) -> Iterable[Lender]:
    """What each node would lend to a job that has nothing there, and what it would if nobody held any of it. One that
    is away may be off: it lends when it is back. `kept`: which are reserved for projects."""
    moment_s = now_s()
    away = {node_id for node_id, end in leave.items() if is_away(end, moment_s)}
    silent, named = accused()
    out = silent | signals.node_checks().keys()
    sizes, usable = _devices()
    up = (node_id for node_id, connected in _OPEN_NODES() if node_id in away or (connected and node_id not in out))
    open_ids = [node_id for node_id in up if node_id in usable]
    mixed = {n for n in open_ids if n in named or (used.get(n, 0) and n not in reserved and used.get(n, 0) < sizes[n])}
    read = _read(mixed)
    for node_id in open_ids:
        good = usable[node_id]
        if node_id in mixed:
            good, free = usable_and_free(read.get(node_id, ()), named.get(node_id, frozenset()))
        else:
            free = good if not used.get(node_id, 0) else {}
        owner = reserved.get(node_id, "")
        lender = Lender(
            id=node_id,
            usable=good,
            free={} if owner else free,
            reserved_for=owner,
            reservations=kept.get(node_id, ()),
        )
        yield from until.lent(lender, leave.get(node_id), moment_s)


def _read(node_ids: Collection[str]) -> Mapping[str, Sequence[DeviceFact]]:
    found: dict[str, Sequence[DeviceFact]] = {}
    for some in batched(sorted(node_ids), NODES_A_QUERY):
        found |= devices_of(some)
    return found


def accused() -> tuple[set[str], dict[str, frozenset[int]]]:
    """(nodes that are not heard, devices by node on which nothing is started while a finding is open)."""
    policy = policies.of_fleet()
    silent: set[str] = set()
    named: dict[str, set[int]] = defaultdict(set)
    for row in _ACCUSING():
        if row.kind == SILENT or (row.device_index is None and findings.accuses(signals.fact_of(row), policy)):
            silent.add(row.node_id or "")
        elif row.device_index is not None and findings.accuses(signals.fact_of(row), policy):
            named[row.node_id or ""].add(row.device_index)
    return silent, {node_id: frozenset(indices) for node_id, indices in named.items()}


def _devices() -> tuple[Mapping[str, int], Mapping[str, dict[str, int]]]:
    """(how many in all, how many that are healthy by model), by node id."""
    sizes: dict[str, int] = defaultdict(int)
    usable: dict[str, dict[str, int]] = defaultdict(dict)
    for node_id, model, number, fit in _BY_MODEL():
        sizes[node_id] += number
        if fit:
            usable[node_id][model] = fit
    return sizes, usable
