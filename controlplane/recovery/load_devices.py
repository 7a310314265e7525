"""Devices of nodes as the policy sees them: what `recovery.load_nodes` reads of them.

A device's row is read as the few columns that a decision asks for. A hundred thousand of them seldom change, and to
read them took most of a load. So PostgreSQL adds up a hash of each node's rows, and what was made of a node whose sum
was seen before is not made again (`runtime.lasting`). Nodes are kept under a sum of the very rows that were read: if
another transaction changes them in between, they are read again, never wrong. Of few nodes, and in SQLite, which has no
such hash, rows are read. Reads alone.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db import connection
from django.db.models import BigIntegerField, Count, Func, Model, QuerySet, Sum

from controlplane.changes.assembly import nodes
from controlplane.changes.assembly.rows import InUse
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Rank
from controlplane.policy.snapshot import DeviceFact
from controlplane.runtime.lasting import Lasting
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOST, TEXT, Prepared, Several
from controlplane.scheduling.models import SpareReservation

M = TypeVar("M", bound=Model)
NODES_A_QUERY = MOST
FEW_NODES = 256
"""Of so few their rows are read, which is no more work than their sums."""
MAX_DEVICES_KEPT = 500_000
_COLUMNS = (
    "node_id", "id", "index", "uuid", "healthy", "present", "risk", "memory_bytes", "model", "reset_wanted_at",
)  # fmt: skip
_kept: Lasting[tuple[DeviceFact, ...]] = Lasting(MAX_DEVICES_KEPT)


class _RowHash(Func):
    """64 bits of some columns of a row."""

    template = "hash_record_extended(ROW(%(expressions)s), 0)"
    output_field = BigIntegerField()


class _TextHash(Func):
    """64 bits of one text: half of what a row of it takes."""

    template = "hashtextextended(%(expressions)s, 0)"
    output_field = BigIntegerField()


_DEVICE, _HELD = _RowHash(*_COLUMNS), _TextHash("device_id")


class _Key(NamedTuple):
    """What a node's devices are made of: sums over their rows and over ranks that hold one, and which are spares."""

    node_id: str
    devices: int
    held: int
    spares: tuple[str, ...]


def of_nodes(rows: QuerySet[M], field: str, only: Collection[str] | None) -> QuerySet[M]:
    """Those of the rows whose `field` names one of the nodes; all of them where that would be a long text."""
    named = few(only)
    return rows if named is None else rows.filter(**{f"{field}__in": named})


def few(only: Collection[str] | None) -> list[str] | None:
    """These nodes in order, where a query names them; None: it reads all."""
    return None if only is None or len(only) > NODES_A_QUERY else sorted(only)


def devices_of(only: Collection[str] | None) -> Mapping[str, Sequence[DeviceFact]]:
    """By node id, in order, those of revoked nodes too; `only` of these nodes. Read without a join: on statistics
    from before a fleet enrolled, PostgreSQL compared each node with each device, past its limit of 15 s at 24,576
    devices."""
    if connection.vendor != "postgresql" or (only is not None and len(only) <= FEW_NODES):
        return _read(only)
    keys = _keys(only)
    found = {key.node_id: its for key in keys if (its := _kept.get(key)) is not None}
    left = [key.node_id for key in keys if key.node_id not in found]
    # Where nearly all of a fleet are new to this process they are read at once.
    at_once = len(keys) > NODES_A_QUERY and 2 * len(left) > len(keys)
    pieces: list[Collection[str] | None] = [None] if at_once else list(batched(left, NODES_A_QUERY))
    for some in pieces:
        found |= _read(some, keep=True)
    return found if only is None else {node_id: its for node_id, its in found.items() if node_id in only}


def _keys(only: Collection[str] | None) -> list[_Key]:
    rows, ranks = of_nodes(Device.objects.order_by(), "node_id", only), of_nodes(_unreleased(), "node_id", only)
    sums = rows.values_list("node_id").annotate(sum=Sum(_DEVICE))
    held = dict(ranks.order_by().values_list("node_id").annotate(sum=Sum(_HELD)))
    spares = _spares(only)
    return [
        _Key(node_id, devices, held.get(node_id, 0), tuple(spares.get(node_id, ())))
        for node_id, devices in sums
        if only is None or node_id in only
    ]


