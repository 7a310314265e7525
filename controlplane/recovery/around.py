"""Device readings around an incident's fault: of the devices that its findings name, a few at most.

From `BEFORE_S` before the last progress, or the first sign of the fault, until `AFTER_S` after it and after
its detection. Called by the API. However many nodes an incident names, it costs the same number of queries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count, Min, QuerySet

from controlplane.fleet.models import Device, Node
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.spec import RiskTrigger
from controlplane.recovery.models import Incident, Signal
from controlplane.runtime.clock import from_s, iso, now_s
from controlplane.runtime.errors import NotFound
from controlplane.telemetry import around
from controlplane.telemetry.codec import Chunk
from controlplane.telemetry.selectors import node_chunks, of_device, series

BEFORE_S, AFTER_S = 300.0, 120.0
MAX_SPAN_S = 7200.0
"""Of what was detected hours after it began, only so much is shown."""
MAX_NODES, MAX_DEVICES, MAX_NAMED, MAX_XIDS = 4, 8, 512, 20
MAX_POINTS = 500
DAY_S = 86400.0
ACCUSES_NOBODY = "outer_error"

Place = tuple[str, int | None]
"""A node and a device of it; None: the whole node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """(node, device) that are shown, in order; how many nodes are not, and devices of the nodes that are."""

    devices: tuple[tuple[str, int], ...]
    nodes_left_out: int
    devices_left_out: int


def incident_readings(incident_id: str, *, max_points: int = MAX_POINTS) -> dict[str, Any]:
    """`rest.IncidentReadings`. Raises NotFound."""
    incident = Incident.objects.select_related("job").filter(pk=incident_id).first()
    if incident is None:
        raise NotFound(f"no incident {incident_id!r}")
    span, detected, until_s = span_of(incident, now_s())
    places, nodes = _places(incident)
    listed = _listed([node_id for node_id, _ in places])
    chosen = choose(places, listed, nodes=nodes)
    shown = list(dict.fromkeys(node_id for node_id, _ in chosen.devices))
    names = dict(Node.objects.filter(id__in=shown).values_list("id", "name"))
    chunks = node_chunks(shown, span.since_s, span.end_s)
    xids = _xids(shown, span)
    return {
        "since": iso(from_s(span.since_s)),
        "fault_at": iso(from_s(span.fault_s)),
        "detected_at": detected,
        "until": iso(from_s(until_s)),
        "complete": span.end_s >= until_s,
        "awaited": _awaited(span),
        "devices": [
            _device(names.get(place[0], ""), place, chunks[place[0]], span, max_points)
            | {"xids": xids.get(place, [])[:MAX_XIDS], "xids_left_out": max(0, len(xids.get(place, [])) - MAX_XIDS)}
            for place in chosen.devices
        ],
        "nodes_left_out": chosen.nodes_left_out,
        "devices_left_out": chosen.devices_left_out,
        "note": left_out(chosen),
    }


def span_of(incident: Incident, now_s: float) -> tuple[around.Span, str | None, float]:
    """The span, when the fault was detected, and when the span ends, which may be to come."""
    moments = {phase["name"]: phase["at"] for phase in incident.phases}
    began = incident.phases[0]["at"] if incident.phases else iso(incident.opened_at)
    fault_s = datetime.fromisoformat(str(began)).timestamp()
    detected = moments.get("detected")
    detected_s = fault_s if detected is None else datetime.fromisoformat(detected).timestamp()
    since_s = fault_s - BEFORE_S
    until_s = min(max(fault_s, detected_s) + AFTER_S, since_s + MAX_SPAN_S)
    trigger = spec_of(incident.job).spec.resiliency.risk if incident.job else RiskTrigger()
    end_s = max(since_s, min(until_s, now_s))
    span = around.Span(since_s=since_s, fault_s=fault_s, end_s=end_s, risk_limit=trigger.threshold)
    return span, detected, until_s


def choose(places: Sequence[Place], listed: Mapping[str, Sequence[int]], *, nodes: int) -> Chosen:
    """Of the first nodes, devices that a finding names; all that the node lists where none does. The first of
    each node, then the second of each, so that no node fills the room alone. `nodes`: how many are named."""
    shown = list(dict.fromkeys(node_id for node_id, _ in places))[:MAX_NODES]
    wanted: list[tuple[int, int, str, int]] = []
    for at, node_id in enumerate(shown):
        named = [index for node, index in places if node == node_id and index is not None]
        of_node = list(dict.fromkeys(named)) or list(listed.get(node_id, ()))
        wanted += [(turn, at, node_id, index) for turn, index in enumerate(of_node)]
    kept = sorted(wanted)[:MAX_DEVICES]
    devices = tuple((node_id, index) for _, _, node_id, index in sorted(kept, key=lambda each: (each[1], each[0])))
    return Chosen(devices=devices, nodes_left_out=nodes - len(shown), devices_left_out=len(wanted) - len(kept))


