"""All nodes at once, as columns (`runtime.columns`), from a query for each table however many nodes there are.

What is here is what rows say. Ages, live readings and which job holds a device are not: they change without a row of
the fleet, or are not for everybody. Whether anything of it has changed is `fleet.followed`'s.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat
from operator import sub
from typing import Any, NamedTuple

from django.db.models import Count, F, Q, QuerySet

from controlplane.fleet.models import NOT_WELL, Device
from controlplane.fleet.selectors import AT_RISK, nodes
from controlplane.runtime.columns import worded
from controlplane.runtime.plain_rows import plain
from controlplane.runtime.prepared import MOST

OF_ROWS = ("id", "name", "state", "state_reason", "connected", "revoked", "held", "segment", "agent_version")
OF_DEVICES = ("devices", "devices_healthy", "devices_at_risk", "devices_lost", "risk")
FIELDS = (*OF_ROWS, *OF_DEVICES, "devices_busy", "devices_spare")
LEFT_OUT = frozenset({"id", "state_reason"})
"""Given where they are asked for: random text and sentences are as long as all the others together."""
DEFAULT = tuple(name for name in FIELDS if name not in LEFT_OUT)
WORDS = frozenset({"state", "state_reason", "segment", "agent_version"})
YES_OR_NO = frozenset({"connected", "revoked", "held"})
RISK_DIGITS = 3


class Found(NamedTuple):
    """`columns` of so many `rows`; `last`: the name of the last of them where more follow; `total` on all pages."""

    columns: dict[str, Any]
    rows: int
    last: str | None
    total: int


def node_columns(
    fields: Collection[str],
    *,
    in_turn: Callable[[str], Any],
    state: str | None = None,
    q: str = "",
    after: str | None = None,
    limit: int,
) -> Found:
    """`fields` of the nodes that `selectors.nodes` lists, in the turn of their names, those behind `after`."""
    asked = [name for name in OF_ROWS if name in fields and name not in ("id", "name", "revoked")]
    rows = nodes(state=state, q=q).order_by().annotate(revoked_=Q(revoked_at__isnull=False))
    found = plain(rows.values_list("name", "id", "revoked_", *asked))
    turns = [in_turn(row[0]) for row in found]
    found = [found[place] for place in sorted(range(len(found)), key=turns.__getitem__)]
    start = 0 if after is None else bisect_right(sorted(turns), in_turn(after))
    shown, more = found[start : start + limit], start + limit < len(found)
    read = ("name", "id", "revoked", *asked)
    values = dict(zip(read, zip(*shown, strict=True), strict=True)) if shown else dict.fromkeys(read, ())
    made = {name: _column(name, values[name]) for name in read if name in fields}
    ids = values["id"]
    made |= _of_devices(ids, fields)
    if "devices_busy" in fields:
        ranks = Device._meta.get_field("ranks").related_model._default_manager.filter(released_at=None)
        made["devices_busy"] = _counted(ranks, "node_id", "node_id", ids)
    if "devices_spare" in fields:
        # Few: counted here, as a database that is to group them by node reads all devices in their order.
        spares = Device._meta.get_field("reservation").related_model._default_manager.order_by()
        kept = plain(_of(spares, "device__node_id", ids).values_list("device__node_id"))
        made["devices_spare"] = _each(Counter(node_id for (node_id,) in kept), ids)
    columns = {name: made[name] for name in FIELDS if name in fields}
    return Found(columns, len(shown), shown[-1][0] if more and shown else None, len(found))


def _column(name: str, values: Sequence[Any]) -> Any:
    if name in WORDS:
        return worded(values)
    return list(map(bool, values)) if name in YES_OR_NO else list(values)


def _of_devices(ids: Sequence[str], fields: Collection[str]) -> dict[str, Any]:
    """Nearly all devices of a fleet are there, healthy and without a score: they are counted by an index, and the
    others alone are read, by one of their own."""
    if not any(name in fields for name in OF_DEVICES):
        return {}
    made = {"devices": _counted(Device.objects.all(), "node_id", "index", ids)}
    lost, sick, at_risk, highest = Counter[str](), Counter[str](), Counter[str](), dict[str, float]()
    others = Device.objects.filter(NOT_WELL).order_by()
    for node_id, present, healthy, risk in plain(_of(others, "node_id", ids).values_list(*_OTHER)):
        if not present:
            lost[node_id] += 1
            continue
        if not healthy:
            sick[node_id] += 1
        if risk is not None:
            highest[node_id] = max(highest.get(node_id, 0.0), risk)
            if healthy and risk >= AT_RISK:
                at_risk[node_id] += 1
    made["devices_lost"] = _each(lost, ids)
    made["devices_at_risk"] = _each(at_risk, ids)
    made["devices_healthy"] = list(map(sub, made["devices"], _each(lost + sick, ids)))
    scores = {node_id: round(score, RISK_DIGITS) for node_id, score in highest.items()}
    made["risk"] = list(map(scores.get, ids))
    return made


_OTHER = ("node_id", "present", "healthy", "risk")


def _counted(rows: "QuerySet[Any]", node: str, counted: str, ids: Sequence[str]) -> list[int]:
    """How many of these rows each node has. `counted`: a column that is never null and stands in an index by node."""
    grouped = _of(rows, node, ids).order_by().values(node).annotate(number=Count(F(counted)))
    return _each(dict(plain(grouped.values_list(node, "number"))), ids)


def _of(rows: "QuerySet[Any]", node: str, ids: Sequence[str]) -> "QuerySet[Any]":
    """Of a few nodes those of these alone; of many all are read, as no statement names thousands."""
    return rows.filter(**{f"{node}__in": ids}) if len(ids) <= MOST else rows


def _each(found: Mapping[str, int], ids: Sequence[str]) -> list[int]:
    return list(map(found.get, ids, repeat(0))) if found else [0] * len(ids)  # type: ignore[arg-type]