def _unreleased() -> QuerySet[Rank]:
    return Rank.objects.filter(released_at=None)


def _spare_rows(nodes: Any = None) -> QuerySet[SpareReservation, tuple[str, str]]:
    rows = SpareReservation.objects.order_by("device_id")
    rows = rows if nodes is None else rows.filter(device__node_id__in=nodes)
    return rows.values_list("device__node_id", "device_id")


_SPARES_OF = Prepared(_spare_rows, nodes=Several(TEXT))


def _spares(only: Collection[str] | None = None) -> Mapping[str, list[str]]:
    found, named = defaultdict[str, list[str]](list), few(only)
    for node_id, device_id in _spare_rows() if named is None else _SPARES_OF(nodes=named):
        found[node_id].append(device_id)
    return found


_HELD_OF = Prepared(
    lambda nodes: _unreleased().filter(node_id__in=nodes).values_list("device_id", flat=True), nodes=Several(TEXT)
)
_DEVICES_OF = Prepared(
    lambda nodes: Device.objects.filter(node_id__in=nodes).order_by("index").values_list(*_COLUMNS),
    nodes=Several(TEXT),
)


def _read(only: Collection[str] | None, *, keep: bool = False) -> Mapping[str, Sequence[DeviceFact]]:
    """Row by row; `keep`: for the next load too."""
    spares, named = _spares(only), few(only)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    if keep:
        ranks = of_nodes(_unreleased(), "node_id", only)
        rows = of_nodes(Device.objects.order_by("index"), "node_id", only)
        holders: dict[str, str] = {}
        for node_id, device_id, hashed in ranks.annotate(hashed=_HELD).values_list("node_id", "device_id", "hashed"):
            holders[device_id] = node_id
            sums[node_id][1] += hashed
        held: Collection[str] = holders
        columns: Iterable[Any] = rows.annotate(hashed=_DEVICE).values_list(*_COLUMNS, "hashed")
    elif named is not None:
        held, columns = set(_HELD_OF(nodes=named)), _DEVICES_OF(nodes=named)
    else:
        held = set(_unreleased().values_list("device_id", flat=True))
        columns = Device.objects.order_by("index").values_list(*_COLUMNS)
    reserved = {device_id for its in spares.values() for device_id in its}
    mine = [row for row in columns if only is None or row[0] in only]
    resets = {row[1]: row[9].timestamp() for row in mine if row[9] is not None}
    use = InUse(held=held, reserved=reserved, resets=resets)
    found = nodes.devices_of((row[: len(_COLUMNS)] for row in mine), use)
    if keep:
        for row in mine:
            sums[row[0]][0] += row[-1]
        for node_id, its in found.items():
            key = _Key(node_id, *sums[node_id], tuple(spares.get(node_id, ())))
            _kept.keep(key, tuple(its), size=len(its))
    return found


def _device_counts(rows: QuerySet[Device]) -> QuerySet[Device, tuple[str, int]]:
    counts = enrolled(rows).order_by().values_list("node_id").annotate(number=Count("pk"))
    return counts.values_list("node_id", "number")


_COUNTS_OF = Prepared(lambda nodes: _device_counts(Device.objects.filter(node_id__in=nodes)), nodes=Several(TEXT))


def device_counts(only: Collection[str] | None = None) -> Mapping[str, int]:
    """How many devices each node of the fleet has, by id; `only` these."""
    named = few(only)
    return dict(_device_counts(Device.objects.all()) if named is None else _COUNTS_OF(nodes=named))


def enrolled(rows: QuerySet[Device]) -> QuerySet[Device]:
    """Those of nodes that were not revoked."""
    return rows.exclude(node__in=Node.objects.exclude(revoked_at=None))