def left_out(chosen: Chosen) -> str:
    """In words; "" where all is shown."""
    counts = ((chosen.devices_left_out, "device"), (chosen.nodes_left_out, "node"))
    parts = [f"{number:,} more {what}{'' if number == 1 else 's'}" for number, what in counts if number]
    return f"Not shown: {' and '.join(parts)} that the findings name." if parts else ""


def _places(incident: Incident) -> tuple[list[Place], int]:
    """What the findings name, the first finding first, and how many nodes that are. A broken exchange accuses
    nobody: it counts only where nothing else does."""
    rows = incident.signals.exclude(node_id=None)
    for named in (rows.exclude(kind=ACCUSES_NOBODY), rows):
        places = _grouped(named)
        if places:
            return places, _count(named)
    return ([(incident.node_id, None)], 1) if incident.node_id else ([], 0)


def _grouped(rows: QuerySet[Signal]) -> list[Place]:
    grouped = rows.order_by().values("node_id", "device_index").annotate(first=Min("seen_at"))
    return [(row["node_id"], row["device_index"]) for row in grouped.order_by("first", "node_id")[:MAX_NAMED]]


def _count(rows: QuerySet[Signal]) -> int:
    return int(rows.order_by().aggregate(nodes=Count("node_id", distinct=True))["nodes"])


def _listed(node_ids: Iterable[str]) -> dict[str, list[int]]:
    """Devices of the nodes that may be shown."""
    first = list(dict.fromkeys(node_ids))[:MAX_NODES]
    rows = Device.objects.filter(node_id__in=first).order_by("node_id", "index").values_list("node_id", "index")
    found: dict[str, list[int]] = {}
    for node_id, index in rows:
        found.setdefault(node_id, []).append(index)
    return found


def _xids(node_ids: Sequence[str], span: around.Span) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """XIDs of the devices within the span, in order of time, whichever incident has them."""
    rows = Signal.objects.filter(
        kind="xid", node_id__in=node_ids, seen_at__gte=from_s(span.since_s), seen_at__lte=from_s(span.end_s)
    ).order_by("seen_at", "id")
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows[:MAX_NAMED]:
        if row.node_id is not None and row.device_index is not None:
            meaning = str(row.evidence.get("meaning") or "")
            seen = {"xid": int(row.value), "meaning": meaning, "at": iso(row.seen_at)}
            found.setdefault((row.node_id, row.device_index), []).append(seen)
    return found


def _device(
    name: str, place: tuple[str, int], chunks: list[Chunk], span: around.Span, max_points: int
) -> dict[str, Any]:
    """`rest.DeviceAround`, less its XIDs."""
    node_id, index = place
    t_s, values = of_device(chunks, index)
    seen_s = around.observed(t_s, values)
    holes = around.gaps(seen_s, span)
    longest = sorted(sorted(holes, key=lambda hole: hole[0] - hole[1])[: around.MAX_GAPS])
    readings, absent = around.reported(t_s, values, span)
    drawn = around.thinned(*around.broken(t_s, values, holes, span), max_points)
    return {
        "node_id": node_id,
        "node_name": name,
        "index": index,
        "note": "" if len(seen_s) else _why_none(name, index, span),
        "gaps": [{"since": iso(from_s(since)), "until": iso(from_s(until))} for since, until in longest],
        "gaps_left_out": len(holes) - len(longest),
        "readings": readings if len(seen_s) else [],
        "not_reported": absent if len(seen_s) else [],
        "series": series(index, *drawn, max_points) if len(seen_s) else None,
    }


def _why_none(name: str, index: int, span: around.Span) -> str:
    kept_s = settings.RETENTION_DAYS * DAY_S
    if span.end_s < now_s() - kept_s:
        return f"Readings are kept for {settings.RETENTION_DAYS:g} days; those of this time have been deleted."
    if _awaited(span):
        late = f"without Redis within {settings.CHUNK_S:g} s"
        return f"No readings of device {index} of {name} are there yet; what it sent comes within seconds, {late}."
    return f"{name} sent no readings of device {index} in this time."


def _awaited(span: around.Span) -> bool:
    """What was read at its end may not have been stored yet."""
    return now_s() - span.end_s < settings.CHUNK_S
